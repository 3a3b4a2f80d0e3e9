"""What a setting is: one field that is a flag, a variable, a key of ``run.toml`` and a line of help.

A section is a small frozen pydantic model whose fields are created with ``setting``: it is what a stage receives. A
command is a model whose fields are sections.
"""

from __future__ import annotations

import difflib
import re
import typing
from collections.abc import Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.fields import FieldInfo

from data_bridge.redaction import redacted

PREFIX = "HINDSIGHT_"

_UNITS = {
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
    "w": timedelta(weeks=1),
}
_MAX_DURATION = timedelta(days=3650)
"""Longer than any useful wait or lookback, and far from the end of the calendar."""


def parse_duration(value: object) -> timedelta:
    """``90s``, ``45m``, ``36h``, ``7d``, ``2w``, up to ten years; a timedelta passes through."""
    if isinstance(value, timedelta):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhdw])\s*", str(value))
    if match is None:
        raise ValueError("write a duration as a number and its unit, without a sign: 90s, 45m, 36h, 7d or 2w")
    amount, unit = float(match[1]), _UNITS[match[2]]
    if amount > _MAX_DURATION / unit:
        raise ValueError(f"write a duration of at most {_MAX_DURATION.days}d")
    return amount * unit


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def written_duration(value: timedelta) -> str:
    """The duration as written in a setting: ``7d``, ``36h``, ``45m`` or ``90s``."""
    for letter in ("d", "h", "m"):
        if not value % _UNITS[letter]:
            return f"{value // _UNITS[letter]}{letter}"
    return f"{value / _UNITS['s']:.12g}s"


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split)]


class Section(BaseModel):
    """What one stage receives. The docstring's first line is its title in ``--help``."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, defer_build=True)


class Placed(NamedTuple):
    """One setting and its location."""

    section: str
    name: str
    field: FieldInfo


def setting(
    default: Any,
    help: str,
    *,
    env: str | None = None,
    flag: str | None = None,
    metavar: str | None = None,
    positional: bool = False,
    flag_only: bool = False,
    several_words: bool = False,
    common: bool = False,
    formerly: str | None = None,
    by_backend: bool = False,
    **limits: Any,
) -> Any:
    """A field that is also a flag (``--field-name``) and a variable (``HINDSIGHT_FIELD_NAME``), unless named otherwise.

    Keys and passwords (``SecretStr``) get a flag only if it is named: a command line is visible to everyone on the
    host. Positional arguments have no variable, nor have settings for a single call (``flag_only``): a variable that
    rolls back would do so every time. ``several_words``: a value like `max-variance 4` needs no quotes. ``common``:
    shown by ``--help``, the others by ``--help-all``. ``formerly``: the field's name in an earlier version, whose flag
    and variable still work, with a warning. ``by_backend``: if unset, the backend decides.
    """
    extra: dict[str, Any] = {"env": env, "flag": flag, "metavar": metavar, "positional": positional, "common": common}
    extra |= {"flag_only": flag_only or positional, "several_words": several_words, "formerly": formerly}
    return Field(default=default, description=help, json_schema_extra=extra | {"by_backend": by_backend}, **limits)


class CommonSettings(Section):
    """Files and errors."""

    home: Path = setting(
        Path(".hindsight"),
        "Folder of the embedded database, model cache, checkpoints and runs.",
        env="HINDSIGHT_HOME",
        metavar="DIR",
        common=True,
    )
    debug: bool = setting(False, "Show the traceback of an error, and debug logging.", common=True)


class Command(BaseModel):
    """The settings of one command: every field is a section, and its name that section's table in ``run.toml``."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    common: CommonSettings
    ignored: ClassVar[tuple[str, ...]] = ()
    """Settings of an earlier version that mean nothing to this command now: accepted with a warning."""


def extra_of(field: FieldInfo, key: str) -> Any:
    """An argument of ``setting`` that is not part of the field itself."""
    return field.json_schema_extra.get(key) if isinstance(field.json_schema_extra, dict) else None


def sections_of(cls: type[Command]) -> dict[str, type[Section]]:
    """The command's sections by their names."""
    return {name: typing.cast("type[Section]", field.annotation) for name, field in cls.model_fields.items()}


def settings_of(cls: type[Command]) -> Iterator[Placed]:
    """Every setting of a command. Its name is unique across all sections, since a flag has no section."""
    for section, kind in sections_of(cls).items():
        for name, field in kind.model_fields.items():
            yield Placed(section, name, field)


def flag_of(name: str, field: FieldInfo) -> str:
    """The setting's name on the command line."""
    if extra_of(field, "positional"):
        return name.upper()
    return extra_of(field, "flag") or "--" + name.replace("_", "-")


def variable_of(name: str, field: FieldInfo) -> str | None:
    """The setting's variable; None if it can only be set on the command line."""
    if extra_of(field, "flag_only"):
        return None
    return extra_of(field, "env") or PREFIX + name.upper()


def variables_of(cls: type[Command]) -> frozenset[str]:
    """Every variable that a command reads, former names included."""
    found = set[str]()
    for _, name, field in settings_of(cls):
        variable, former = variable_of(name, field), extra_of(field, "formerly")
        found |= {one for one in (variable, former and PREFIX + former.upper()) if one and variable}
    return frozenset(found)


def keys_of(*commands: type[Command]) -> dict[str, dict[str, FieldInfo]]:
    """The settings of ``commands`` as tables of ``run.toml``."""
    keys: dict[str, dict[str, FieldInfo]] = {}
    for command in commands:
        for section, name, field in settings_of(command):
            keys.setdefault(section, {})[name] = field
    return keys


def is_secret(field: FieldInfo) -> bool:
    return "SecretStr" in str(field.annotation)


def has_flag(field: FieldInfo) -> bool:
    return not is_secret(field) or extra_of(field, "flag") is not None


C = TypeVar("C", bound=Command)


def flat_values(settings: Command) -> dict[str, Any]:
    """Every setting that is not a secret, by name, as plain JSON."""
    secret = {name for _, name, field in settings_of(type(settings)) if is_secret(field)}
    dumped = settings.model_dump(mode="json").values()
    return {name: value for section in dumped for name, value in section.items() if name not in secret}


def public_values(settings: Command) -> dict[str, Any]:
    """Every setting as plain JSON; secrets are replaced by whether they are set, passwords in URLs are masked."""
    values: dict[str, Any] = {}
    for section, name, field in settings_of(type(settings)):
        if is_secret(field):
            values[name] = "[set]" if getattr(getattr(settings, section), name) is not None else None
    return values | redacted(flat_values(settings))


def settings_from(cls: type[C], **values: Any) -> C:
    """A command's settings from values by name, without their sections; for programs and tests."""
    placed: dict[str, dict[str, Any]] = {section: {} for section in sections_of(cls)}
    where = {name: section for section, name, _ in settings_of(cls)}
    for name, value in values.items():
        placed[where[name]][name] = value
    return cls.model_validate(placed)


def closest(word: str, names: Iterable[str], similarity: float = 0.6) -> str | None:
    """The one of ``names`` that is most similar to ``word``, if any is similar enough."""
    return next(iter(difflib.get_close_matches(word, list(names), n=1, cutoff=similarity)), None)
