"""Serve the promoted checkpoint over an OpenAI-compatible API."""

import sys

from _bootstrap import run

if __name__ == "__main__":
    sys.exit(run("trainer.cli.serve"))
