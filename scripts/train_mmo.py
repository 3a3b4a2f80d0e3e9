"""Train the agents' model on what they did and what happened afterwards."""

import sys

from _bootstrap import run

if __name__ == "__main__":
    sys.exit(run("trainer.cli.train_mmo"))
