"""List, change, learn, compare, gate and release prompts, and serve the policy that changes them."""

import sys

from _bootstrap import run

if __name__ == "__main__":
    sys.exit(run("trainer.cli.prompts"))
