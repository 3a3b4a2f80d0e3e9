"""Calibrate advice: how sure the promoted release must be for its proposals to be shown."""

import sys

from _bootstrap import run

if __name__ == "__main__":
    sys.exit(run("trainer.cli.calibrate_advice"))
