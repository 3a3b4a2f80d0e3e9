"""Rubrics: what a good decision is, in words, in files.

A rubric is Markdown with an optional first line ``version: N``. Its version, which is part of every verdict's
key, is the declared one and a hash of the text: an edit that forgets to count up still is a new rubric.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from data_bridge.errors import ConfigurationError

FOLDER = Path(__file__).parent / "rubrics"

_VERSION_LINE = re.compile(r"\Aversion:\s*(?P<version>[\w.-]{1,20})\s*\n", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Rubric:
    name: str
    version: str
    text: str


def load_rubric(name_or_file: str) -> Rubric:
    """A built-in rubric by its name, or the user's own by its path."""
    built_in = FOLDER / f"{name_or_file}.md"
    is_name = re.fullmatch(r"[\w-]+", name_or_file) is not None and built_in.is_file()
    path = built_in if is_name else Path(name_or_file)
    try:
        return parse_rubric(path.stem, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        names = ", ".join(sorted(file.stem for file in FOLDER.glob("*.md")))
        raise ConfigurationError(
            f"--rubric: {name_or_file!r} is neither a built-in rubric ({names}) nor a readable text file."
        ) from error


def parse_rubric(name: str, content: str) -> Rubric:
    match = _VERSION_LINE.match(content)
    text = content[match.end() :].strip() if match else content.strip()
    if not text:
        raise ConfigurationError(f"The rubric {name!r} is empty: write down what a good decision is.")
    digest = hashlib.blake2b(text.encode(), digest_size=4).hexdigest()
    return Rubric(name=name, version=f"{match['version'] if match else '0'}-{digest}", text=text)
