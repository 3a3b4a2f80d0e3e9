"""The folder of one run: what it was told to do, what it read, what it left out, and how each step went.

``config.json`` (no secrets), ``plan.json``, ``windows.jsonl``, ``exclusions.jsonl``, ``metrics.jsonl``, at the end
``summary.json``, and ``evaluation.json`` and ``report.html`` of what came of it. The ledger is the truth; the folder
is for people and notebooks. A run that is taken up again appends to its folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from data_bridge.quality import Exclusion
from data_bridge.redaction import redact


class RunFolder:
    """Writes under ``home/runs/RUN_ID``."""

    def __init__(self, home: Path, run_id: str) -> None:
        self.path = home / "runs" / run_id
        self.path.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, content: Mapping[str, Any]) -> None:
        """One JSON document, replaced as a whole."""
        text = msgspec.json.format(msgspec.json.encode(content, enc_hook=str), indent=2).decode()
        temporary = self.path / f".{name}.tmp"
        temporary.write_text(redact(text) + "\n", encoding="utf-8")
        os.replace(temporary, self.path / name)

    def append(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Lines of JSON, each with the time it was written."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        lines = [redact(msgspec.json.encode({"at": now, **row}, enc_hook=str).decode()) + "\n" for row in rows]
        if lines:
            with (self.path / name).open("a", encoding="utf-8") as file:
                file.writelines(lines)

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
