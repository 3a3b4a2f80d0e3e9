"""Bring the database up to date: Hindsight's own schema, and on an empty database the game's tables."""

import sys

from _bootstrap import run

if __name__ == "__main__":
    sys.exit(run("trainer.cli.run_migrations"))
