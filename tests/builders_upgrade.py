"""What 0.1.0 left behind (``tests/data/v0_1_0``): its ledger in a database, its home and ``.env`` in a folder."""

from __future__ import annotations

import gzip
import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import asyncpg

FIXTURE = Path(__file__).parent / "data" / "v0_1_0"
HOME = ".hindsight"
MADE_IN = "/srv/game"
"""Stands in the files for the folder that they were made in."""
WIDTH = 16
"""Of the tiny model that was trained."""
WEEKLY = ("--model", "weekly", "--simulate", "off", "--until", "2026-02-02T12:00")
"""Flags of the training on the log."""


def restore_home(folder: Path, tiny_model: Path) -> Path:
    """The folder that 0.1.0 was used in: its home, its ``.env``, the model beside them. Returns the home."""
    with tarfile.open(fileobj=io.BytesIO((FIXTURE / "home.tar.gz").read_bytes())) as archive:
        archive.extractall(folder / HOME, filter="data")
    for path in [*(folder / HOME).glob("promoted/*"), *(folder / HOME).glob("runs/*/*")]:
        path.write_text(path.read_text().replace(MADE_IN, str(folder)))
    shutil.copy(FIXTURE / "dotenv", folder / ".env")
    (folder / "tiny").symlink_to(tiny_model)
    return folder / HOME


async def restore_ledger(url: str, folder: Path) -> None:
    """The database as 0.1.0 left it, whose home was in ``folder``."""
    statements = gzip.decompress((FIXTURE / "ledger.sql.gz").read_bytes()).decode()
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statements.replace(MADE_IN, str(folder)))
    finally:
        await connection.close()


def old_settings() -> dict[str, Any]:
    """What each command of 0.1.0 made of each flag and variable; see ``collect_settings``."""
    told: dict[str, Any] = json.loads((FIXTURE / "settings.json").read_text())
    return told
