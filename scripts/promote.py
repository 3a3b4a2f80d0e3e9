"""Promote a checkpoint, roll back, list what there is."""

import sys

from _bootstrap import run

if __name__ == "__main__":
    sys.exit(run("trainer.cli.promote"))
