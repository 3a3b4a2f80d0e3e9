"""A lineage that begins with another's adapter: ``--init-from MODEL@stepN``.

The adapter becomes step 1 of the new lineage, so that agents can play it, the gate can compare it and training goes on
from it like from any other step; the optimizer begins anew. Whether the transfer helps is the gate's to say: what comes
of it is compared with what the agents use, as every candidate is, and a harmful one is refused.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from data_bridge.errors import ConfigurationError
from trainer.inference.checkpoints import CheckpointStore, StoredStep, store_of

if TYPE_CHECKING:
    from trainer.inference.policy import CpuPolicy

_NAME = re.compile(r"(?P<model>[A-Za-z0-9][A-Za-z0-9._-]*)@step(?P<step>[1-9]\d{0,8})")
_BATCH = "init-from:"


def begin_from(name: str, home: Path, store: CheckpointStore, base_model: str, policy: CpuPolicy) -> None:
    """Make checkpoint ``name`` step 1 of the lineage in ``store``, unless it is already.

    ConfigurationError if it cannot be, or if the lineage has begun in another way.
    """
    source, step = _named(name, home)
    if store.newest() is not None:
        _check_beginning(name, store)
        return
    _check_source(name, source, step, store, base_model)
    policy.take_over(source.path(step))
    store.save(StoredStep(1, f"{_BATCH}{name}", 0, base_model, {"init_from": name}, {}, 0), policy.save)


def check_init_from(name: str | None, home: Path, model: str, base_model: str) -> None:
    """ConfigurationError if ``model`` cannot begin with ``name``: before anything is read, played or paid for.

    Changes nothing: a dry run asks too.
    """
    if name is None:
        return
    (source, step), store = _named(name, home), store_of(home, model)
    if any(map(store.is_sound, store.steps())):
        _check_beginning(name, store)
    else:
        _check_source(name, source, step, store, base_model)


def _named(name: str, home: Path) -> tuple[CheckpointStore, int]:
    match = _NAME.fullmatch(name)
    if match is None:
        raise ConfigurationError(f"--init-from: write MODEL@stepN, such as hindsight@step14 (got {name!r}).")
    return store_of(home, match["model"]), int(match["step"])


def _check_source(name: str, source: CheckpointStore, step: int, store: CheckpointStore, base_model: str) -> None:
    if source.directory == store.directory or not source.is_sound(step):
        raise ConfigurationError(
            f"--init-from: there is no intact checkpoint {name} of another model at {source.path(step)}: "
            "`lineage.py` lists what was trained."
        )
    if source.read(step).base_model != base_model:
        raise ConfigurationError(
            f"--init-from: {name} was trained on {source.read(step).base_model}, not on {base_model}: set --base-model."
        )


def _check_beginning(name: str, store: CheckpointStore) -> None:
    """A first step that retention has deleted is taken at its word."""
    first = store.steps()[0]
    if first == 1 and store.is_sound(first) and store.read(first).batch_id != f"{_BATCH}{name}":
        raise ConfigurationError(
            f"--init-from {name}: the checkpoints in {store.directory} did not begin with it; use another --model."
        )
