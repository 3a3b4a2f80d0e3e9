"""Where the prompts of a checkpoint's releases come from, and which prompts its training data was made with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from data_bridge.agent_prompts import prompts_used
from data_bridge.database import Database
from data_bridge.lookup import read_trajectories
from data_bridge.quality import Rules
from trainer.ledger.prompts import MOST_KNOWN, PromptRow, find_prompt, list_prompts, prompts_of
from trainer.ledger.releases import history
from trainer.types import Checkpoint

OWN = "the game's own"
_LONGEST = 100


@dataclass(frozen=True, slots=True)
class ReleasedPrompt:
    prompt_version: str
    role: str
    ancestors: tuple[PromptRow, ...]
    """The prompt itself first, then what it was made of."""


@dataclass(frozen=True, slots=True)
class PromptStory:
    released: tuple[ReleasedPrompt, ...]
    """With this checkpoint, in the order of the releases."""
    used: dict[str, int]
    """Trajectories by the prompt that their messages begin with; empty if no prompt was ever kept."""


async def prompt_story(database: Database, checkpoint: Checkpoint, trajectory_ids: Sequence[str]) -> PromptStory:
    past = [one for one in await history(database, checkpoint.model) if one.checkpoint.step == checkpoint.step]
    versions = dict.fromkeys(one.prompt_version for one in reversed(past) if one.prompt_version)
    released = [
        ReleasedPrompt(version, role, await _ancestors(database, one))
        for version in versions
        for role, one in (await prompts_of(database.pool, version)).items()
    ]
    templates = {one.prompt_id: one.template for one in await list_prompts(database.pool, limit=MOST_KNOWN)}
    used: Counter[str] = Counter()
    if templates and trajectory_ids:
        async for trajectory in read_trajectories(database, list(trajectory_ids), Rules().max_bytes):
            used.update(one or OWN for one in prompts_used(trajectory, templates.values()))
    return PromptStory(tuple(released), dict(used))


async def _ancestors(database: Database, prompt: PromptRow) -> tuple[PromptRow, ...]:
    found = [prompt]
    while found[-1].parent is not None and len(found) < _LONGEST:
        parent = await find_prompt(database.pool, found[-1].parent, prompt.role)
        if parent is None or parent in found:
            break
        found.append(parent)
    return tuple(found)
