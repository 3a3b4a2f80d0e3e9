"""A team's own class, held to its promises: whatever one of its methods does, it costs one row or says one sentence.

What it cannot say of a row (it raises, or answers with something that is no answer) counts as not known, and is warned
of once; where that would favour the row, it is a fault of the row. What it cannot say of a window is a mistake in the
class, and stops the command.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import msgspec

from data_bridge.errors import ConfigurationError, HindsightError
from data_bridge.models import Action
from data_bridge.worlds.world import MAX_TOLD, MOST, Known, Success, World

logger = logging.getLogger(__name__)

Check = Callable[[Any], bool]


class WorldFault(HindsightError, ValueError):
    """A method of a team's class failed on a row; unless the row can be left out alone, the class is to be mended."""

    exit_code = ConfigurationError.exit_code


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and abs(value) <= MOST


def _is_text(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_told(value: object) -> bool:
    """Whether a judge can be shown it: an object that JSON can hold."""
    try:
        return isinstance(value, Mapping) and bool(msgspec.json.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return False


def _is_success(value: object) -> bool:
    return value is None or (isinstance(value, Success) and _is_number(value.value) and isinstance(value.told, str))


_OF_WINDOWS: Mapping[str, tuple[Check, str]] = {"known": (lambda value: isinstance(value, Known), "a Known")}
"""By method: what is an answer, and what it is called."""

_OF_ROWS: Mapping[str, tuple[Check, str]] = {
    "is_valid": (lambda value: isinstance(value, bool), "True or False"),
    "subject_of": (_is_text, "a text or None"),
    "choice_of": (_is_text, "a text or None"),
    "answer_of": (_is_text, "a text or None"),
    "valid_share": (lambda value: value is None or (_is_number(value) and 0 <= value <= 1), "a number from 0 to 1"),
    "result_of": (_is_text, "a text or None"),
    "worth": (lambda value: value is None or _is_number(value), "a finite number or None"),
    "side_of": (lambda value: value in (None, -1, 0, 1), "-1, 0, 1 or None"),
    "shown_facts": (_is_told, "an object that JSON can hold"),
    "result": (_is_told, "an object that JSON can hold"),
    "claims": (_is_told, "an object that JSON can hold"),
    "step_claims": (_is_told, "an object that JSON can hold"),
    "step_result": (_is_text, "a text or None"),
}

_UNKNOWN: Mapping[str, tuple[Check, str]] = {
    "success": (_is_success, "a Success with a finite value, or None"),
    "parse": (lambda value: value is None or isinstance(value, Action), "an Action or None"),
}
"""Those that may say None of a row: then it cannot be measured, or the reply is no valid action."""


def guarded(kind: type[World], where: str) -> type[World]:
    """``kind`` with every method that it overrides watched."""

    def watched(name: str, check: Check, answer: str, failed: Callable[[str], Any]) -> Callable[..., Any]:
        asked = getattr(kind, name)

        @wraps(asked)
        def method(self: World, *given: Any, **named: Any) -> Any:
            try:
                said = asked(self, *given, **named)
                if check(said):
                    return said
                fault = f"must return {answer}, not {type(said).__name__}"
            except WorldFault:
                raise
            except Exception as error:
                fault = f"fails with {type(error).__name__}"
            return failed(f"--world: {name}() of {where} {fault}")

        return method

    told: set[str] = set()

    def unknown(sentence: str) -> None:
        if sentence not in told:
            told.add(sentence)
            logger.warning("%s: a row of which it says nothing is left out", sentence)

    def stops(sentence: str) -> None:
        raise ConfigurationError(f"{sentence}.")

    def fault(sentence: str) -> None:
        unknown(sentence)
        raise WorldFault(f"{sentence}.")

    rules = ((_OF_WINDOWS, stops), (_OF_ROWS, fault), (_UNKNOWN, unknown))
    methods = {
        name: watched(name, *expected, failed)
        for table, failed in rules
        for name, expected in table.items()
        if getattr(kind, name) is not getattr(World, name)
    }
    if "success" in methods:
        methods["success"] = _with_short_words(methods["success"])
    if kind.contradiction is not World.contradiction:
        methods["contradiction"] = watched("contradiction", _is_text, "a text or None", lambda sentence: sentence)
    return type(kind.__name__, (kind,), methods | {"__module__": kind.__module__, "__qualname__": kind.__qualname__})


def _with_short_words(success: Callable[..., Success | None]) -> Callable[..., Success | None]:
    @wraps(success)
    def method(self: World, *given: Any, **named: Any) -> Success | None:
        found = success(self, *given, **named)
        return found if found is None or len(found.told) <= MAX_TOLD else Success(found.value, found.told[:MAX_TOLD])

    return method
