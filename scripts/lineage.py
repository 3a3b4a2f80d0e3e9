"""Show where a checkpoint comes from, and what a window was used for."""

import sys

from _bootstrap import run

if __name__ == "__main__":
    sys.exit(run("trainer.cli.lineage"))
