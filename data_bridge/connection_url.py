"""Converts ``DATABASE_URL``, as teams really write it, into arguments that asyncpg understands.

The game's URL is written for Prisma: we use some of its parameters (``schema``, ``pgbouncer``, ``connection_limit``)
and translate those for TLS. The others concern only Prisma and are dropped; asyncpg would send them to the server,
which would refuse the connection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote

from data_bridge.errors import DatabaseError
from data_bridge.redaction import register_secret

_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_TLS_MODES = frozenset({"disable", "allow", "prefer", "require", "verify-ca", "verify-full"})
_POOLED_HOST = re.compile(r"(-pooler\.|\.pooler\.|pgbouncer)", re.IGNORECASE)
_POOLER_PORTS = frozenset({6432, 6543})


@dataclass(frozen=True, slots=True)
class ConnectionUrl:
    """Where the database is and how to connect to it. Neither ``repr`` nor ``label`` shows ``password``."""

    hosts: tuple[str, ...]
    """Host names, addresses, or the folder of a Unix socket. Empty: the defaults of the Postgres client."""
    ports: tuple[int, ...]
    """One for each host."""
    user: str | None
    password: str | None = field(repr=False)
    database: str | None
    schema: str | None = None
    """The schema of the game's tables, if it is not ``public``."""
    is_pooled: bool = False
    """Behind a pooler in transaction mode: nothing outlives a transaction."""
    max_connections: int | None = None
    connect_timeout: float | None = None
    tls_mode: str | None = None
    tls_files: tuple[tuple[str, str], ...] = ()
    """``sslrootcert``, ``sslcert``, ``sslkey``, ``sslcrl``, ``sslpassword`` as given."""
    options: str | None = None
    """Postgres' own ``options`` parameter, e.g. Neon's endpoint."""

    @property
    def label(self) -> str:
        """For messages: host, port and database, no user and no password."""
        where = ",".join(
            f"{h}:{p}" if not h.startswith("/") else h for h, p in zip(self.hosts, self.ports, strict=True)
        )
        return f"{where or 'the local Postgres'}/{self.database or ''}".rstrip("/")


def parse_connection_url(url: str) -> ConnectionUrl:
    """Parse ``url`` and register its password as a secret. DatabaseError, without the URL, if it is not valid."""
    match = _URL.fullmatch(url.strip().strip("'\""))
    scheme = match["scheme"].lower().partition("+")[0] if match else ""
    if match is None or scheme not in ("postgres", "postgresql"):
        if scheme == "prisma":
            raise DatabaseError(
                "DATABASE_URL is a Prisma Accelerate address: use the direct postgresql:// URL of the database."
            )
        raise DatabaseError(
            "DATABASE_URL is not a Postgres address: write postgresql://USER:PASSWORD@HOST:PORT/DATABASE."
        )
    rest, _, query = match["rest"].partition("?")
    credentials, _, location = rest.rpartition("@")  # an @ that was not encoded belongs to the password
    user, _, password = credentials.partition(":")
    register_secret(unquote(password))
    address, _, database = location.partition("/")
    values = {key.lower(): value for key, value in parse_qsl(query.partition("#")[0], keep_blank_values=True)}
    register_secret(values.get("password"))
    register_secret(values.get("sslpassword"))

    hosts, ports = _split_hosts(values.get("host") or unquote(address), values.get("port"))
    is_pooled = values.get("pgbouncer", "").lower() in ("true", "1", "yes") or any(
        _POOLED_HOST.search(host) for host in hosts
    )
    return ConnectionUrl(
        hosts=hosts,
        ports=ports,
        user=unquote(user) or values.get("user"),
        password=unquote(password) or values.get("password"),
        database=unquote(database) or values.get("dbname") or values.get("database"),
        schema=values["schema"] if values.get("schema", "public") not in ("public", "") else None,
        is_pooled=is_pooled or bool(_POOLER_PORTS.intersection(ports)),
        max_connections=_positive(values, "connection_limit"),
        connect_timeout=_positive(values, "connect_timeout"),
        tls_mode=_tls_mode(values),
        tls_files=_tls_files(values),
        options=values.get("options") or None,
    )


def _split_hosts(address: str, port: str | None) -> tuple[tuple[str, ...], tuple[int, ...]]:
    hosts, ports = [], []
    given = (port or "").split(",")
    for index, part in enumerate(address.split(",") if address else []):
        if part.startswith("/"):
            host, own = part, ""
        elif part.startswith("["):
            host, _, own = part[1:].partition("]")
            own = own.removeprefix(":")
        else:
            host, _, own = part.partition(":")
        number = own or (given[index] if index < len(given) else given[-1]) or "5432"
        if not number.isdecimal() or not 0 < int(number) < 65536:
            raise DatabaseError(
                "DATABASE_URL has no valid port: percent-encode special characters of the password "
                "(/ is %2F, ? is %3F, # is %23), and write HOST:PORT."
            )
        hosts.append(host)
        ports.append(int(number))
    return tuple(hosts), tuple(ports)


def _tls_mode(values: dict[str, str]) -> str | None:
    mode = values.get("sslmode") or values.get("ssl")
    if mode in (None, "", "false"):
        return None
    if mode in ("true", "1", "no-verify"):
        mode = "require"
    if mode not in _TLS_MODES:
        raise DatabaseError(f"sslmode in DATABASE_URL must be one of {', '.join(sorted(_TLS_MODES))}.")
    # Prisma: `sslaccept=strict` makes `require` verify the certificate.
    return "verify-full" if mode == "require" and values.get("sslaccept") == "strict" else mode


def _tls_files(values: dict[str, str]) -> tuple[tuple[str, str], ...]:
    files = {
        key: values[key] for key in ("sslrootcert", "sslcert", "sslkey", "sslcrl", "sslpassword") if values.get(key)
    }
    if "sslcert" in files and "sslkey" not in files:
        # For Prisma `sslcert` is the authority; for Postgres it is the client's own certificate, which has a key.
        files.setdefault("sslrootcert", files.pop("sslcert"))
    return tuple(files.items())


def _positive(values: dict[str, str], key: str) -> int | None:
    value = values.get(key, "")
    return int(value) if value.isdecimal() and int(value) > 0 else None
