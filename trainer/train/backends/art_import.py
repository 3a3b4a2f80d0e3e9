"""Importing ART without what it does to a process on the way in.

``import art`` reads ``.env`` into ``os.environ``, and with it whatever key stands there; litellm, which it
imports, asks the network for a price list; and ``LocalBackend`` starts a wandb run of its own whenever it
finds ``WANDB_API_KEY`` in the environment, failing *after* the training when W&B cannot be reached.

So the key lives in our settings only. It is taken out of the environment here and never put back: ART looks
for it at every step, and its child processes (the model service, vLLM) inherit what we have.
"""

from __future__ import annotations

import os
from types import ModuleType

_HIDDEN = ("WANDB_API_KEY",)


def prepare_environment() -> None:
    """Make the environment of this process, and of its children, one in which ART only does what it is asked to."""
    os.environ["PYTHON_DOTENV_DISABLED"] = "1"  # load_dotenv() does nothing; our own reading of .env is not affected
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    for name in _HIDDEN:
        os.environ.pop(name, None)


def import_art() -> ModuleType:
    """The ``art`` package, imported into a prepared environment. Takes seconds the first time."""
    prepare_environment()
    import art

    module: ModuleType = art
    return module
