"""List, search, distil, consolidate, retire and export lessons."""

import sys

from _bootstrap import run

if __name__ == "__main__":
    sys.exit(run("trainer.cli.lessons"))
