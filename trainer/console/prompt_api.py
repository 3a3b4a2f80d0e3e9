"""Prompts over the API: which one an agent is to use now, which there are, and giving one to the agents."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pydantic import BaseModel, ConfigDict, Field

from data_bridge.redaction import page_text, redacted
from trainer.console.ingest_api import NAME
from trainer.console.memory_api import own_agent
from trainer.console.operations import TEXT, Incoming, Operation
from trainer.console.problems import Refused
from trainer.console.release_api import REASON, ReleaseDeed, deed_of
from trainer.console.services import Services, audited
from trainer.ledger.prompts import PromptRow, find_prompt, for_role, list_prompts, prompts_of
from trainer.ledger.releases import Promotion, read_from_database

PROMPT_ID = r"^p-[0-9a-f]{16}$"


class CurrentQuery(BaseModel):
    """Who is about to decide."""

    model_config = ConfigDict(extra="forbid")

    agent_id: str = Field(pattern=NAME)
    role: str = Field(default="", max_length=100, pattern=TEXT)


@dataclass(frozen=True, slots=True)
class PromptTurns:
    user: str
    assistant: str


@dataclass(frozen=True, slots=True)
class CurrentPrompt:
    """The prompt that an agent of a role is to use now, by the release that it was given."""

    role: str
    prompt_id: str
    """Empty: the game's own prompt is to be used."""
    text: str | None
    system: str | None
    """With ``{variable}`` marks which the game fills in."""
    examples: list[PromptTurns]
    variables: list[str]
    prompt_version: str
    release: str | None
    """Null before the first promotion."""


async def current_prompt(asked: Incoming) -> CurrentPrompt:
    query: CurrentQuery = asked.query
    agent_id, database = own_agent(asked.caller, query.agent_id), asked.services.database
    used = (await read_from_database(database, asked.services.model)).for_agent(agent_id)
    version, release = ("", None) if used is None else (used.prompt_version, used.release.name)
    found = for_role(await prompts_of(database.pool, version), query.role)
    if found is None:
        return CurrentPrompt(query.role, "", None, None, [], [], version, release)
    template = found.template
    turns = [PromptTurns(one.user, one.assistant) for one in template.examples]
    named = (query.role, found.prompt_id, found.text, template.system, turns, list(template.variables))
    return CurrentPrompt(*named, version, release)


@dataclass(frozen=True, slots=True)
class PromptEntry:
    prompt_id: str
    role: str
    text: str
    parent: str | None
    mutation: str
    gain: float | None
    """Judged score minus its parent's, where it was measured on training windows."""
    made_by: str
    made_at: datetime


@dataclass(frozen=True, slots=True)
class PromptList:
    entries: list[PromptEntry]


def entry_of(one: PromptRow) -> PromptEntry:
    gain = one.evidence.get("gain")
    made = (one.made_by, one.made_at)
    where = (one.prompt_id, one.role, one.text, one.parent, one.mutation)
    return PromptEntry(*where, float(gain) if isinstance(gain, int | float) else None, *made)


async def get_prompts(asked: Incoming) -> PromptList:
    found = await list_prompts(asked.services.database.pool)
    return PromptList(redacted([entry_of(one) for one in found], page_text))


class ReleaseBody(BaseModel):
    model_config = ConfigDict(extra="forbid")

    reason: str = REASON
    role: str = Field(default="", max_length=100, pattern=TEXT, description="Whose prompt it is to be.")
    force: bool = Field(default=False, description="Against the gate, or without evidence; recorded.")
    canary: float | None = Field(default=None, gt=0, lt=1, description="To this share of the agents first.")


async def release_prompt_to(
    services: Services, prompt_id: str, role: str, *, reason: str, force: bool, canary: float | None = None
) -> Promotion:
    """Refused (404) if there is no such prompt."""
    from trainer.run.prompt_release import release_prompt

    found = await find_prompt(services.database.pool, prompt_id, role)
    if found is None:
        raise Refused(404, f"There is no prompt {prompt_id!r} of that role.")
    return await release_prompt(
        services.database,
        services.home,
        found,
        services.model,
        services.gate,
        services.addresses,
        reason=reason,
        force=force,
        canary=canary,
    )


async def promote_prompt(asked: Incoming) -> ReleaseDeed:
    prompt_id, body = asked.part("prompt_id"), asked.body
    deed = "promote a prompt by force" if body.force else "promote a prompt"
    async with audited(asked.services, asked.caller, asked.request, deed, prompt_id, body.reason):
        done = await release_prompt_to(
            asked.services, prompt_id, body.role, reason=body.reason, force=body.force, canary=body.canary
        )
    return deed_of(done)


OPERATIONS = (
    Operation(
        "GET",
        "/prompts/current",
        "The prompt that an agent is to use, by the release that it was given",
        current_prompt,
        CurrentPrompt,
        query=CurrentQuery,
        key="ingest",
        problems=(403,),
    ),
    Operation("GET", "/prompts", "Prompts, the latest first", get_prompts, PromptList),
    Operation(
        "POST",
        "/prompts/{prompt_id}/promote",
        "Give a prompt to all agents of its role, if the gate's evidence allows it",
        promote_prompt,
        ReleaseDeed,
        body=ReleaseBody,
        acts=True,
        problems=(404, 409),
        parts={"prompt_id": PROMPT_ID},
    ),
)
