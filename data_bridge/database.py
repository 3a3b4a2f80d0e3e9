"""Opens the database: the team's Postgres by its URL, or the embedded one; every fault is one sentence.

The pool promises its users: no statement runs longer than the timeout, broken connections are replaced, and nothing
depends on a session, so that a pooler in transaction mode (PgBouncer, Supavisor, Neon) works. Such a pooler is
recognised by the URL or by its refusal to set a parameter for the session.

Code that only reads uses ``Reconnecting``: when Postgres restarts, the same queries run again once it is back. One that
stays away for ``gone_after`` is a DatabaseLost.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from traceback import walk_tb
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlencode

import asyncpg

from data_bridge.connection_url import ConnectionUrl, parse_connection_url
from data_bridge.disk import RESUME
from data_bridge.embedded import EmbeddedServer
from data_bridge.errors import DatabaseError, DatabaseFull, DatabaseLost
from data_bridge.migrate import apply
from data_bridge.redaction import redact

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

logger = logging.getLogger(__name__)

GONE_AFTER = timedelta(seconds=45)
"""What does not answer for so long is gone for good: a command that needs it ends within a minute."""
_CONNECT_TIMEOUT = 10.0
_SERVER_FIRST = 5.0
"""Seconds by which our own timeout is longer than the server's, whose error says what was stopped."""
_FIRST_CONNECT_PAUSES = (0.5, 1.0, 2.0)
"""Seconds between attempts to connect first, for a server that is just starting."""
_EMBEDDED_IS_BACK = timedelta(seconds=15)
"""The embedded server recovers from a crash by itself within this time; if it has ended, nobody starts it again."""
_FIRST_PAUSE, _MAX_PAUSE = 0.1, 5.0  # seconds between attempts to reconnect

_TRANSIENT: tuple[type[BaseException], ...] = (
    ConnectionError,  # refused, reset, broken pipe
    FileNotFoundError,  # a Unix socket whose server is restarting
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
)
"""Faults that may pass after a while: Postgres restarts, fails over, or has no free connection."""

LOST = (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError)
"""Errors that a lost connection can raise. Other faults raise them too: ``fault_of`` and ``Reconnecting`` tell them
apart."""
START_IT = "start it, then run the same command again, which resumes."

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Database:
    """An open database. ``label`` is safe to print."""

    pool: asyncpg.Pool[asyncpg.Record]
    is_embedded: bool
    label: str
    is_pooled: bool = False
    """Behind a transaction-mode pooler."""
    url: str = field(default="", repr=False)
    """Where another process of this user opens it too. Holds the password: never printed."""
    gone_after: timedelta = GONE_AFTER
    """How long it, or another service that a command needs, may be away."""


@asynccontextmanager
async def open_database(
    url: str | None,
    home: Path,
    *,
    statement_timeout: timedelta = timedelta(minutes=2),
    max_size: int = 8,
    migrate: bool = False,
    read_only: bool = False,
    gone_after: timedelta = GONE_AFTER,
) -> AsyncIterator[Database]:
    """The database at ``url``; without a URL the embedded Postgres under ``home``, which is always migrated.

    ``read_only`` makes Postgres refuse our writes (except through a pooler, which has no such session setting).
    Any Postgres fault that leaves the block is raised as a DatabaseError; as DatabaseLost if it is away.
    """
    async with _server(url, home) as (location, label, address):
        pool, is_pooled = await _open_pool(location, label, statement_timeout, max_size, read_only)
        try:
            if migrate or (url is None and not read_only):
                await apply(pool)
            yield Database(pool, url is None, label, is_pooled, address, gone_after)
        except LOST as error:
            fault = fault_of(error, label)
            if fault is None or fault is error:
                raise
            raise fault from error
        finally:
            await _close(pool)


def fault_of(error: BaseException, label: str) -> DatabaseError | None:
    """The fault of the open database called ``label`` that ``error`` is; None if it is something else's."""
    if isinstance(error, DatabaseError):
        return error
    if not isinstance(error, LOST) or (isinstance(error, OSError) and not _was_raised_in_asyncpg(error)):
        return None
    if not is_transient(error) or isinstance(error, TimeoutError):  # a statement that takes too long is not a loss
        return explain(error, label)
    lost = DatabaseLost(redact(f"The database {label} is gone ({_brief(error)}): {START_IT}"))
    lost.__cause__ = error
    return lost


def _was_raised_in_asyncpg(error: OSError) -> bool:
    """Whether the database failed to answer: the block may also use other servers, whose errors are not ours."""
    modules = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    return any(module.startswith("asyncpg.") for module in modules)


@asynccontextmanager
async def _server(url: str | None, home: Path) -> AsyncIterator[tuple[ConnectionUrl, str, str]]:
    if url is not None:
        location = parse_connection_url(url)
        yield location, location.label, url
        return
    server = EmbeddedServer(home / "postgres")
    try:
        await asyncio.to_thread(server.start)
        try:
            yield parse_connection_url(server.url()), f"embedded Postgres in {server.folder}", server.url()
        finally:
            # Not in a thread: a cancelled caller would leave before the server is released.
            server.stop()
    except DatabaseError as error:
        # A server without room for its log of writes stops, and all that is seen of it is a lost connection.
        if server.has_no_room:
            full = f"The disk of {server.folder} is full, and the embedded Postgres cannot write"
            raise DatabaseFull(f"{full}: {RESUME}") from error
        raise


async def _open_pool(
    location: ConnectionUrl, label: str, statement_timeout: timedelta, max_size: int, read_only: bool
) -> tuple[asyncpg.Pool[asyncpg.Record], bool]:
    is_pooled = location.is_pooled
    while True:
        pool = _make_pool(location, is_pooled, statement_timeout, max_size, read_only)
        try:
            await _connect_first(pool, label)
            if is_pooled or await _keeps_settings(pool, statement_timeout):
                return pool, is_pooled
            logger.info("%s is behind a pooler that does not keep session settings", label)
        except DatabaseError as error:
            await _close(pool)
            if is_pooled or "unsupported startup parameter" not in str(error.__cause__):
                raise
            logger.info("%s is behind a pooler that refuses session settings", label)
        except BaseException:
            pool.terminate()
            raise
        else:
            await _close(pool)
        is_pooled = True


def _make_pool(
    location: ConnectionUrl, is_pooled: bool, statement_timeout: timedelta, max_size: int, read_only: bool
) -> asyncpg.Pool[asyncpg.Record]:
    if is_pooled and location.schema is not None:
        raise DatabaseError(
            f"A pooler cannot switch to the schema {location.schema}: use a direct URL, "
            "or `ALTER ROLE … SET search_path` for the role in DATABASE_URL."
        )
    arguments: dict[str, Any] = {
        "host": list(location.hosts) or None,
        "port": list(location.ports) or None,
        "user": location.user,
        "password": location.password,
        "database": location.database,
        "timeout": location.connect_timeout or _CONNECT_TIMEOUT,
        "command_timeout": statement_timeout.total_seconds() + (0 if is_pooled else _SERVER_FIRST),
        "min_size": 0,
        "max_size": min(max_size, location.max_connections or max_size),
        "reset": _leave_as_is,
    }
    tls = {"sslmode": location.tls_mode, **dict(location.tls_files)} if location.tls_mode else dict(location.tls_files)
    if tls:
        arguments["dsn"] = f"postgresql://?{urlencode(tls)}"  # asyncpg accepts the files only this way
    if is_pooled:
        arguments["statement_cache_size"] = 0
    else:
        arguments["server_settings"] = _session_settings(location, statement_timeout, read_only)
    try:
        return asyncpg.create_pool(**arguments)
    except (ValueError, OSError, asyncpg.InterfaceError) as error:
        raise explain(error, location.label) from error


def _session_settings(location: ConnectionUrl, statement_timeout: timedelta, read_only: bool) -> dict[str, str]:
    settings = {"application_name": "hindsight", "statement_timeout": _milliseconds(statement_timeout)}
    if location.schema is not None:
        settings["search_path"] = '"' + location.schema.replace('"', '""') + '"'
    if location.options is not None:
        settings["options"] = location.options
    if read_only:
        settings["default_transaction_read_only"] = "on"
    return settings


def _milliseconds(duration: timedelta) -> str:
    return str(round(duration.total_seconds() * 1000))


async def _leave_as_is(_: PoolConnectionProxy[asyncpg.Record]) -> None:
    """Skip the reset of a released connection: no session state is ever set, and a reset costs a round trip.

    An open transaction is still rolled back.
    """


async def _connect_first(pool: asyncpg.Pool[asyncpg.Record], label: str) -> None:
    """Connect once. Retries for a while if the server is starting; fails immediately if it refuses."""
    for pause in (*_FIRST_CONNECT_PAUSES, None):
        try:
            await pool
            async with pool.acquire() as connection:
                await connection.execute("SELECT 1")
            return
        except (OSError, TimeoutError, ValueError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            if pause is None or not is_transient(error):
                raise explain(error, label) from error
        await asyncio.sleep(pause)


async def _keeps_settings(pool: asyncpg.Pool[asyncpg.Record], statement_timeout: timedelta) -> bool:
    asked = "SELECT setting FROM pg_settings WHERE name = 'statement_timeout'"
    return bool(await pool.fetchval(asked) == _milliseconds(statement_timeout))


async def _close(pool: asyncpg.Pool[asyncpg.Record]) -> None:
    try:
        await asyncio.wait_for(pool.close(), timeout=5)
    except (TimeoutError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
        pool.terminate()


def is_transient(error: BaseException) -> bool:
    """Whether a later retry may help. It never does with a wrong password, host or database."""
    if isinstance(error, DatabaseError):
        return error.__cause__ is not None and is_transient(error.__cause__)
    if isinstance(error, asyncpg.InterfaceError):
        return "closed" in str(error)
    return isinstance(error, _TRANSIENT)


def explain(error: BaseException, label: str) -> DatabaseError:
    """The sentence for a fault of the database called ``label``; the original error is its ``__cause__``."""
    if isinstance(error, DatabaseError):
        return error
    kind = DatabaseFull if isinstance(error, asyncpg.DiskFullError) else DatabaseError
    explained = kind(redact(_sentence(error, label)))
    explained.__cause__ = error
    return explained


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _sentence(error: BaseException, label: str) -> str:
    said = _brief(error)
    match error:
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            return f"The database {label} refused the login: check the user and password in DATABASE_URL ({said})."
        case asyncpg.InvalidCatalogNameError():
            return f"There is no such database at {label}: check the name at the end of DATABASE_URL ({said})."
        case asyncpg.UndefinedTableError() | asyncpg.UndefinedColumnError() | asyncpg.InvalidSchemaNameError():
            return (
                f"The database {label} lacks a table or column ({said}): is it the game's? "
                "`scripts/run_migrations.py` adds Hindsight's own tables."
            )
        case asyncpg.InsufficientPrivilegeError() | asyncpg.ReadOnlySQLTransactionError():
            return f"The role in DATABASE_URL lacks a privilege at {label} ({said}): grant it, or use another role."
        case asyncpg.TooManyConnectionsError():
            return f"The database {label} has no free connection: close some, or set connection_limit in DATABASE_URL."
        case asyncpg.DiskFullError():
            return f"The disk of the database {label} is full ({said}): {RESUME}"
        case asyncpg.QueryCanceledError():
            return f"A statement at {label} took too long and was stopped: raise --statement-timeout ({said})."
        case asyncpg.CannotConnectNowError() | asyncpg.AdminShutdownError() | asyncpg.CrashShutdownError():
            return f"The database {label} is starting or stopping: try again in a moment ({said})."
        case ssl.SSLError():
            return f"No TLS connection to {label} ({said}): check sslmode and sslrootcert in DATABASE_URL."
        case socket.gaierror():
            return f"The host of {label} is unknown: check DATABASE_URL."
        case TimeoutError():
            return (
                f"The database {label} did not answer in time: check host and port in DATABASE_URL and the firewall, "
                "or raise --statement-timeout."
            )
        case OSError():
            return f"The database {label} cannot be reached ({said}): is it running, and are host and port right?"
        case _:
            return f"The database {label} failed ({type(error).__name__}: {said})."


class Fetch(Protocol):
    """Runs one query and returns its rows."""

    def __call__(self, query: str, *arguments: Any) -> Awaitable[list[asyncpg.Record]]: ...


class Reconnecting:
    """Waits, longer each time, for a database that restarts; for code that only reads and can read again.

    ``what`` is read, as the sentence about a database that does not come back names it.
    """

    def __init__(self, database: Database, what: str) -> None:
        self._label, self._what = database.label, what
        longest = _EMBEDDED_IS_BACK if database.is_embedded else database.gone_after
        self._wait = min(database.gone_after, longest).total_seconds()
        self._deadline: float | None = None
        self._pause = _FIRST_PAUSE

    async def after(self, error: Exception) -> None:
        """Pause before the next attempt. DatabaseLost if Postgres is away too long, DatabaseError if waiting would not
        help."""
        now = asyncio.get_running_loop().time()
        self._deadline = self._deadline or now + self._wait
        if not is_transient(error):
            raise explain(error, self._label) from error
        if now + self._pause > self._deadline:
            said = f"was waited for {self._wait:g} s to read {self._what}, and is gone ({_brief(error)})"
            raise DatabaseLost(redact(f"The database {self._label} {said}: {START_IT}")) from error
        logger.warning("lost %s (%s) while reading %s; retrying", self._label, type(error).__name__, self._what)
        await asyncio.sleep(self._pause)
        self._pause = min(self._pause * 2, _MAX_PAUSE)


def fetch_on(connection: Any) -> Fetch:
    async def fetch(query: str, *arguments: Any) -> list[asyncpg.Record]:
        try:
            rows: list[asyncpg.Record] = await connection.fetch(query, *arguments)
        except TimeoutError as error:  # not a lost connection: the statement would be too slow again
            raise asyncpg.QueryCanceledError("canceling statement due to statement timeout") from error
        return rows

    return fetch
