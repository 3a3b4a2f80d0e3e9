"""Show what can be trained in the database, what cannot, and why."""

import sys

from _bootstrap import run

if __name__ == "__main__":
    sys.exit(run("trainer.cli.check_windows"))
