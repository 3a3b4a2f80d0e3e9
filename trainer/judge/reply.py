"""From a judge's reply to scores, or to the one fault that makes it unusable.

Strict about the content: every id exactly once, every score a finite number in [0, 1]. Lenient about the
wrapping: prose or a fence around the JSON object is no fault, since not every endpoint can be told otherwise.
Faults never quote the reply: they are sent back to the judge and written to the log.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from trainer.judge.escape import clean

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "scores": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "trajectory_id": {"type": "string"},
                    "explanation": {"type": "string"},
                    "score": {"type": "number"},
                },
                "required": ["trajectory_id", "explanation", "score"],
                "additionalProperties": False,
            },
        }
    },
    "required": ["scores"],
    "additionalProperties": False,
}
"""Of a reply. The same for every call, since endpoints compile a new schema slowly; ids are checked by ``parse``."""

_LONGEST_EXPLANATION = 2_000


class BadReply(ValueError):
    """The reply cannot be used; the message says why in a few words."""


@dataclass(frozen=True, slots=True)
class Score:
    score: float
    explanation: str


def parse(text: str, ids: Sequence[str]) -> list[Score]:
    """One score for each of ``ids``, in their order whatever order the judge chose. BadReply otherwise."""
    entries = _first_object(text).get("scores")
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
        found[given] = Score(_checked(entry.get("score")), _explanation(entry.get("explanation")))
    if len(found) != len(ids):
        raise BadReply(f"{len(found)} of {len(ids)} trajectories have a score")
    return [found[id_] for id_ in ids]


def _checked(score: object) -> float:
    if isinstance(score, bool) or not isinstance(score, (int, float)):
        raise BadReply("a score is not a number")
    if isinstance(score, float) and not math.isfinite(score):
        raise BadReply("a score is not finite")
    if not 0 <= score <= 1:
        raise BadReply("a score is outside 0 to 1")
    return float(score)


def _explanation(text: object) -> str:
    return clean(text)[:_LONGEST_EXPLANATION] if isinstance(text, str) else ""


def _first_object(text: str) -> dict[str, Any]:
    """The first JSON object in ``text`` that speaks of scores; a judge may think aloud, in JSON too, before it."""
    decoder = json.JSONDecoder(parse_constant=_not_a_number, object_pairs_hook=_without_repeats)
    start, first = text.find("{"), None
    while start >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except BadReply:
            raise
        except (ValueError, RecursionError):  # no JSON, or a number of thousands of digits
            end = start + 1
        else:
            if "scores" in value:
                return dict(value)
            first = value if first is None else first
        start = text.find("{", end)
    if first is None:
        raise BadReply("there is no complete JSON object in it")
    return dict(first)


def _not_a_number(_: str) -> NoReturn:
    raise BadReply("a score is not finite")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) != len(pairs):
        raise BadReply("an object has the same name twice")
    return dict(pairs)
