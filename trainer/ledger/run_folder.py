"""The folder of one run: its settings, what it read, what it left out, and the metrics of each step.

``config.json`` (no secrets), ``plan.json``, ``windows.jsonl``, ``exclusions.jsonl``, ``metrics.jsonl``, at the end
``summary.json``, and ``evaluation.json`` and ``report.html`` with its results. The ledger is authoritative; the
folder is for people and notebooks, and no run reads it: if it cannot be written to, because the disk is full, that is a
warning and never ends a run. A resumed run appends to its folder.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any

from data_bridge.errors import ConfigurationError
from data_bridge.private_files import make_private, owner_hint
from data_bridge.quality import Exclusion
from data_bridge.redaction import json_text

logger = logging.getLogger(__name__)


class RunFolder:
    """Writes under ``home/runs/RUN_ID``; without a home nowhere.

    ConfigurationError if the folder cannot be created, before anything is paid for.
    """

    def __init__(self, home: Path | None, run_id: str) -> None:
        self._is_kept = home is not None
        self.path = (home or Path()) / "runs" / run_id
        self._has_warned = False
        try:
            if self._is_kept:
                make_private(self.path)
        except OSError as error:
            raise ConfigurationError(
                f"{self.path} cannot be created ({error.strerror}): set --home to a writable folder"
                f"{owner_hint(home or Path())}."
            ) from error

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """One JSON document, replaced as a whole."""
        if not self._is_kept:
            return
        temporary = self.path / f".{name}.tmp"
        with self._never_in_the_way(name):
            temporary.write_text(json_text(content, spaces=2) + "\n", encoding="utf-8")
            os.replace(temporary, self.path / name)

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Lines of JSON, each with the time it was written; as many as there are, one at a time."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        lines = (json_text({"at": now, **row}) + "\n" for row in rows)
        first = next(lines, None)
        if first is not None and self._is_kept:
            with self._never_in_the_way(name), (self.path / name).open("a", encoding="utf-8") as file:
                file.writelines(chain([first], lines))

    def exclusions(self, exclusions: Iterable[Exclusion]) -> None:
        self.append(
            "exclusions.jsonl",
            (
                {
                    "window": one.window_id,
                    "trajectory": one.trajectory_id,
                    "agent": one.agent_id,
                    "reason": one.reason.value,
                    "detail": one.detail,
                }
                for one in exclusions
            ),
        )

    @contextmanager
    def _never_in_the_way(self, name: str) -> Iterator[None]:
        """Skip what cannot be written, with one warning for the whole folder."""
        try:
            yield
        except OSError as error:
            if not self._has_warned:
                logger.warning(
                    "%s cannot be written (%s); the run continues, and the ledger has every step",
                    self.path / name,
                    error.strerror,
                )
            self._has_warned = True


def forget_in_folders(home: Path, agent_id: str, trajectory_ids: Collection[str]) -> int:
    """Take an agent out of the folders of all runs of this host; returns how many files were changed or deleted.

    A report is deleted, as it can be written again from the ledger. OSError if a file cannot be replaced: then nothing
    is lost, and the next time may be better.
    """
    changed = 0
    for folder in sorted((home / "runs").glob("*/")):
        changed += _rewritten(folder / "exclusions.jsonl", lambda text: _without_lines(text, agent_id))
        changed += _rewritten(folder / "evaluation.json", lambda text: _without_examples(text, agent_id))
        changed += _rewritten(folder / "report.html", lambda text: _unless_named(text, {agent_id, *trajectory_ids}))
    return changed


def _rewritten(path: Path, change: Callable[[str], str | None]) -> bool:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return False
    made = change(text)
    if made == text:
        return False
    if made is None:
        path.unlink(missing_ok=True)
        return True
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(made, encoding="utf-8")
    os.replace(temporary, path)
    return True


def _without_lines(text: str, agent_id: str) -> str:
    def is_about(line: str) -> bool:
        with suppress(ValueError, AttributeError):
            return bool(json.loads(line).get("agent") == agent_id)
        return False  # half a line of a run that was killed

    return "".join(line for line in text.splitlines(keepends=True) if not is_about(line))


def _without_examples(text: str, agent_id: str) -> str:
    try:
        found = json.loads(text)
        named = [one for one in ("best", "worst") if found.get(one) and found[one].get("agent_id") == agent_id]
    except (ValueError, AttributeError):
        return text
    return json_text({**found, **dict.fromkeys(named)}, spaces=2) + "\n" if named else text


def _unless_named(text: str, names: Collection[str]) -> str | None:
    return None if any(name in text or escape(name) in text for name in names) else text
