"""Judge windows without training on them."""

import sys

from _bootstrap import run

if __name__ == "__main__":
    sys.exit(run("trainer.cli.judge_windows"))
