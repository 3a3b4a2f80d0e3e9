"""The five mutations and *keep*, as deterministic operators on a structured prompt, with what every result must hold.

An operator that would change nothing, or whose result would break a promise, does not apply: it is masked. A result
keeps the game's variables and its output format and is not longer than the limit; ``broken_promise`` checks that for
whatever wrote it, an operator or a model.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from data_bridge.errors import ConfigurationError
from trainer.config.prompts import ConsolePrompts
from trainer.prompts.experience import MUTATIONS
from trainer.prompts.material import PromptMaterial
from trainer.prompts.structure import Part, PromptPart, StructuredPrompt

MOST_EXAMPLES = 4
_MOST_LINES = 8
_SENTENCES = re.compile(r"(?<=[.!?])\s+")
_CLAUSES = re.compile(
    r"(?:[;,]\s*|\s+)(?:and\s+)?then\s+|;\s*|,\s+and\s+|\s+and\s+(?=[a-z]+\s+(?:the|it|a|an|your|how)\b)"
)
_LAST = re.compile(r"^(?:finally|at the end|last)[, ]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Mutated:
    """A prompt after a mutation."""

    prompt: StructuredPrompt
    mutation: str
    written_by: str = "operator"
    """``operator``, or the model that wrote it."""


def applicable(prompt: StructuredPrompt, material: PromptMaterial, limits: ConsolePrompts) -> tuple[bool, ...]:
    """Which mutations apply, in the order of ``MUTATIONS``; *keep* always does."""
    return tuple(_candidate(prompt, name, material, limits) is not None for name in MUTATIONS)


def mutate(prompt: StructuredPrompt, mutation: str, material: PromptMaterial, limits: ConsolePrompts) -> Mutated:
    """``prompt`` after ``mutation``. ConfigurationError if it is unknown or does not apply."""
    if mutation not in MUTATIONS:
        raise ConfigurationError(f"There is no mutation {mutation!r}: choose one of {', '.join(MUTATIONS)}.")
    found = _candidate(prompt, mutation, material, limits)
    if found is None:
        raise ConfigurationError(f"The mutation {mutation!r} does not apply to the prompt {prompt.prompt_id}.")
    return Mutated(found, mutation)


def _candidate(
    prompt: StructuredPrompt, mutation: str, material: PromptMaterial, limits: ConsolePrompts
) -> StructuredPrompt | None:
    """None if it does not apply. Remembered, but not for prompts beyond the limit, which anybody may ask about."""
    if len(prompt.text) > limits.max_prompt_chars:
        return _operated(prompt, mutation, material, limits)
    return _known(prompt, mutation, material, limits)


def _operated(
    prompt: StructuredPrompt, mutation: str, material: PromptMaterial, limits: ConsolePrompts
) -> StructuredPrompt | None:
    if mutation == "keep":
        return prompt
    changed = OPERATORS[mutation](prompt, material)
    if changed.text == prompt.text or broken_promise(prompt, changed, material, limits) is not None:
        return None
    return changed


_known = lru_cache(maxsize=4096)(_operated)


def broken_promise(
    parent: StructuredPrompt, child: StructuredPrompt, material: PromptMaterial, limits: ConsolePrompts
) -> str | None:
    """Why ``child`` may not take the place of ``parent``; None if it may."""
    if len(child.text) > limits.max_prompt_chars:
        return f"it has {len(child.text)} characters, more than {limits.max_prompt_chars}"
    if lost := sorted(set(parent.variables) - set(child.variables)):
        return f"it lost the variable {{{lost[0]}}}"
    if new := sorted(set(child.variables) - set(parent.variables)):
        return f"it has a variable that the game does not fill in, {{{new[0]}}}"
    written = child.system
    if gone := [line for line in parent.lines_of(Part.FORMAT) if line.strip() not in written]:
        return f"it lost a line of the output format, {gone[0].strip()!r}"
    own = {one.assistant for one in parent.examples}
    wrong = [
        one.assistant for one in child.examples if one.assistant not in own and not material.accepts(one.assistant)
    ]
    if wrong:
        return f"it has an example whose reply is not in the output format, {wrong[0][:60]!r}"
    if any(material.accepts(reply) for reply in own) and not any(
        material.accepts(one.assistant) for one in child.examples
    ):
        return "it lost the examples that show the output format"
    return None


def _try_catch(prompt: StructuredPrompt, material: PromptMaterial) -> StructuredPrompt:
    """Fallbacks for what can go wrong."""
    return _with_new_lines(prompt, Part.FALLBACKS, material.fallbacks)


def _context_reduction(prompt: StructuredPrompt, material: PromptMaterial) -> StructuredPrompt:
    """Without context and repetitions: sentences that name a variable stay, as do the task, limits and format."""
    seen = set[str]()
    reduced = prompt
    for part in prompt.parts:
        if part.part is Part.EXAMPLES:
            continue
        kept = _reduced_body(part, seen)
        if kept != part.body:
            reduced = reduced.replaced(part, kept)
    return reduced


def _reduced_body(part: PromptPart, seen: set[str]) -> str:
    lines: list[str] = []
    for line in part.body.split("\n"):
        plain = " ".join(line.lower().split())
        if plain and plain in seen and "{" not in line:
            continue
        seen.add(plain)
        if part.part in (Part.CONTEXT, Part.OTHER):
            line = " ".join(one for one in _SENTENCES.split(line) if "{" in one)
        lines.append(line)
    if lines == part.body.split("\n"):
        return part.body
    return "\n".join(lines)


def _expansion(prompt: StructuredPrompt, material: PromptMaterial) -> StructuredPrompt:
    """Details and worked examples."""
    own = prompt.examples
    new = [one for one in material.examples if one not in own][: max(0, MOST_EXAMPLES - len(own))]
    expanded = _with_new_lines(prompt, Part.CONTEXT, material.details)
    return expanded.with_examples((*own, *new)) if new else expanded


def _constraint_addition(prompt: StructuredPrompt, material: PromptMaterial) -> StructuredPrompt:
    """Limits and format. Examples whose reply is in no valid format make room for those that show it."""
    limited = _with_new_lines(prompt, Part.RULES, material.rules)
    if material.format_rule:
        limited = _with_new_lines(limited, Part.FORMAT, (material.format_rule,))
    valid = [one for one in prompt.examples if material.accepts(one.assistant)]
    if len(valid) == len(prompt.examples):
        return limited
    shown = {one.user: one for one in material.examples}
    mended = [shown.get(one.user, one) for one in prompt.examples]
    return limited.with_examples(one for one in mended if material.accepts(one.assistant))


def _task_decomposition(prompt: StructuredPrompt, material: PromptMaterial) -> StructuredPrompt:
    """Sub-tasks in order: the clauses of a compound task, else the game's own steps."""
    if prompt.of(Part.STEPS):
        return prompt
    task = next((one for one in prompt.parts if one.part is Part.TASK and one.body.strip()), None)
    clauses = [] if task is None else _clauses(task.body)
    if task is None or len(clauses) < 2:
        return prompt.with_lines(Part.STEPS, _numbered(material.steps)) if material.steps else prompt
    last = _LAST.sub("", clauses[-1])
    return prompt.replaced(task, _as_sentence(last) + "\n\n").with_lines(Part.STEPS, _numbered(clauses))


def _clauses(text: str) -> list[str]:
    sentences = [one for one in _SENTENCES.split(" ".join(text.split())) if one]
    return [_as_sentence(clause) for one in sentences for clause in _CLAUSES.split(one) if clause.strip(" .")]


def _as_sentence(text: str) -> str:
    plain = text.strip(" .")
    return f"{plain[:1].upper()}{plain[1:]}."


def _numbered(lines: tuple[str, ...] | list[str]) -> list[str]:
    return [f"{number}. {line}" for number, line in enumerate(lines[:_MOST_LINES], start=1)]


def _with_new_lines(prompt: StructuredPrompt, part: Part, lines: tuple[str, ...]) -> StructuredPrompt:
    said = prompt.system
    new = [f"- {line}" for line in lines if line not in said][:_MOST_LINES]
    return prompt.with_lines(part, new) if new else prompt


OPERATORS: dict[str, Callable[[StructuredPrompt, PromptMaterial], StructuredPrompt]] = {
    "try_catch": _try_catch,
    "context_reduction": _context_reduction,
    "expansion": _expansion,
    "constraint_addition": _constraint_addition,
    "task_decomposition": _task_decomposition,
}
