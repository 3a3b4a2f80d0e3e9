"""Promote a checkpoint, roll back, or list checkpoints."""

import sys

from _bootstrap import run

if __name__ == "__main__":
    sys.exit(run("trainer.cli.promote"))
