"""Certify a judge: is it, with its rubric, fit to train on?"""

import sys

from _bootstrap import run

if __name__ == "__main__":
    sys.exit(run("trainer.cli.certify_judge"))
