"""The text of ``.env.example``, from the settings themselves: ``python -m tests.env_example > .env.example``."""

from __future__ import annotations

import inspect
import sys
from collections import defaultdict
from collections.abc import Iterator

from pydantic.fields import FieldInfo

from tests.settings_read import commands
from trainer.config.arguments import shown_default, title_of
from trainer.config.settings import Section, sections_of, settings_of, variable_of

_HEAD = """\
# Every variable that Hindsight reads. Copy to .env and set what you need: an empty one counts as unset, and a
# flag (see --help-all of each script) wins over the environment, which wins over .env, which wins over the file of
# --config. Secrets belong here, not in flags.
"""


def example() -> str:
    """Every variable once, under the section that it was first seen in, with its help and its default."""
    defaults = _defaults_by_variable()
    seen, entries = set[str](), defaultdict[str, str](str)
    for section, part in _parts():
        fresh = [
            (variable, section.model_fields[name])
            for name in inspect.get_annotations(part)
            if (variable := variable_of(name, section.model_fields[name])) is not None and variable not in seen
        ]
        seen |= {variable for variable, _ in fresh}
        if fresh:
            entries[title_of(part)] += "".join(_entry(name, field, defaults[name]) for name, field in fresh)
    return _HEAD + "".join(f"\n## {title}\n{told}" for title, told in entries.items())


def _parts() -> Iterator[tuple[type[Section], type[Section]]]:
    """Every section with the sections that it is built from; the training's first, as the others share most of them."""
    classes = commands()
    for cls in (classes.pop("train_mmo"), *classes.values()):
        for section in sections_of(cls).values():
            yield from (
                (section, part) for part in section.__mro__ if issubclass(part, Section) and part is not Section
            )


def _defaults_by_variable() -> dict[str, dict[str, list[str]]]:
    """For each variable its defaults, and the commands that have them."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for command, cls in commands().items():
        for _, name, field in settings_of(cls):
            if (variable := variable_of(name, field)) is not None:
                found[variable][shown_default(field)].append(command)
    return found


def _entry(variable: str, field: FieldInfo, defaults: dict[str, list[str]]) -> str:
    if len(defaults) == 1:
        (said,) = defaults
    else:
        said = ", ".join(f"{shown} ({' and '.join(having)})" for shown, having in defaults.items())
    return f"\n# {field.description}{f' Default: {said}.' if said else ''}\n{variable}=\n"


if __name__ == "__main__":
    sys.stdout.write(example())
