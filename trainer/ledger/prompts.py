"""Prompt versions: texts with where they come from, and which of them a release gives to agents of which role.

A prompt's id is a digest of its text, and a version's name one of its prompts, so that storing either twice is storing
it once, and neither ever changes its meaning.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from data_bridge.agent_prompts import AgentTemplate, TemplateExample
from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from data_bridge.redaction import redact

LONGEST_TEXT = 100_000
MOST_KNOWN = 1000
"""Prompts that are looked for in a log: the latest."""


@dataclass(frozen=True, slots=True)
class NewPrompt:
    """A prompt that passed its checks. ``template`` is the text as agents get it."""

    prompt_id: str
    role: str
    text: str
    template: AgentTemplate
    parent: str | None = None
    mutation: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    made_by: str = "operator"


@dataclass(frozen=True, slots=True)
class PromptRow(NewPrompt):
    made_at: datetime = datetime.min


async def keep_prompt(source: Any, new: NewPrompt) -> bool:
    """Whether it is new. What was measured of it is added to what is known."""
    if "\x00" in new.text or len(new.text) > LONGEST_TEXT:
        raise ConfigurationError(f"A prompt has at most {LONGEST_TEXT} characters, and none that cannot be stored.")
    return bool(
        await source.fetchval(
            "INSERT INTO hindsight.prompts AS p (prompt_id, role, text, system, examples, variables, parent, mutation,"
            " evidence, made_by) VALUES ($1, $2, $3, $4, $5::jsonb, $6, $7, $8, $9::jsonb, $10)"
            " ON CONFLICT (prompt_id, role) DO UPDATE SET evidence = p.evidence || EXCLUDED.evidence"
            " RETURNING (xmax = 0)",
            *(new.prompt_id, new.role, new.text, new.template.system),
            msgspec.json.encode(new.template.examples).decode(),
            *(list(new.template.variables), new.parent, new.mutation),
            *(redact(msgspec.json.encode(dict(new.evidence)).decode()), new.made_by),
        )
    )


_COLUMNS = (
    "p.prompt_id, p.role, p.text, p.system, p.examples::text, p.variables, p.parent, p.mutation, p.evidence::text,"
    " p.made_by, p.made_at"
)


def _prompt(row: Any) -> PromptRow:
    examples = msgspec.json.decode(row["examples"], type=tuple[TemplateExample, ...])
    return PromptRow(
        row["prompt_id"],
        row["role"],
        row["text"],
        AgentTemplate(row["prompt_id"], row["system"], examples, tuple(row["variables"])),
        row["parent"],
        row["mutation"],
        msgspec.json.decode(row["evidence"]),
        row["made_by"],
        row["made_at"],
    )


async def find_prompt(source: Any, prompt_id: str, role: str | None = None) -> PromptRow | None:
    """By its id or a beginning of it that means one; of ``role``, or of any."""
    rows = await source.fetch(
        f"SELECT {_COLUMNS} FROM hindsight.prompts p WHERE starts_with(p.prompt_id, $1)"
        " AND ($2::text IS NULL OR p.role = $2) ORDER BY p.prompt_id, p.role",
        *(prompt_id, role),
    )
    return _prompt(rows[0]) if len({row["prompt_id"] for row in rows}) == 1 else None


async def list_prompts(source: Any, *, role: str | None = None, limit: int = 100) -> list[PromptRow]:
    """The latest first."""
    query = (
        f"SELECT {_COLUMNS} FROM hindsight.prompts p WHERE $1::text IS NULL OR p.role = $1"
        " ORDER BY p.made_at DESC, p.prompt_id LIMIT $2"
    )
    try:
        rows = await source.fetch(query, role, limit)
    except (
        asyncpg.UndefinedTableError
    ):  # a database of an earlier version, which a command that only reads leaves as it is
        return []
    return [_prompt(row) for row in rows]


# What a release's prompt version means


def version_name(prompts: Mapping[str, str]) -> str:
    """The name of the version that gives these prompts (ids) to these roles; empty for none."""
    if not prompts:
        return ""
    said = "\x1f".join(f"{role}\x1e{prompts[role]}" for role in sorted(prompts))
    return f"prompts-{hashlib.blake2b(said.encode(), digest_size=6).hexdigest()}"


async def keep_version(database: Database, prompts: Mapping[str, str]) -> str:
    """Its name. The prompts are stored before."""
    name = version_name(prompts)
    async with database.pool.acquire() as connection, connection.transaction():
        await connection.executemany(
            "INSERT INTO hindsight.prompt_versions (prompt_version, role, prompt_id) VALUES ($1, $2, $3)"
            " ON CONFLICT DO NOTHING",
            [(name, role, prompt_id) for role, prompt_id in prompts.items()],
        )
    return name


async def prompts_of(source: Any, prompt_version: str) -> dict[str, PromptRow]:
    """The prompt of each role; of none if the version is empty. ConfigurationError if it is unknown."""
    if not prompt_version:
        return {}
    rows = await source.fetch(
        f"SELECT {_COLUMNS} FROM hindsight.prompt_versions v JOIN hindsight.prompts p USING (prompt_id, role)"
        " WHERE v.prompt_version = $1 ORDER BY p.role",
        prompt_version,
    )
    if not rows:
        raise ConfigurationError(f"There is no prompt version {prompt_version!r}.")
    return {row["role"]: _prompt(row) for row in rows}


def for_role(prompts: Mapping[str, PromptRow], role: str | None) -> PromptRow | None:
    """The prompt of this role, else the one of every role."""
    return prompts.get(role or "") or prompts.get("")


async def versions_with(source: Any, prompt_id: str) -> list[str]:
    rows = await source.fetch(
        "SELECT prompt_version FROM hindsight.prompt_versions WHERE prompt_id = $1 ORDER BY prompt_version", prompt_id
    )
    return [row["prompt_version"] for row in rows]


async def learnt_until(source: Any) -> datetime | None:
    """The end of the newest window that any prompt was learnt on; None before the first."""
    found = await source.fetchval("SELECT max((evidence ->> 'learnt_until')::timestamptz) FROM hindsight.prompts")
    return None if found is None else datetime.fromisoformat(str(found))
