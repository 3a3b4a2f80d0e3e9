"""The action that a reply asks for: read off the text of a model, before any game has carried it out.

Agents write an action as a line (``BUY $COIN 20%``) or as a JSON object with its type and parameters. What is neither
is no action that we can read, and nothing is assumed about it.
"""

from __future__ import annotations

import re
from typing import Any

from data_bridge.decode import Undecodable, parse_json
from data_bridge.models import Action
from data_bridge.stakes import NOT_TRADES

LONGEST = 20_000
"""Characters of a reply that are looked at."""

_LINE = re.compile(
    r"(?P<verb>[A-Za-z_]{2,24})[ \t]+(?P<market>[$#]?[A-Za-z0-9][A-Za-z0-9._:-]{0,60})"
    r"(?:[ \t]+(?P<percent>[0-9]{1,3})[ \t]?%)?"
)
_VERBS = frozenset({"BUY", "SELL", "LONG", "SHORT", "YES", "NO", "BUY_YES", "BUY_NO", "CLOSE"})
_TYPE = ("action", "actionType", "action_type", "type", "name")
_PARAMETERS = ("parameters", "params", "arguments", "args")


def action_in(reply: str) -> Action | None:
    """The one action that ``reply`` consists of, as if it had been carried out; None if it is not one."""
    text = reply.strip()
    if not text or len(text) > LONGEST:
        return None
    return _in_json(_unfenced(text)) or _in_line(text)


def _in_line(text: str) -> Action | None:
    if text.upper() in NOT_TRADES:
        return Action(action_type=text.upper(), success=True)
    found = _LINE.fullmatch(text)
    if found is None or found["verb"].upper() not in _VERBS:
        return None
    parameters: dict[str, Any] = {"marketId" if found["market"].startswith("#") else "ticker": found["market"]}
    if found["percent"] is not None:
        parameters["percent"] = int(found["percent"])
    return Action(action_type=found["verb"].upper(), parameters=parameters, success=True)


def _unfenced(text: str) -> str:
    """Without the fence that models like to put around JSON."""
    found = re.fullmatch(r"```(?:json)?\s*(.*?)\s*```", text, re.DOTALL)
    return text if found is None else found[1]


def _in_json(text: str) -> Action | None:
    if not text.startswith("{"):
        return None
    try:
        said = parse_json(text)
    except Undecodable:
        return None
    if not isinstance(said, dict):
        return None
    if isinstance(said.get("action"), dict):
        said = said["action"]
    name = next((said[key] for key in _TYPE if isinstance(said.get(key), str) and said[key].strip()), None)
    if name is None:
        return None
    nested = next((said[key] for key in _PARAMETERS if isinstance(said.get(key), dict)), None)
    parameters = {key: value for key, value in said.items() if key not in _TYPE} if nested is None else nested
    return Action(action_type=name.strip().upper()[:100], parameters=parameters, success=True)
