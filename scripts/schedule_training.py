"""Train every scheduled period once, on however many hosts this runs."""

import sys

from _bootstrap import run

if __name__ == "__main__":
    sys.exit(run("trainer.cli.schedule_training"))
