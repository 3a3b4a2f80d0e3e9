"""Fills a settings class from flags, the environment, ``.env`` and defaults, in that order of precedence.

A settings class is a frozen pydantic model whose fields were made with ``setting``; commands compose the
ones they need by inheritance. The flag, the variable and the help text all come from the field, so they
cannot drift apart. Nothing here touches ``os.environ``.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import os
import re
import types
import typing
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationError
from pydantic.fields import FieldInfo

from data_bridge.errors import ConfigurationError
from data_bridge.redaction import redact, register_secret

PREFIX = "HINDSIGHT_"
_OUR_PREFIXES = (PREFIX, "JUDGE_", "EVAL_JUDGE_")
"""Whatever begins like this is meant for us, also in an environment that we share with others."""

_MISSPELT = 0.9
"""Likeness from which a name in `.env` is one of ours misspelt (DATABASE_URI), not a neighbour (TEST_DATABASE_URL)."""

_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1), "w": timedelta(weeks=1)}
_LONGEST = timedelta(days=3650)
"""More than anyone waits or looks back, and far from where the calendar ends."""


def parse_duration(value: object) -> timedelta:
    """``90m``, ``36h``, ``7d``, ``2w``, up to ten years; a timedelta passes through."""
    if isinstance(value, timedelta):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([mhdw])\s*", str(value))
    if match is None:
        raise ValueError("write a duration as 90m, 36h, 7d or 2w")
    amount, unit = float(match[1]), _UNITS[match[2]]
    if amount > _LONGEST / unit:
        raise ValueError(f"write a duration of at most {_LONGEST.days}d")
    return amount * unit


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split)]


class Section(BaseModel):
    """Base of every settings class. The docstring's first line is its title in ``--help``."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, defer_build=True)


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
    **limits: Any,
) -> Any:
    """A field that is also a flag (``--field-name``) and a variable (``HINDSIGHT_FIELD_NAME``), unless named otherwise.

    Keys and passwords (``SecretStr``) get a flag only when it is named: a command line is visible to everyone
    on the host. A positional argument has no variable, nor has what asks for one deed (``flag_only``): a variable
    that rolls back would do so every time. ``several_words``: a value like `max-variance 4` needs no quotes.
    """
    extra: dict[str, Any] = {"env": env, "flag": flag, "metavar": metavar, "positional": positional}
    extra |= {"flag_only": flag_only or positional, "several_words": several_words}
    return Field(default=default, description=help, json_schema_extra=extra, **limits)


def _extra(field: FieldInfo, key: str) -> Any:
    return field.json_schema_extra.get(key) if isinstance(field.json_schema_extra, dict) else None


def flag_of(name: str, field: FieldInfo) -> str:
    """How the setting is spelt on the command line."""
    if _extra(field, "positional"):
        return name.upper()
    return _extra(field, "flag") or "--" + name.replace("_", "-")


def variable_of(name: str, field: FieldInfo) -> str | None:
    """The setting's variable; None for what is only ever said on the command line."""
    if _extra(field, "flag_only"):
        return None
    return _extra(field, "env") or PREFIX + name.upper()


def _has_flag(field: FieldInfo) -> bool:
    return "SecretStr" not in str(field.annotation) or _extra(field, "flag") is not None


S = TypeVar("S", bound=Section)


class _Parser(argparse.ArgumentParser):
    secrets: Mapping[str, str] = {}
    """Flags that a key would have, if keys had flags, and the variables they have instead."""

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Refuses unknown flags without their values: one of them may be a key."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
            for flag in flags:
                if flag in self.secrets:
                    variable = self.secrets[flag]
                    raise ConfigurationError(f"{flag} is not a flag, since others can see it: set {variable} instead.")
            self.error(f"unrecognized arguments: {' '.join(flags or unknown)}")
        return parsed

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"{message[:1].upper()}{message[1:]}; `{self.prog} --help` lists every flag.")


class _Joined(argparse.Action):
    """Several words as one value."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, " ".join(values))


def load(
    cls: type[S],
    argv: Sequence[str],
    *,
    prog: str,
    description: str,
    epilog: str = "",
    environ: Mapping[str, str] | None = None,
    dotenv: Path | None = None,
    known_variables: frozenset[str] = frozenset(),
) -> S:
    """Settings of ``cls`` for one call of a command. ConfigurationError names the setting that is wrong."""
    environ = os.environ if environ is None else environ
    given = vars(_parser(cls, prog, description, epilog).parse_args(list(argv)))
    file_values = _read_dotenv(Path(".env") if dotenv is None else dotenv)
    _reject_unknown_variables(cls, environ, file_values, known_variables)

    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, field in cls.model_fields.items():
        variable = variable_of(name, field)
        if name in given:
            values[name], sources[name] = given[name], flag_of(name, field)
        elif variable is None:
            continue
        elif environ.get(variable, "") != "":
            values[name], sources[name] = environ[variable], variable
        elif file_values.get(variable, "") != "":
            values[name], sources[name] = file_values[variable], f"{variable} (in .env)"
    try:
        loaded = cls.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError(_explain(cls, error, sources)) from None
    for name in cls.model_fields:
        value = getattr(loaded, name)
        if isinstance(value, SecretStr):
            register_secret(value.get_secret_value())
    return loaded


def public_values(settings: Section) -> dict[str, Any]:
    """Every setting as plain JSON, with secrets replaced by whether they are set, passwords in addresses masked."""
    dumped = settings.model_dump(mode="json")
    values = {name: redact(value) if isinstance(value, str) else value for name, value in dumped.items()}
    for name in type(settings).model_fields:
        if isinstance(getattr(settings, name), SecretStr):
            values[name] = "[set]"
    return values


def _read_dotenv(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    from dotenv import dotenv_values

    return {key: value for key, value in dotenv_values(path, interpolate=False).items() if value is not None}


def _reject_unknown_variables(
    cls: type[Section], environ: Mapping[str, str], file_values: Mapping[str, str], known: frozenset[str]
) -> None:
    """A misspelt variable would be ignored silently; every command knows all of ours.

    The environment belongs to everyone, `.env` mostly to us: there a likeness is enough to ask.
    """
    own = {variable_of(name, field) for name, field in cls.model_fields.items()}
    names = known | {variable for variable in own if variable is not None}
    for variable in (*file_values, *environ):
        if variable in names:
            continue
        in_file = variable in file_values
        if variable.startswith(_OUR_PREFIXES) or (in_file and _closest(variable, names, _MISSPELT)):
            close = _closest(variable, names)
            hint = f"did you mean {close}?" if close else "`.env.example` lists every variable."
            raise ConfigurationError(f"{variable}{' (in .env)' if in_file else ''} is not a setting: {hint}")


def _closest(variable: str, names: frozenset[str], likeness: float = 0.6) -> str | None:
    return next(iter(difflib.get_close_matches(variable, names, n=1, cutoff=likeness)), None)


def _parser(cls: type[Section], prog: str, description: str, epilog: str) -> _Parser:
    parser = _Parser(
        prog=prog,
        usage=" ".join(("%(prog)s [options]", *_positionals(cls))),
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.secrets = {
        flag_of(name, field): variable_of(name, field) or ""
        for name, field in cls.model_fields.items()
        if not _has_flag(field)
    }
    placed: set[str] = set()
    groups: dict[str, argparse._ArgumentGroup] = {}
    for section in cls.__mro__:
        own = inspect.get_annotations(section)
        if not issubclass(section, Section) or section is Section or not own:
            continue
        title = title_of(section)
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        group = groups[title]
        for name in own:
            if name not in placed:  # a section that overrides another's default shows the setting once, as its own
                placed.add(name)
                _add_argument(group, name, cls.model_fields[name])
    return parser


def _positionals(cls: type[Section]) -> list[str]:
    fields = [(name.upper(), field) for name, field in cls.model_fields.items() if _extra(field, "positional")]
    return [name if field.is_required() else f"[{name}]" for name, field in fields]


def title_of(section: type[Section]) -> str:
    """What the section is called in ``--help``; those of one name stand together there."""
    return (section.__doc__ or section.__name__).strip().splitlines()[0].rstrip(".")


def _add_argument(group: argparse._ArgumentGroup, name: str, field: FieldInfo) -> None:
    if not _has_flag(field):
        told = f"{variable_of(name, field)} (variable only): {field.description}"
        group.description = f"{group.description}\n{told}" if group.description else told
        return
    text = field.description or ""
    options: dict[str, Any] = {"default": argparse.SUPPRESS}
    choices = _choices(field.annotation)
    if choices:
        options["choices"] = choices
    if _extra(field, "positional"):
        nargs = None if field.is_required() else "?"
        group.add_argument(name, nargs=nargs, help=_escaped(text), metavar=None if choices else name.upper(), **options)
        return
    shown = shown_default(field)
    notes = [note for note in (variable_of(name, field), f"default {shown}" if shown else None) if note]
    options |= {"dest": name, "help": _escaped(f"{text} [{'; '.join(notes)}]" if notes else text)}
    if field.annotation is bool:
        group.add_argument(flag_of(name, field), action=argparse.BooleanOptionalAction, **options)
    else:
        if not choices:
            options["metavar"] = _extra(field, "metavar") or name.rsplit("_", 1)[-1].upper()
        if _extra(field, "several_words"):
            options |= {"nargs": "+", "action": _Joined}
        group.add_argument(flag_of(name, field), **options)


def _escaped(text: str) -> str:
    """As argparse wants it: it formats a help text with ``%``."""
    return text.replace("%", "%%")


def shown_default(field: FieldInfo) -> str:
    """The default as a user would write it; empty where there is none."""
    default = field.default
    if default is None or default == "" or default == () or isinstance(default, SecretStr):
        return ""
    if isinstance(default, bool):
        return "on" if default else "off"
    if isinstance(default, tuple):
        return ",".join(str(part) for part in default)
    return str(default)


def _choices(annotation: Any) -> list[str]:
    if typing.get_origin(annotation) is typing.Literal:
        return [str(choice) for choice in typing.get_args(annotation)]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [choice for part in typing.get_args(annotation) for choice in _choices(part)]
    return []


def _explain(cls: type[Section], error: ValidationError, sources: Mapping[str, str]) -> str:
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    message = first["msg"].removeprefix("Value error, ")
    if name not in cls.model_fields:
        return f"{message[:1].upper()}{message[1:]}."
    field = cls.model_fields[name]
    source = sources.get(name, flag_of(name, field))
    got = "" if "SecretStr" in str(field.annotation) else f" (got {redact(repr(first['input']))})"
    return f"{source}: {message[:1].lower()}{message[1:]}{got}; `--help` describes {flag_of(name, field)}."
