"""Compare two checkpoints on held-out windows."""

import sys

from _bootstrap import run

if __name__ == "__main__":
    sys.exit(run("trainer.cli.evaluate"))
