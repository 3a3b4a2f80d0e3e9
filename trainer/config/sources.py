"""Fills a command's settings from flags, the environment, ``.env``, ``run.toml`` and defaults, in that order.

argparse and pydantic rather than pydantic-settings, which has no flat flags and variables for nested sections; also, an
unknown variable or a wrong value must give one sentence that names where it was set. Nothing here changes
``os.environ``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from pydantic import SecretStr, ValidationError
from pydantic.fields import FieldInfo

from data_bridge.errors import ConfigurationError
from data_bridge.redaction import holds_password, redact, register_secret
from trainer.config.arguments import parse
from trainer.config.settings import (
    PREFIX,
    C,
    Command,
    closest,
    extra_of,
    flag_of,
    is_secret,
    keys_of,
    sections_of,
    settings_of,
    variable_of,
    variables_of,
    written_duration,
)

logger = logging.getLogger(__name__)

_OUR_PREFIXES = (PREFIX, "JUDGE_", "EVAL_JUDGE_")
"""A variable with this prefix is meant for us, even in an environment that we share with other programs."""

_MISSPELT = 0.9
"""Similarity above which a name in `.env` is a misspelling of ours (DATABASE_URI), not another (TEST_DATABASE_URL)."""


def load(
    cls: type[C],
    argv: Sequence[str],
    *,
    prog: str,
    description: str,
    epilog: str = "",
    environ: Mapping[str, str] | None = None,
    dotenv: Path | None = None,
    known_variables: frozenset[str] = frozenset(),
    known_keys: Mapping[str, Mapping[str, FieldInfo]] | None = None,
) -> C:
    """Settings of ``cls`` for one call of a command. ConfigurationError names the setting that is wrong.

    ``known_variables`` and ``known_keys`` are those of all commands, which share one ``.env`` or ``run.toml``.
    """
    environ = os.environ if environ is None else environ
    given = parse(cls, argv, prog=prog, description=description, epilog=epilog)
    file_values = _read_dotenv(Path(".env") if dotenv is None else dotenv)
    _reject_unknown_variables(cls, environ, file_values, known_variables)
    config, save_config = given.pop("config", None), given.pop("save_config", None)
    written = _read_config(Path(config), known_keys or keys_of(cls)) if config else {}

    values: dict[str, dict[str, Any]] = {section: {} for section in sections_of(cls)}
    sources: dict[str, str] = {}
    for section, name, field in settings_of(cls):
        found = _found(name, field, given, environ, file_values)
        if found is None and name in written.get(section, {}):
            found = written[section][name], f"{section}.{name} (in {config})"
        if found is not None:
            values[section][name], sources[name] = found
            if name in given or found[1].endswith(f"(in {config})"):
                _refuse_password(found, variable_of(name, field))
    try:
        loaded = cls.model_validate(values)
    except ValidationError as error:
        raise ConfigurationError(_explain(cls, error, sources)) from None
    for section, name, field in settings_of(cls):
        value = getattr(getattr(loaded, section), name)
        if is_secret(field) and isinstance(value, SecretStr):
            register_secret(value.get_secret_value())
    if save_config:
        _save_config(Path(save_config), loaded)
    return loaded


def _found(
    name: str, field: FieldInfo, given: Mapping[str, Any], environ: Mapping[str, str], file_values: Mapping[str, str]
) -> tuple[Any, str] | None:
    """The value of one setting and where it was set, by precedence; also under its former name."""
    if name in given:
        return given[name], flag_of(name, field)
    variable = variable_of(name, field)
    former = extra_of(field, "formerly")
    for known in (variable, former and PREFIX + former.upper()):
        for place, values in (("", environ), (" (in .env)", file_values)):
            if known and values.get(known, "") != "":
                if known != variable:
                    logger.warning("%s is called %s now; the old name still works", known, variable)
                return values[known], f"{known}{place}"
    return None


def _refuse_password(found: tuple[Any, str], variable: str | None) -> None:
    """A command line is visible to every user of the host, and a run.toml is made to be shared."""
    value, source = found
    if isinstance(value, str) and holds_password(value):
        instead = f"set {variable}, in the environment or .env, instead" if variable else "leave it out"
        raise ConfigurationError(f"{source}: this URL has a password, which others could see here: {instead}.")


# run.toml


def _read_config(path: Path, known: Mapping[str, Mapping[str, FieldInfo]]) -> dict[str, dict[str, Any]]:
    """The tables of a ``run.toml``. ConfigurationError for unknown names, secrets and settings that are flags only."""
    import tomllib

    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"--config: {path} cannot be read ({error.strerror}).") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--config: {path} is not TOML ({error}).") from None
    for section, table in tables.items():
        if section not in known or not isinstance(table, dict):
            raise ConfigurationError(f"{path}: [{section}] is not a section of settings{_hint(section, known)}.")
        for name in table:
            field = known[section].get(name)
            if field is None:
                raise ConfigurationError(f"{path}: {section}.{name} is not a setting{_hint(name, known[section])}.")
            if is_secret(field):
                raise ConfigurationError(f"{path}: {name} is a secret: set {variable_of(name, field)} instead.")
            if extra_of(field, "flag_only"):
                raise ConfigurationError(f"{path}: {name} can only be set on the command line.")
    return tables


def _save_config(path: Path, settings: Command) -> None:
    """The resolved settings without secrets, as a file that ``--config`` reads."""
    import tomli_w

    tables: dict[str, dict[str, Any]] = {}
    for section, name, field in settings_of(type(settings)):
        values = getattr(settings, section)
        value, is_left_open = (
            getattr(values, name),
            extra_of(field, "by_backend") and name not in values.model_fields_set,
        )
        if value is None or is_left_open or is_secret(field) or extra_of(field, "flag_only"):
            continue
        tables.setdefault(section, {})[name] = _toml(value)
    try:
        path.write_text(tomli_w.dumps(tables), encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"--save-config: {path} cannot be written ({error.strerror}).") from None


def _toml(value: Any) -> Any:
    if isinstance(value, timedelta):
        return written_duration(value)
    if isinstance(value, tuple):
        return list(value)
    return redact(str(value)) if isinstance(value, Path | str) else value


# .env


def _read_dotenv(path: Path) -> dict[str, str]:
    if not path.is_file():
        return {}
    from dotenv import dotenv_values

    return {key: value for key, value in dotenv_values(path, interpolate=False).items() if value is not None}


def _reject_unknown_variables(
    cls: type[Command], environ: Mapping[str, str], file_values: Mapping[str, str], known: frozenset[str]
) -> None:
    """ConfigurationError for a misspelt variable, which would otherwise be ignored; every command knows all of ours.

    Other programs share the environment, but `.env` is mostly ours: there, similarity is enough for an error.
    """
    names = known | variables_of(cls)
    for variable in (*file_values, *environ):
        if variable in names:
            continue
        in_file = variable in file_values
        if variable.startswith(_OUR_PREFIXES) or (in_file and closest(variable, names, _MISSPELT)):
            close = closest(variable, names)
            hint = f"did you mean {close}?" if close else "`.env.example` lists every variable."
            raise ConfigurationError(f"{variable}{' (in .env)' if in_file else ''} is not a setting: {hint}")


def _hint(word: str, names: Iterable[str]) -> str:
    close = closest(word, names)
    return f" (did you mean {close}?)" if close else ""


def _explain(cls: type[Command], error: ValidationError, sources: Mapping[str, str]) -> str:
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][1]) if len(first["loc"]) > 1 else ""
    message = first["msg"].removeprefix("Value error, ")
    fields = {name: field for _, name, field in settings_of(cls)}
    if name not in fields:
        return f"{message[:1].upper()}{message[1:].removesuffix('.')}."
    field = fields[name]
    source = sources.get(name, flag_of(name, field))
    got = "" if is_secret(field) else f" (got {redact(repr(first['input']))})"
    return f"{source}: {message[:1].lower()}{message[1:]}{got}; `--help` describes {flag_of(name, field)}."
