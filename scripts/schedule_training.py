"""Train every scheduled period once, however many hosts run this."""

import sys

from _bootstrap import run

if __name__ == "__main__":
    sys.exit(run("trainer.cli.schedule_training"))
