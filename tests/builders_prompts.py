"""Prompts for tests: a parent and a child of it, whatever their words."""

from __future__ import annotations

from data_bridge.database import Database
from trainer.config.prompts import ConsolePrompts
from trainer.ledger.prompts import PromptRow, find_prompt, keep_prompt
from trainer.prompts.structure import StructuredPrompt, parse
from trainer.run.prompt_release import new_prompt


async def kept_prompt(
    database: Database, text: str, role: str = "", *, parent: StructuredPrompt | None = None, mutation: str = ""
) -> PromptRow:
    evidence = {"gain": 0.25} if parent is not None else {}
    new = new_prompt(
        parse(text), role, ConsolePrompts(), parent=parent, mutation=mutation, evidence=evidence, made_by="policy"
    )
    await keep_prompt(database.pool, new)
    found = await find_prompt(database.pool, new.prompt_id, role)
    assert found is not None
    return found


async def record_prompts(database: Database, *, words: str) -> tuple[PromptRow, PromptRow]:
    """A prompt with these words, and one that says more."""
    first = await kept_prompt(database, f"Trade on the news. {words}\n", words[:20])
    second = await kept_prompt(
        database, f"{first.text}\n## Rules\n- {words}\n", first.role, parent=parse(first.text), mutation="expansion"
    )
    return first, second
