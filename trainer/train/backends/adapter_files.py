"""Whether a LoRA checkpoint on disk is complete, without loading it: a kill or a full disk can leave half of one."""

from __future__ import annotations

import json
import logging
import os
import shutil
import time
from collections.abc import Collection
from pathlib import Path

from data_bridge.spool import fsync

logger = logging.getLogger(__name__)

_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"
_REMOVED = ".removed-"


def is_whole(directory: Path) -> bool:
    """Whether the adapter's configuration is readable and its weights are as long as their header says."""
    try:
        json.loads((directory / _CONFIG).read_text(encoding="utf-8"))
        with (directory / _WEIGHTS).open("rb") as file:
            header_length = int.from_bytes(file.read(8), "little")
            size = os.fstat(file.fileno()).st_size
            if not 2 <= header_length <= size - 8:
                return False
            header = json.loads(file.read(header_length))
        tensors = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        return bool(tensors) and 8 + header_length + max(tensors) == size
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError):
        return False


def newest_whole_step(checkpoints: Path) -> int:
    """The newest step whose checkpoint is complete; 0 if there is none. Directories are named by their step."""
    return max((step for step, directory in _by_step(checkpoints) if is_whole(directory)), default=0)


def set_broken_aside(checkpoints: Path) -> list[Path]:
    """Rename incomplete checkpoints (nothing is deleted); returns their new paths."""
    moved = []
    for _, directory in _by_step(checkpoints):
        if not is_whole(directory):
            aside = directory.with_name(f"{directory.name}.broken-{time.time_ns()}")
            directory.rename(aside)
            moved.append(aside)
            logger.warning("Checkpoint %s is incomplete and was set aside as %s.", directory, aside.name)
    return moved


def remove_steps(checkpoints: Path, steps: Collection[int]) -> list[int]:
    """Delete these checkpoints; returns those that existed. Renamed first, so that a reader never finds half of one."""
    found = sorted((step, directory) for step, directory in _by_step(checkpoints) if step in steps)
    for _, directory in found:
        directory.rename(directory.with_name(f"{_REMOVED}{directory.name}"))
    for leaving in checkpoints.glob(f"{_REMOVED}*"):  # also those that a killed process left
        shutil.rmtree(leaving, ignore_errors=True)
    return [step for step, _ in found]


def make_durable(directory: Path) -> None:
    """Flush the files of a checkpoint to the disk before it counts as trained."""
    for path in [*(file for file in directory.rglob("*") if file.is_file()), directory, directory.parent]:
        fsync(path)


def _by_step(checkpoints: Path) -> list[tuple[int, Path]]:
    if not checkpoints.is_dir():
        return []
    return [(int(entry.name), entry) for entry in checkpoints.iterdir() if entry.name.isdigit() and entry.is_dir()]
