"""The command line of a command, from its settings: flags, ``--help`` with the common ones, ``--help-all``."""

from __future__ import annotations

import argparse
import inspect
import logging
import re
import shutil
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from data_bridge.errors import ConfigurationError
from trainer.config.settings import (
    Command,
    Section,
    closest,
    extra_of,
    flag_of,
    has_flag,
    sections_of,
    settings_of,
    variable_of,
)

logger = logging.getLogger(__name__)

_MAX_SHOWN = 30
"""For a command with more settings than this, ``--help`` shows only the common ones."""


class _Parser(argparse.ArgumentParser):
    secrets: Mapping[str, str] = {}
    """The flags that keys would have, and the variables to set instead."""
    flags: Sequence[str] = ()

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Refuses unknown flags without their values: one of them may be a key."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
            for flag in flags:
                if flag in self.secrets:
                    variable = self.secrets[flag]
                    raise ConfigurationError(f"{flag} is not a flag, since others can see it: set {variable} instead.")
            close = closest(flags[0], self.flags) if flags else None
            hint = f" (did you mean {close}?)" if close else ""
            self.error(f"unrecognized arguments: {' '.join(flags or unknown)}{hint}")
        return parsed

    def error(self, message: str) -> NoReturn:
        raise ConfigurationError(f"{message[:1].upper()}{message[1:]}; `{self.prog} --help-all` lists every flag.")


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Prints flags in a column that is wide enough for most of them."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=max(100, shutil.get_terminal_size().columns - 2))


class _Former(argparse.Action):
    """The name of a flag in an earlier version."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        logger.warning("%s is called --%s now; the old name still works", option_string, self.dest.replace("_", "-"))
        setattr(namespace, self.dest, values)


class _Ignored(argparse.Action):
    """A flag of an earlier version that means nothing now."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        logger.warning("%s is ignored: this command does not need it any more", option_string)


class _Joined(argparse.Action):
    """Several words as one value."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        setattr(namespace, self.dest, " ".join(values))


def parse(cls: type[Command], argv: Sequence[str], *, prog: str, description: str, epilog: str) -> dict[str, Any]:
    """The settings that ``argv`` gives, by name; ``--help`` prints and exits."""
    has_more = sum(has_flag(field) for _, _, field in settings_of(cls)) > _MAX_SHOWN
    shows_all = "--help-all" in argv or not has_more
    parser = _Parser(
        prog=prog,
        usage=" ".join(("%(prog)s [options]", *_positionals(cls))),
        description=description,
        epilog=epilog,
        formatter_class=_Formatter,
        allow_abbrev=False,
        add_help=False,
    )
    parser.secrets = {
        flag_of(name, field): variable_of(name, field) or ""
        for _, name, field in settings_of(cls)
        if not has_flag(field)
    }
    about = parser.add_argument_group("Settings from a file, and help")
    about.add_argument(
        "-h",
        "--help",
        action="help",
        help="Show the settings that people use, and exit." if has_more else "Show this, and exit.",
    )
    about.add_argument(
        "--help-all", action="help", help="Show every setting, and exit." if has_more else argparse.SUPPRESS
    )
    for name in cls.ignored:
        about.add_argument("--" + name.replace("_", "-"), action=_Ignored, help=argparse.SUPPRESS)
    for flag, text in (
        ("--config", "Read settings from this run.toml; flags, variables and .env win over it."),
        ("--save-config", "Write the resolved settings, without secrets, as a run.toml."),
    ):
        about.add_argument(flag, metavar="FILE", help=text, default=argparse.SUPPRESS)
    groups: dict[str, argparse._ArgumentGroup] = {}
    placed: set[str] = set()
    for kind in sections_of(cls).values():
        for part in (one for one in kind.__mro__ if issubclass(one, Section) and one is not Section):
            for name in (one for one in inspect.get_annotations(part) if one not in placed):
                placed.add(name)
                title = title_of(part)
                if title not in groups:
                    groups[title] = parser.add_argument_group(title)
                _add_argument(groups[title], name, kind.model_fields[name], shows_all=shows_all)
    parser.flags = [option for action in parser._actions for option in action.option_strings]
    given: dict[str, Any] = vars(parser.parse_args(_with_negatives(argv)))
    return given


def _with_negatives(argv: Sequence[str]) -> list[str]:
    """``--lookback -3d`` as ``--lookback=-3d``: argparse would take the value for a flag and miss the value."""
    words: list[str] = []
    for word in argv:
        if re.match(r"-\d", word) and words and words[-1].startswith("--") and "=" not in words[-1]:
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


def _is_shown(field: FieldInfo) -> bool:
    """Positional arguments and flags for a single call are always shown."""
    return bool(extra_of(field, "common") or extra_of(field, "flag_only"))


def _positionals(cls: type[Command]) -> list[str]:
    fields = [(name.upper(), field) for _, name, field in settings_of(cls) if extra_of(field, "positional")]
    return [name if field.is_required() else f"[{name}]" for name, field in fields]


def title_of(section: type[Section]) -> str:
    """The section's title in ``--help``; sections with the same title are shown together."""
    return (section.__doc__ or section.__name__).strip().splitlines()[0].rstrip(".")


def _add_argument(group: argparse._ArgumentGroup, name: str, field: FieldInfo, *, shows_all: bool) -> None:
    is_shown = shows_all or _is_shown(field)
    if not has_flag(field):
        if is_shown:
            told = f"{variable_of(name, field)} (variable only): {field.description}"
            group.description = f"{group.description}\n{told}" if group.description else told
        return
    text = field.description or ""
    options: dict[str, Any] = {"default": argparse.SUPPRESS}
    choices = _choices(field.annotation)
    if choices:
        options["choices"] = choices
    if extra_of(field, "positional"):
        nargs = None if field.is_required() else "?"
        group.add_argument(name, nargs=nargs, help=_escaped(text), metavar=None if choices else name.upper(), **options)
        return
    default = shown_default(field) if field.default is not False else ""
    notes = [variable_of(name, field) if shows_all else None, f"default {default}" if default else None]
    told = "; ".join(note for note in notes if note)
    hidden = argparse.SUPPRESS
    options |= {"dest": name, "help": _escaped(f"{text} [{told}]" if told else text) if is_shown else hidden}
    flag = flag_of(name, field)
    if former := extra_of(field, "formerly"):
        group.add_argument("--" + former.replace("_", "-"), action=_Former, dest=name, default=hidden, help=hidden)
    if field.annotation is bool:
        if field.default:
            group.add_argument(flag, action=argparse.BooleanOptionalAction, **options)
            return
        group.add_argument(flag, action="store_true", **options)
        group.add_argument("--no-" + flag.removeprefix("--"), action="store_false", **options | {"help": hidden})
    else:
        if not choices:
            options["metavar"] = extra_of(field, "metavar") or name.rsplit("_", 1)[-1].upper()
        if extra_of(field, "several_words"):
            options |= {"nargs": "+", "action": _Joined}
        group.add_argument(flag, **options)


def _escaped(text: str) -> str:
    """Escaped for argparse, which formats help texts with ``%``."""
    return text.replace("%", "%%")


def shown_default(field: FieldInfo) -> str:
    """The default as a user would write it; empty if there is none."""
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
