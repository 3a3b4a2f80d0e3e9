"""Let agents of known skill play a simulated market and record it in the database that the trainer reads."""

import sys

from _bootstrap import run

if __name__ == "__main__":
    sys.exit(run("trainer.cli.spawn_test_agents"))
