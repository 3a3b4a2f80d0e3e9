"""Serve the console: see trainings live, start and stop them, promote and roll back."""

import sys

from _bootstrap import run

if __name__ == "__main__":
    sys.exit(run("trainer.cli.console"))
