"""The text of ``.env.example``, from the settings themselves: ``python -m tests.env_example > .env.example``."""

from __future__ import annotations

import inspect
import sys
from collections import defaultdict
from collections.abc import Iterator

from pydantic.fields import FieldInfo

from tests.settings_read import commands
from trainer.config.sources import Section, shown_default, title_of, variable_of

_HEAD = """\
# Every variable that Hindsight reads. Copy to .env and set what you need: an empty one counts as unset, and a
# flag (see --help of each script) wins over the environment, which wins over .env. Secrets belong here, not in flags.
"""


def example() -> str:
    """Every variable once, under the section that it was first seen in, with its help and its default."""
    defaults = _defaults_by_variable()
    seen, entries = set[str](), defaultdict[str, str](str)
    for section in _sections():
        fresh = [
            (variable, section.model_fields[name])
            for name in inspect.get_annotations(section)
            if (variable := variable_of(name, section.model_fields[name])) is not None and variable not in seen
        ]
        seen |= {variable for variable, _ in fresh}
        if fresh:
            entries[title_of(section)] += "".join(_entry(name, field, defaults[name]) for name, field in fresh)
    return _HEAD + "".join(f"\n## {title}\n{told}" for title, told in entries.items())


def _sections() -> Iterator[type[Section]]:
    """The training's first, as the others share most of them."""
    classes = commands()
    for cls in (classes.pop("train_mmo"), *classes.values()):
        yield from (section for section in cls.__mro__ if issubclass(section, Section) and section is not Section)


def _defaults_by_variable() -> dict[str, dict[str, list[str]]]:
    """For each variable its defaults, and the commands that have them."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for command, cls in commands().items():
        for name, field in cls.model_fields.items():
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
