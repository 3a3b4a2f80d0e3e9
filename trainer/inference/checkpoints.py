"""Checkpoints on this machine's disk: complete or absent, and each names the batch that produced it.

A checkpoint is written under a temporary name, flushed, and renamed; ``checkpoint.json`` contains the hash of
every other file. So after ``kill -9`` the newest directory whose hashes match is the current state, and a batch was
trained if and only if one of them names it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data_bridge.disk import is_full
from data_bridge.errors import BackendError
from data_bridge.spool import fsync

logger = logging.getLogger(__name__)

_RECORD = "checkpoint.json"
_NAME = re.compile(r"step-(\d+)")
_UNFINISHED = ".unfinished-"
"""Prefix of directories being written or deleted; the next save removes those that a killed process left."""


@dataclass(frozen=True, slots=True)
class StoredStep:
    """The content of ``checkpoint.json`` without the hashes."""

    step: int
    batch_id: str
    trainable_tokens: int
    base_model: str
    config: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    parent_step: int | None = None
    """The step it started from; None in checkpoints of 0.1.0: the one before."""


class CheckpointStore:
    """The checkpoints of one model in one directory. One process writes; any may read."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._verified: dict[Path, bool] = {}

    def path(self, step: int) -> Path:
        return self.directory / f"step-{step:06d}"

    def steps(self) -> list[int]:
        """Steps that have a directory, oldest first, intact or damaged."""
        if not self.directory.is_dir():
            return []
        found = [_NAME.fullmatch(entry.name) for entry in self.directory.iterdir() if entry.is_dir()]
        return sorted(int(match[1]) for match in found if match is not None)

    def newest(self) -> StoredStep | None:
        """The newest intact checkpoint. A damaged one is set aside with a warning, never trained on or served."""
        for step in reversed(self.steps()):
            if self.is_sound(step):
                return self.read(step)
            aside = self.path(step).with_name(f"damaged-{step:06d}-{os.getpid()}")
            self.path(step).rename(aside)
            logger.warning(
                "Checkpoint step %d is damaged (its files do not match their hashes) and was set aside as %s; "
                "continuing from the last good one.",
                step,
                aside,
            )
        return None

    def of_batch(self, batch_id: str) -> StoredStep | None:
        """The intact checkpoint that ``batch_id`` produced, or None if that batch never became durable."""
        for step in reversed(self.steps()):
            if self.is_sound(step) and (stored := self.read(step)).batch_id == batch_id:
                return stored
        return None

    def read(self, step: int) -> StoredStep:
        record = json.loads((self.path(step) / _RECORD).read_text())
        return StoredStep(**{key: value for key, value in record.items() if key != "files"})

    def is_sound(self, step: int) -> bool:
        """Whether every file exists and matches its hash. Read once per process: checkpoints do not change."""
        path = self.path(step)
        if path not in self._verified:
            self._verified[path] = _agrees(path)
        return self._verified[path]

    def save(self, stored: StoredStep, write: Callable[[Path], None]) -> Path:
        """Let ``write`` fill a directory and make it durable as ``stored.step``: all of it or nothing."""
        target = self.path(stored.step)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._remove_unfinished()
            unfinished = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=self.directory))
            write(unfinished)
            files = {file.name: _sha256(file) for file in sorted(unfinished.iterdir())}
            record = {name: getattr(stored, name) for name in StoredStep.__slots__} | {"files": files}
            (unfinished / _RECORD).write_text(json.dumps(record, indent=1, sort_keys=True))
            for file in unfinished.iterdir():
                fsync(file)
            fsync(unfinished)
            unfinished.rename(target)
            fsync(self.directory)
        except OSError as error:
            raise BackendError(self._why_not_saved(stored.step, error)) from error
        finally:
            self._remove_unfinished()
        self._verified[target] = True
        return target

    def keep_only(self, steps: Collection[int]) -> None:
        self.remove([step for step in self.steps() if step not in steps])

    def remove(self, steps: Collection[int]) -> list[int]:
        """Delete these checkpoints; returns those that existed. Renamed first, so that a reader never finds half."""
        found = [step for step in self.steps() if step in steps]
        for step in found:
            leaving = self.directory / f"{_UNFINISHED}removed-{step:06d}"
            self.path(step).rename(leaving)
            self._verified.pop(self.path(step), None)
            shutil.rmtree(leaving, ignore_errors=True)
        return found

    def _remove_unfinished(self) -> None:
        """Delete what a killed process left behind."""
        for left in self.directory.glob(f"{_UNFINISHED}*"):
            shutil.rmtree(left, ignore_errors=True)

    def _why_not_saved(self, step: int, error: OSError) -> str:
        good = [known for known in self.steps() if self.is_sound(known)]
        still = f"step {good[-1]} is still the newest checkpoint" if good else "there is no checkpoint yet"
        if is_full(error):
            return (
                f"The disk of {self.directory} is full, so step {step} was not saved ({still}): "
                "free some space and run again."
            )
        return (
            f"Step {step} could not be saved to {self.directory} ({error.strerror or error}; {still}): "
            "check the directory and run again."
        )


def _agrees(path: Path) -> bool:
    try:
        files: dict[str, str] = json.loads((path / _RECORD).read_text())["files"]
        return bool(files) and all(_sha256(path / name) == digest for name, digest in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def store_of(home: Path, model: str) -> CheckpointStore:
    """Where the checkpoints of ``model`` are kept under ``home``."""
    return CheckpointStore(home / "checkpoints" / model)
