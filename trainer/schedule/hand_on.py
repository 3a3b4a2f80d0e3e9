"""What the scheduler was told, told to the training: as variables, since a command line is visible to everyone."""

from __future__ import annotations

from datetime import timedelta

from pydantic import SecretStr

from trainer.config.sources import Section, variable_of
from trainer.schedule.durations import written

_OUR_OWN = frozenset({"json_output"})
"""How the scheduler itself prints."""


def variables_for(reader: type[Section], settings: Section) -> dict[str, str]:
    """Whatever was set in ``settings``, by flag or otherwise, and ``reader`` has too, under the variables it reads."""
    shared = settings.model_fields_set & reader.model_fields.keys() - _OUR_OWN
    variables = {name: variable_of(name, reader.model_fields[name]) for name in sorted(shared)}
    return {variable: _spelt(getattr(settings, name)) for name, variable in variables.items() if variable is not None}


def _spelt(value: object) -> str:
    """``value`` as one would write it into a variable."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, timedelta):
        return written(value)
    return str(value)
