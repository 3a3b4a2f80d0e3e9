"""A world from a TOML file: the plain cases, without a line of code.

``quests.toml`` and ``desk.toml`` beside this file are two such worlds, and examples of all that can be said.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec

from data_bridge.errors import ConfigurationError
from data_bridge.models import Action
from data_bridge.worlds.world import World, WorldWords

_Action = Annotated[str, msgspec.Meta(min_length=1, max_length=100, pattern=r"\S")]
_Weight = Annotated[float, msgspec.Meta(ge=-1e9, le=1e9)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=60, pattern=r"^[\w .&/-]+$")]


class SuccessFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How success is measured."""

    measure: _Name = "success"
    facts: dict[str, _Weight] = {}
    combine: Literal["sum", "mean"] = "sum"
    right_answer: str | None = None


class ReplyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whether a reply is a valid action: by a pattern, or as a JSON object with these keys."""

    pattern: str | None = None
    """A regular expression for the whole reply; its group ``action`` is the action, the others are parameters."""
    keys: list[str] = []
    """Of a JSON object; ``action`` is the action, the others are parameters."""


class WorldFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file may say; the attributes of ``World`` say what it means."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=40, pattern=r"^[\w-]+$")]
    rubric: str = World.rubric
    state: list[str] = []
    resource: str | None = None
    role: str | None = None
    roles: Literal["together", "apart"] = World.roles
    subjects: list[str] = []
    actions: list[_Action] = []
    needs: Literal["facts", "nothing"] = World.needs
    written_by: Literal["agents", "game"] = World.written_by
    success: SuccessFile = SuccessFile()
    reply: ReplyFile = ReplyFile()


class PlainWorld(World):
    """A world that a file describes."""

    def __init__(self, said: WorldFile, source: str = "") -> None:
        self.name, self.rubric, self.source = said.name, said.rubric, source
        self.state_keys, self.resource_key, self.role_key = tuple(said.state), said.resource, said.role
        self.roles, self.needs, self.written_by = said.roles, said.needs, said.written_by
        self.subject_keys = tuple(said.subjects)
        self.actions = tuple(action.strip().upper() for action in said.actions)
        self.weights, self.combine = said.success.facts, said.success.combine
        self.right_answer = said.success.right_answer
        self.words = WorldWords(measure=said.success.measure, resource=said.resource or World.words.resource)
        self._keys = tuple(said.reply.keys)
        self._pattern = _compiled(said.reply.pattern)

    @property
    def can_parse(self) -> bool:
        return self._pattern is not None or bool(self._keys)

    def parse(self, reply: str, logged: Action | None = None) -> Action | None:
        """The action of ``reply``. What it is about is taken from the logged action if the reply does not say."""
        said = self._said(reply)
        if said is None:
            return None
        kind = str(said.pop("action", "")).strip().upper() or (self.actions[0] if len(self.actions) == 1 else "")
        if not kind or (self.actions and kind not in self.actions):
            return None
        asked = {} if logged is None else {k: v for k, v in logged.parameters.items() if k in self.subject_keys}
        return Action(action_type=kind, parameters=asked | said, success=True)

    def _said(self, reply: str) -> dict[str, Any] | None:
        if self._pattern is not None:
            match = self._pattern.fullmatch(reply.strip()[:_MAX_REPLY])
            return None if match is None else {k: v for k, v in match.groupdict().items() if v is not None}
        try:
            found = msgspec.json.decode(reply)
        except (ValueError, RecursionError):
            return None
        return dict(found) if isinstance(found, dict) and all(key in found for key in self._keys) else None


_MAX_REPLY = 4_000  # characters that a pattern is tried on


def _compiled(pattern: str | None) -> re.Pattern[str] | None:
    try:
        return None if pattern is None else re.compile(pattern, re.IGNORECASE | re.DOTALL)
    except re.error as error:
        raise ValueError(f"reply.pattern is not a regular expression: {error}") from None


def _refuse_nameless_actions(said: WorldFile) -> None:
    """A reply that never says its action is never a valid one, unless there is only one action."""
    pattern = _compiled(said.reply.pattern)
    names = list(said.reply.keys) if pattern is None else list(pattern.groupindex)
    if (pattern is not None or names) and "action" not in names and len(said.actions) != 1:
        raise ValueError("reply says no action: name it `action`, as a group (?P<action>...) or as a key")


def parse_world(text: str, where: str, source: str = "") -> PlainWorld:
    """The world that a TOML text describes. ConfigurationError names the file and what is wrong in it."""
    try:
        said = msgspec.toml.decode(text, type=WorldFile)
        _refuse_nameless_actions(said)
        return PlainWorld(said, source)
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise ConfigurationError(f"{where} does not describe a world: {error}.") from None
