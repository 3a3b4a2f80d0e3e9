"""Trajectories with their outcomes as JSON lines: out of a database, and into one."""

import sys

from _bootstrap import run

if __name__ == "__main__":
    sys.exit(run("trainer.cli.traces"))
