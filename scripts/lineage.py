"""Where a checkpoint comes from, and what became of a window."""

import sys

from _bootstrap import run

if __name__ == "__main__":
    sys.exit(run("trainer.cli.lineage"))
