"""Export and import trajectories with their outcomes as JSON lines."""

import sys

from _bootstrap import run

if __name__ == "__main__":
    sys.exit(run("trainer.cli.traces"))
