"""What went wrong with the database, as one sentence that says what to do and carries no secret."""

from __future__ import annotations

import socket
import ssl

import asyncpg

from data_bridge.errors import DatabaseError
from data_bridge.redaction import redact

TRANSIENT: tuple[type[BaseException], ...] = (
    ConnectionError,  # refused, reset, broken pipe
    FileNotFoundError,  # a Unix socket whose server is restarting
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
)
"""Faults that pass when one waits: Postgres restarts, fails over, or is full."""


def is_transient(error: BaseException) -> bool:
    """Whether trying again later may help. A wrong password, host or database never gets better."""
    if isinstance(error, DatabaseError):
        return error.__cause__ is not None and is_transient(error.__cause__)
    if isinstance(error, asyncpg.InterfaceError):
        return "closed" in str(error)
    return isinstance(error, TRANSIENT)


def explain(error: BaseException, label: str) -> DatabaseError:
    """The sentence for a fault of the database called ``label``; the original error is its ``__cause__``."""
    if isinstance(error, DatabaseError):
        return error
    explained = DatabaseError(redact(_sentence(error, label)))
    explained.__cause__ = error
    return explained


def _sentence(error: BaseException, label: str) -> str:
    said = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    match error:
        case asyncpg.InvalidPasswordError() | asyncpg.InvalidAuthorizationSpecificationError():
            return f"The database {label} refused the login: check user and password in DATABASE_URL ({said})."
        case asyncpg.InvalidCatalogNameError():
            return f"There is no such database at {label}: check the name at the end of DATABASE_URL ({said})."
        case asyncpg.UndefinedTableError() | asyncpg.UndefinedColumnError() | asyncpg.InvalidSchemaNameError():
            return (
                f"The database {label} lacks what is needed ({said}): is it the game's? "
                "`scripts/run_migrations.py` adds Hindsight's own tables."
            )
        case asyncpg.InsufficientPrivilegeError() | asyncpg.ReadOnlySQLTransactionError():
            return f"The role in DATABASE_URL may not do this at {label} ({said}): grant it, or use another role."
        case asyncpg.TooManyConnectionsError():
            return f"The database {label} has no free connection: close some, or set connection_limit in DATABASE_URL."
        case asyncpg.QueryCanceledError():
            return f"A statement at {label} took too long and was stopped: raise --statement-timeout ({said})."
        case asyncpg.CannotConnectNowError() | asyncpg.AdminShutdownError() | asyncpg.CrashShutdownError():
            return f"The database {label} is starting or stopping: try again in a moment ({said})."
        case ssl.SSLError():
            return f"No TLS connection to {label} ({said}): check sslmode and sslrootcert in DATABASE_URL."
        case socket.gaierror():
            return f"The host of {label} is not known: check DATABASE_URL."
        case TimeoutError():
            return (
                f"The database {label} did not answer in time: check host, port and firewall in DATABASE_URL, "
                "or raise --statement-timeout."
            )
        case OSError():
            return f"The database {label} cannot be reached ({said}): is it running, and are host and port right?"
        case _:
            return f"The database {label} failed ({type(error).__name__}: {said})."
