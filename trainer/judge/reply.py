"""A reply of the judge as scores.

Its content is checked strictly: every id exactly once, every score a finite number in [0, 1]. Its wrapping is not: text
or a fence around the JSON object is accepted, since not every endpoint can be told to omit it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainer.judge.text import clean

MAX_CORRECTION = 0.2
"""What hindsight may add to or take from a score that was given without it."""


def schema(*, with_correction: bool, with_steps: bool = False) -> dict[str, Any]:
    """Schema of a reply. One for each kind of call, since endpoints are slow to compile a new one; ids are checked
    by ``parse``. A strict schema has no optional fields: no scores of decisions are an empty list."""
    entry: dict[str, Any] = {
        "trajectory_id": {"type": "string"},
        "explanation": {"type": "string"},
        "score": {"type": "number"},
    }
    if with_correction:
        entry["correction"] = {"type": "number"}
    if with_steps:
        step = {"step": {"type": "integer"}, "score": {"type": "number"}}
        one = {"type": "object", "properties": step, "required": [*step], "additionalProperties": False}
        entry["steps"] = {"type": "array", "items": one}
    item = {"type": "object", "properties": entry, "required": [*entry], "additionalProperties": False}
    scores = {"scores": {"type": "array", "items": item}}
    return {"type": "object", "properties": scores, "required": ["scores"], "additionalProperties": False}


_MAX_EXPLANATION = 2_000
_MAX_TRIED = 5_000
"""Places at which an object may begin: each that fails costs time in proportion to the text before it."""


class BadReply(ValueError):
    """The reply cannot be used; the message says why in a few words.

    The message never quotes the reply: it is sent back to the judge and written to the log.
    """


@dataclass(frozen=True, slots=True)
class Score:
    score: float
    explanation: str
    correction: float | None = None
    steps: tuple[float | None, ...] = ()
    """One for each decision, None without a usable score; empty if none has one."""


def parse(
    text: str, ids: Sequence[str], *, with_correction: bool = False, decisions: Sequence[int] = ()
) -> list[Score]:
    """One score for each of ``ids``, in their order, whatever order the judge used. BadReply otherwise.

    ``decisions``: how many each of ``ids`` has, if they were to be scored too. A fault there costs that score alone.
    """
    numbers = dict(zip(ids, decisions, strict=True)) if decisions else {}
    entries = _answer(text, ids).get("scores")
    if not isinstance(entries, list):
        raise BadReply("there is no list named scores")
    found: dict[str, Score] = {}
    for entry in entries:
        if not isinstance(entry, dict):
            raise BadReply("an entry of scores is not an object")
        given = entry.get("trajectory_id")
        if not isinstance(given, str) or given not in ids:
            raise BadReply("an entry has an id that is not among the trajectories'")
        if given in found:
            raise BadReply(f"the id {given} occurs twice")
        correction = _checked(entry.get("correction"), "correction", MAX_CORRECTION) if with_correction else None
        score, steps = _checked(entry.get("score")), _steps(entry.get("steps"), numbers.get(given, 0))
        # With a single decision the whole is that decision.
        steps = (score,) if numbers.get(given) == 1 else steps
        found[given] = Score(score, _explanation(entry.get("explanation")), correction, steps)
    if len(found) != len(ids):
        raise BadReply(f"{len(found)} of {len(ids)} trajectories have a score")
    return [found[id_] for id_ in ids]


def _checked(value: object, name: str = "score", either_way: float | None = None) -> float:
    """A number from 0 to 1, or ``either_way`` of zero."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadReply(f"a {name} is not a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise BadReply(f"a {name} is not finite")
    low, high = (0.0, 1.0) if either_way is None else (-either_way, either_way)
    if not low <= value <= high:
        raise BadReply(f"a {name} is outside {low:g} to {high:g}")
    return float(value)


def _steps(entries: object, number: int) -> tuple[float | None, ...]:
    """The score of each of ``number`` decisions. What is unknown, out of range or told twice gives no score."""
    found: dict[int, float | None] = {}
    for entry in entries if isinstance(entries, list) else []:
        place = entry.get("step") if isinstance(entry, dict) else None
        if isinstance(place, bool) or not isinstance(place, int) or not 1 <= place <= number:
            continue
        try:
            found[place] = None if place in found else _checked(entry.get("score"))
        except BadReply:
            found[place] = None
    scores = tuple(found.get(place) for place in range(1, number + 1))
    return scores if any(score is not None for score in scores) else ()


def _explanation(text: object) -> str:
    return clean(text)[:_MAX_EXPLANATION] if isinstance(text, str) else ""


_THOUGHT = "</think>"
_FENCE = re.compile(r"```\w*\s*\Z")


def _answer(text: str, ids: Sequence[str]) -> dict[str, Any]:
    """The JSON object with scores that is the answer: after the thinking, in a fence if one is, else the first.

    A judge may reason before it, in JSON too, and quote agents, who may write JSON, fences and the end of thinking: but
    they know none of ``ids``, and what is quoted inside a string of the answer ends no thinking.
    """
    decoder = json.JSONDecoder(parse_constant=_not_a_number, object_pairs_hook=_without_repeats)
    found: list[tuple[int, int, dict[str, Any] | BadReply]] = []
    start, tried = text.find("{"), 0
    while start >= 0 and tried < _MAX_TRIED:
        tried += 1
        value: dict[str, Any] | BadReply | None = None
        try:
            value, end = decoder.raw_decode(text, start)
        except BadReply as bad:
            value, end = bad, start + 1
        except (ValueError, RecursionError):  # not JSON, or a number with thousands of digits
            end = start + 1
        if value is not None:
            found.append((start, end, value))
        start = text.find("{", end)
    thought = text.rfind(_THOUGHT)
    while thought >= 0 and any(start < thought < end for start, end, _ in found):
        thought = text.rfind(_THOUGHT, 0, thought)
    said = [(start, value) for start, _, value in found if start > thought]
    answers = [(start, value) for start, value in said if isinstance(value, BadReply) or "scores" in value]
    answers = [(start, value) for start, value in answers if _names_one_of(ids, value)] or answers
    fenced = [value for start, value in answers if _FENCE.search(text[max(thought + 1, start - 20) : start])]
    if not said:
        raise BadReply("there is no complete JSON object in it" if thought < 0 else "no JSON object follows </think>")
    chosen = fenced[0] if fenced else answers[0][1] if answers else said[0][1]
    if isinstance(chosen, BadReply):
        raise chosen
    return chosen


def _names_one_of(ids: Sequence[str], value: dict[str, Any] | BadReply) -> bool:
    entries = value.get("scores") if isinstance(value, dict) else None
    if not isinstance(entries, list):
        return False
    return any(isinstance(entry, dict) and entry.get("trajectory_id") in ids for entry in entries)


def _not_a_number(_: str) -> float:
    """``_checked`` says so where it matters: for a decision it costs that score alone."""
    return math.nan


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = {name for name, _ in pairs}
    if len(names) != len(pairs):
        if "step" in names and "trajectory_id" not in names:
            return {}  # the score of one decision: it has none
        raise BadReply("an object has the same name twice")
    return dict(pairs)
