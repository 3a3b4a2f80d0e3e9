"""The page of prompts: versions with a word diff and their evidence, what the policy did and would do, release and
rollback."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from starlette.responses import Response

from data_bridge.errors import HindsightError
from trainer.console.policy_bodies import ACTIONS
from trainer.console.problems import Refused
from trainer.console.prompt_api import PROMPT_ID, PromptEntry, entry_of, release_prompt_to
from trainer.console.release_api import roll_back_to
from trainer.console.services import audited
from trainer.console.visits import Shown, Visit
from trainer.ledger.policy import policy_counts
from trainer.ledger.prompts import find_prompt, list_prompts, prompts_of
from trainer.ledger.read.word_diff import DiffPart, word_diff
from trainer.ledger.releases import read_from_database
from trainer.run.policy_desk import NAME


@dataclass(frozen=True, slots=True)
class ShownPrompt:
    entry: PromptEntry
    state: str
    """``serving`` or ``canary`` if agents are given it; ``kept`` otherwise."""
    diff: list[DiffPart]
    """Against its parent; the whole text if that is not known."""
    evidence: list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ActionCount:
    name: str
    number: int
    percent: int


@dataclass(frozen=True, slots=True)
class ActionChance:
    name: str
    applies: bool
    percent: float


@dataclass(frozen=True, slots=True)
class Chances:
    """What the policy would do to one prompt, or why that cannot be said now."""

    prompt_id: str
    version: int
    actions: list[ActionChance]
    problem: str = ""


async def chances_for(visit: Visit, prompt_id: str) -> Chances:
    """Refused (422, 404) for what is no prompt."""
    if re.search(PROMPT_ID, prompt_id) is None:
        raise Refused(422, "Name a prompt.")
    prompt = await find_prompt(visit.services.database.pool, prompt_id)
    if prompt is None:
        raise Refused(404, f"There is no prompt {prompt_id!r}.")
    desk = visit.services.policy
    try:
        state = await desk.state_of(prompt.text)
        version, selected = await desk.select(state, deterministic=True, seed=None)
    except HindsightError as error:
        return Chances(prompt_id, 0, [], str(error))
    shares = zip(ACTIONS, state.mask, selected.probabilities, strict=True)
    return Chances(prompt_id, version, [ActionChance(name, ok, round(100 * chance, 1)) for name, ok, chance in shares])


async def prompts_page(visit: Visit) -> Response:
    database = visit.services.database
    pointer = await read_from_database(database, visit.model)
    given = {"serving": pointer.serving, "canary": None if pointer.canary is None else pointer.canary.promotion}
    states: dict[tuple[str, str], str] = {}
    for state, promotion in given.items():
        if promotion is not None:
            used = await prompts_of(database.pool, promotion.prompt_version)
            states |= {(one.prompt_id, role): state for role, one in used.items()}
    found = await list_prompts(database.pool, limit=100)
    texts = {one.prompt_id: one.text for one in found}
    counts = await policy_counts(database, NAME)
    most = max(counts.received, 1)
    actions = [
        ActionCount(name, counts.by_action.get(action, 0), round(100 * counts.by_action.get(action, 0) / most))
        for action, name in enumerate(ACTIONS)
    ]
    shown = [
        ShownPrompt(
            entry_of(one),
            states.get((one.prompt_id, one.role), "kept"),
            word_diff(texts[one.parent], one.text) if one.parent in texts else [DiffPart("same", one.text)],
            [(str(name), str(value)) for name, value in one.evidence.items()],
        )
        for one in found
    ]
    asked = visit.request.query_params.get("prompt", "")
    chances = await chances_for(visit, asked) if asked else None
    return visit.page("prompts", "Prompts", prompts=shown, counts=counts, actions=actions, given=given, chances=chances)


def _asked(form: Mapping[str, str]) -> tuple[str, str, str]:
    """The prompt, its role and the reason."""
    prompt_id, role, reason = form.get("prompt", ""), form.get("role", ""), form.get("reason", "")[:500]
    if re.search(PROMPT_ID, prompt_id) is None:
        raise Refused(422, "Name a prompt.")
    if not reason:
        raise Refused(422, "Say why: the reason is kept with the release.")
    return prompt_id, role, reason


async def release_form(visit: Visit) -> Response:
    form = await visit.form()
    prompt_id, role, reason = _asked(form)
    force = form.get("force") == "yes"
    deed = f"promote a prompt{' by force' if force else ''}"
    async with audited(visit.services, visit.caller, visit.request, deed, prompt_id, reason):
        await release_prompt_to(visit.services, prompt_id, role, reason=reason, force=force)
    return visit.back("/prompts", "promoted")


async def rollback_form(visit: Visit) -> Response:
    reason = (await visit.form()).get("reason", "")[:500]
    if not reason:
        raise Refused(422, "Say why: the reason is kept with the release.")
    async with audited(visit.services, visit.caller, visit.request, "roll back", visit.model, reason):
        await roll_back_to(visit.services, None, visit.model, reason=reason)
    return visit.back("/prompts", "rolled-back")


PAGES: Mapping[str, Shown] = {"/prompts": prompts_page}
FORMS: Mapping[str, Shown] = {"/prompts/release": release_form, "/prompts/rollback": rollback_form}
