"""What a worker is told: its section of the settings through the ledger, its secrets through a file or its environment.

Nothing of either is an argument of a task, which Ray's dashboard shows. The secrets are named by reference: a file of
``NAME=value`` lines, for its owner only, that the worker opens on its own host; where there is none, they come from the
environment that the cluster gives its processes (a Kubernetes secret, for example).
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
from dotenv import dotenv_values
from pydantic import SecretStr

from data_bridge.database import GONE_AFTER
from data_bridge.errors import ConfigurationError
from data_bridge.private_files import make_private
from data_bridge.quality import Rules
from data_bridge.worlds.load import load_world
from trainer.config.sections import JudgeSecrets, JudgeSettings
from trainer.config.settings import written_duration

_BEING_WRITTEN = 60.0
"""Seconds in which a file may have no lock yet."""
_DATABASE_URL, _KEYS = "DATABASE_URL", {"judge_api_key": "JUDGE_API_KEY", "openai_api_key": "OPENAI_API_KEY"}


class WorkerSection(msgspec.Struct, frozen=True):
    """Everything that reading and judging depend on, without secrets."""

    judge: dict[str, Any]
    with_steps: bool
    now: datetime
    min_actions: int
    max_bytes: int
    allow_partial_outcomes: bool
    world: str
    """As ``--world`` named it; a file must be at the same path on every host."""
    world_version: str
    facts_view: str | None
    noise: tuple[float, int] = (0.0, 0)
    """What was known of the judge's noise between orders when the job began."""
    model: str | None = None
    """Whose lasting exclusions hold; None: judged without training."""
    is_unused: bool = False
    """Whether rows that were trained on are judged again."""
    gone_after: float = GONE_AFTER.total_seconds()
    """Seconds that a service may be away, as the driver's ``--gone-after`` says."""

    def rules(self) -> Rules:
        """ConfigurationError if the world of this host is another than the driver's."""
        world = load_world(self.world)
        if world.version != self.world_version:
            raise ConfigurationError(
                f"--world {self.world} says something else on a worker's host than on the driver's: copy the file."
            )
        return Rules(
            min_actions=self.min_actions,
            max_bytes=self.max_bytes,
            allow_partial_outcomes=self.allow_partial_outcomes,
            now=self.now,
            world=world,
            facts_view=self.facts_view,
        )

    def judge_settings(self) -> JudgeSettings:
        return JudgeSettings.model_validate(self.judge)


def section_of(
    judge: JudgeSettings,
    rules: Rules,
    *,
    world: str,
    with_steps: bool,
    noise: tuple[float, int],
    model: str | None = None,
    is_unused: bool = False,
    gone_after: timedelta = GONE_AFTER,
) -> WorkerSection:
    """The section for the workers of one job. A rubric of the user's own must be at the same path on every host."""
    values = {name: getattr(judge, name) for name in JudgeSettings.model_fields}
    plain = {name: written_duration(one) if isinstance(one, timedelta) else one for name, one in values.items()}
    return WorkerSection(
        plain,
        with_steps,
        rules.now,
        rules.min_actions,
        rules.max_bytes,
        rules.allow_partial_outcomes,
        world,
        rules.world.version,
        rules.facts_view,
        noise,
        model,
        is_unused,
        gone_after.total_seconds(),
    )


@dataclass(frozen=True, slots=True)
class WorkerSecrets:
    """The services that a worker calls."""

    database_url: str
    judge: JudgeSecrets


@contextmanager
def secrets_file(folder: Path, name: str, database_url: str, judge: JudgeSecrets) -> Iterator[Path]:
    """A file with the secrets of one job, for this user only, while the block runs.

    Drivers that were killed could not delete theirs: this removes them. A lock on the file says that its driver lives.
    """
    make_private(folder)
    _remove_left_behind(folder)
    path = folder / f"{name}.env"
    keys = {variable: getattr(judge, field) for field, variable in _KEYS.items()}
    lines = [f"{_DATABASE_URL}={_quoted(database_url)}"]
    lines += [f"{variable}={_quoted(key.get_secret_value())}" for variable, key in keys.items() if key is not None]
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("\n".join(lines) + "\n")
        file.flush()
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)


def _remove_left_behind(folder: Path) -> None:
    for path in folder.glob("*.env"):
        with suppress(OSError), path.open() as file:  # another may remove it, or hold it
            if time.time() - path.stat().st_mtime > _BEING_WRITTEN:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()


def secrets_from(path: str, environ: Mapping[str, str]) -> WorkerSecrets:
    """The secrets of a worker, read on its own host."""
    found = dotenv_values(path, interpolate=False) if path and Path(path).is_file() else dict(environ)
    url = found.get(_DATABASE_URL)
    if not url:
        raise ConfigurationError(
            f"A worker has no {_DATABASE_URL}: give the cluster's processes {_DATABASE_URL} and the judge's key, or "
            "name a file with them that is on every host by --worker-env."
        )
    keys = {field: SecretStr(value) for field, variable in _KEYS.items() if (value := found.get(variable))}
    return WorkerSecrets(url, JudgeSecrets(**keys))


def _quoted(value: str) -> str:
    """As python-dotenv reads it back: in single quotes nothing but the quote and the backslash is special."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
