"""A prompt on its way to agents: checked, put to the gate against what they use, with random mutation as a control, and
released with the weights and lessons that they have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from data_bridge.agent_prompts import AgentTemplate, TemplateExample
from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from trainer.config.prompt_commands import PromptsCommand
from trainer.config.prompts import ConsolePrompts, PromptLimits
from trainer.config.training import AddressSettings, GateSettings
from trainer.evidence import Ruling
from trainer.ledger.checkpoints import find_checkpoint
from trainer.ledger.evaluations import keep_ruling
from trainer.ledger.prompts import NewPrompt, PromptRow, find_prompt, keep_prompt, keep_version, prompts_of
from trainer.ledger.releases import Promotion, incumbent_of, serving
from trainer.pipeline import Considered, evaluate
from trainer.promote.publish import IncumbentChanged, publish
from trainer.promote.ruling import rule_on
from trainer.prompts.arena import WritesMutation
from trainer.prompts.experience import KEEP, MUTATIONS
from trainer.prompts.material import PromptMaterial
from trainer.prompts.mutations import applicable, broken_promise, mutate
from trainer.prompts.structure import StructuredPrompt, parse
from trainer.run.promotion import promote_release_of
from trainer.types import release_of


def new_prompt(
    prompt: StructuredPrompt,
    role: str,
    limits: ConsolePrompts,
    *,
    parent: StructuredPrompt | None = None,
    mutation: str = "",
    evidence: Mapping[str, Any] | None = None,
    made_by: str = "operator",
    material: PromptMaterial | None = None,
) -> NewPrompt:
    """``prompt`` as the ledger keeps it. ConfigurationError if it is empty or too long, or breaks what its parent
    holds."""
    if not prompt.system:
        raise ConfigurationError("A prompt needs a text besides its examples.")
    if len(prompt.text) > limits.max_prompt_chars:
        raise ConfigurationError(
            f"The prompt has {len(prompt.text)} characters, more than --max-prompt-chars {limits.max_prompt_chars}."
        )
    if parent is not None and (why := broken_promise(parent, prompt, material or PromptMaterial(), limits)) is not None:
        raise ConfigurationError(f"The prompt cannot take the place of {parent.prompt_id}: {why}.")
    return NewPrompt(
        prompt.prompt_id,
        role,
        prompt.text,
        template_of(prompt),
        None if parent is None or parent.prompt_id == prompt.prompt_id else parent.prompt_id,
        mutation,
        evidence or {},
        made_by,
    )


def template_of(prompt: StructuredPrompt) -> AgentTemplate:
    examples = tuple(TemplateExample(one.user, one.assistant) for one in prompt.examples)
    return AgentTemplate(prompt.prompt_id, prompt.system, examples, prompt.variables)


async def version_with(database: Database, used: str, prompt: PromptRow) -> str:
    """The prompt version that ``used`` becomes with ``prompt`` for its role."""
    known = {role: one.prompt_id for role, one in (await prompts_of(database.pool, used)).items()}
    return await keep_version(database, known | {prompt.role: prompt.prompt_id})


async def release_prompt(
    database: Database,
    home: Path,
    prompt: PromptRow,
    model: str,
    gate: GateSettings,
    addresses: AddressSettings,
    *,
    reason: str | None,
    force: bool,
    canary: float | None = None,
) -> Promotion:
    """Give ``prompt`` to the agents of its role, beside what they use, by the evidence that is stored."""
    now = await serving(database, model)
    version = await version_with(database, "" if now is None else now.prompt_version, prompt)
    checkpoint = await find_checkpoint(database, model, 0) if now is None else now.checkpoint
    release = release_of(checkpoint, None if now is None else now.release, prompts=version)
    first = f"prompts.py gate {prompt.prompt_id}{f' --role {prompt.role}' if prompt.role else ''}"
    return await promote_release_of(
        database, home, release, now, gate, addresses, first=first, reason=reason, force=force, canary=canary
    )


def random_mutations(parent: StructuredPrompt, limits: ConsolePrompts, material: PromptMaterial) -> list[AgentTemplate]:
    """Everything that random mutation would make of ``parent``, each as likely as any other."""
    allowed = applicable(parent, material, limits)
    names = [name for action, name in enumerate(MUTATIONS) if action != KEEP and allowed[action]]
    return [template_of(mutate(parent, name, material, limits).prompt) for name in names]


async def gate_prompt(
    database: Database,
    settings: PromptsCommand,
    prompt: PromptRow,
    material: PromptMaterial,
    *,
    say: Callable[[str], None],
) -> Considered:
    """Compare what the agents use with and without ``prompt`` on evaluation windows, ask the gate, and release it if it
    passes. The control beside it is a random mutation of the prompt that it would replace."""
    model = settings.model.model
    used = await incumbent_of(database, model)
    version = await version_with(database, "" if used is None else used.prompt_version, prompt)
    checkpoint = await find_checkpoint(database, model, 0) if used is None else used.checkpoint
    candidate = release_of(checkpoint, used, prompts=version)
    if used is not None and candidate.identity == used.identity:
        raise ConfigurationError(f"The agents already use {prompt.prompt_id}: choose another prompt.")
    parent = await _replaced(database, used.prompt_version if used is not None else "", prompt)
    control = random_mutations(parse(parent.text), settings.limits, material)
    evaluation = await evaluate(
        database, settings, candidate, used, run_id=None, random_prompts={prompt.role: control}, say=say
    )
    decision = await rule_on(database, evaluation, settings.gate)
    promotion = None
    if decision.ruling is Ruling.PROMOTE:
        try:
            promotion = await publish(
                database,
                settings.common.home,
                candidate,
                candidate.checkpoint.served_at(settings.promotion),
                reason=decision.sentence,
                evaluation=evaluation,
                canary=settings.promotion.canary,
            )
        except IncumbentChanged:
            changed = ("the incumbent changed during the evaluation; put the prompt to the gate again",)
            decision = replace(decision, ruling=Ruling.UNDECIDED, reasons=changed, expected_gain=None)
            await keep_ruling(database.pool, evaluation, decision)
    return Considered(evaluation, decision, promotion)


async def _replaced(database: Database, used: str, prompt: PromptRow) -> PromptRow:
    """The prompt that ``prompt`` would replace: the released one of its role, else its parent, else itself."""
    current = (await prompts_of(database.pool, used)).get(prompt.role)
    if current is None and prompt.parent is not None:
        current = await find_prompt(database.pool, prompt.parent, prompt.role)
    return current or prompt


async def keep_mutation(
    database: Database,
    prompt: PromptRow,
    mutation: str,
    material: PromptMaterial,
    limits: PromptLimits,
    writer: WritesMutation | None = None,
) -> tuple[PromptRow, bool]:
    """``prompt`` after ``mutation``, stored, and whether it is new. Written by the model if there is one and what it
    wrote may be used, else by the operator."""
    parent = parse(prompt.text)
    written = None
    if writer is not None and mutation in MUTATIONS and mutation != MUTATIONS[KEEP]:
        written = await writer.write(parent, mutation, material, limits)
    made = written or mutate(parent, mutation, material, limits)
    new = new_prompt(
        made.prompt,
        prompt.role,
        limits,
        parent=parent,
        mutation=mutation,
        made_by=made.written_by,
        material=material,
    )
    is_new = await keep_prompt(database.pool, new)
    found = await find_prompt(database.pool, new.prompt_id, new.role)
    assert found is not None
    return found, is_new
