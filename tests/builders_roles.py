"""The documented roles on a real Postgres: the files under deploy/postgres run as written, and fresh logins in them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from data_bridge.embedded import EmbeddedServer
from tests.conftest import in_own_loop

POSTGRES = Path(__file__).resolve().parents[1] / "deploy" / "postgres"
ROLES = POSTGRES / "roles.sql"
ROW_LEVEL_SECURITY = POSTGRES / "row_level_security.sql"


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def attack(url: str, statement: str, *arguments: Any) -> None:
    """The statement as the role of ``url``; raises what Postgres says to it."""
    async with connected(url) as connection:
        await connection.execute(statement, *arguments)


def name_of(url: str) -> str:
    """The role in ``url``."""
    return url.removeprefix("postgresql://").partition("@")[0]


@dataclass(frozen=True)
class RolesServer:
    """A migrated database whose owner ran the documented files."""

    url: str
    admin_url: str
    logins: list[str] = field(default_factory=list)

    def owner(self) -> Any:
        return connected(self.url)

    def login(self, group: str) -> str:
        """The URL of a fresh role that is a member of ``group`` and nothing else."""
        name = f"login_{uuid.uuid4().hex[:12]}"
        in_own_loop(lambda: attack(self.admin_url, f"CREATE ROLE {name} LOGIN IN ROLE {group}"))
        self.logins.append(name)
        return self.url.replace("postgres@", f"{name}@")

    async def run(self, *files: Path, url: str | None = None) -> None:
        """Run ``files`` one after the other. Roles are the whole server's: other workers wait."""
        async with connected(self.admin_url) as admin, connected(url or self.url) as owner:
            await admin.execute("SELECT pg_advisory_lock(2)")
            for file in files:
                await owner.execute(file.read_text())


@contextmanager
def documented_roles(postgres: EmbeddedServer, database_url: str) -> Iterator[RolesServer]:
    server = RolesServer(database_url, postgres.url())
    in_own_loop(lambda: server.run(ROLES, ROW_LEVEL_SECURITY))
    yield server
    for name in server.logins:
        in_own_loop(lambda name=name: attack(database_url, f"DROP OWNED BY {name}; DROP ROLE {name}"))  # type: ignore[misc]
