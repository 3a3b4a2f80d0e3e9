"""Makes agents' text safe for a prompt, so that it is read as data and never as structure, and estimates its size.

Everything an agent wrote or chose goes to the judge inside a JSON string. In addition to JSON's own quoting,
``<``, ``>``, ``&``, backticks and chat-template brackets are written as ``\\uXXXX``, so that no text can
close our tags, open a trajectory or start a system turn; invisible characters (control, bidi, zero-width,
private and unpaired ones) are removed, and characters that look like ASCII are converted to it first.

What a model said is trained as it was said, so ``encode_exactly`` cleans nothing away: hidden characters are written
as escapes that the judge can read.

Tokens are estimated, since the judge's tokenizer is unknown and the budget must hold anyway. The estimate is higher
than the count of common tokenizers, in thirds of a token, and goes by pairs of characters: a lower-case letter that
often follows the one before it is one third (in English each takes a quarter of a token), and up to a whole token where
it does not, as in random letters; a digit or a punctuation mark is a whole token, since many tokenizers split them.
"""

from __future__ import annotations

import json
import math
import re
import string
import unicodedata
from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ue000-\uf8ff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\uffff"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U0010ffff]"
)
_BREAKS = re.compile("[\r\x0b\x0c\x85\u2028\u2029]")
_SPACES = re.compile(r"[^\S\n]+")
_BLANK_LINES = re.compile(r" ?\n[ \n]*")
_STRUCTURE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "`": "\\u0060"}
_TEMPLATE_BRACKET = re.compile(r"\[(?=/?[A-Z_]{3,}\])")

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_ASCII = json.JSONEncoder(separators=(",", ":"))

_MAX_DEPTH = 50  # levels of nesting: no decision needs more, and an agent's data must not exhaust the stack
_TOO_DEEP = "nested too deeply"
_DIGITS = 6  # of a number, so that 0.1 + 0.2 does not take seventeen characters


def clean(text: str) -> str:
    """``text`` as a person would see it: one kind of line break, no runs of spaces, no invisible characters."""
    text = text.strip()
    if _is_clean(text):
        return text
    if not text.isascii():
        text = unicodedata.normalize("NFKC", _BREAKS.sub("\n", text))
    text = _UNSEEN.sub("", _BREAKS.sub("\n", text))
    return _BLANK_LINES.sub("\n", _SPACES.sub(" ", text)).strip()


def encode(value: Any) -> str:
    """``value`` as JSON that is safe between our tags. It decodes to the cleaned value."""
    return escape(_JSON.encode(_cleaned(value)))


def encode_exactly(value: Any) -> str:
    """``value`` as JSON that is safe between our tags and decodes to the value itself, character by character.

    What is not plain text (hidden or look-alike characters, odd spaces) is written as escapes, with all of its script.
    """
    kept = _kept(value)
    plain = _ASCII.encode(kept).replace("\x7f", "\\u007f")
    cleaned = _JSON.encode(_cleaned(kept)) if "\\u" in plain else plain
    return escape(cleaned if json.loads(cleaned) == kept else plain)


def escape(encoded: str) -> str:
    """JSON text in which every character that could act as structure in the prompt is escaped."""
    for character, written in _STRUCTURE.items():
        encoded = encoded.replace(character, written)
    return _TEMPLATE_BRACKET.sub(r"\\u005b", encoded)


def _is_clean(text: str) -> bool:
    """A quick check that most text passes: printable ASCII with single spaces and line breaks between words."""
    flat = text.replace("\n", " ")
    return flat.isascii() and flat.isprintable() and "  " not in flat


def _cleaned(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, bool) or value is None or isinstance(value, int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        rounded = float(f"{value:.{_DIGITS}g}") if abs(value) < 10**_DIGITS else round(value, 2)
        return int(rounded) if rounded.is_integer() else rounded
    if depth == _MAX_DEPTH and isinstance(value, (dict, list, tuple)):
        return _TOO_DEEP
    if isinstance(value, dict):
        return _cleaned_object(value, depth)
    if isinstance(value, (list, tuple)):
        return [_cleaned(part, depth + 1) for part in value]
    return clean(str(value))


def _kept(value: Any, depth: int = 0) -> Any:
    """``value`` with nothing changed but what JSON cannot hold or the stack could not bear."""
    if isinstance(value, dict):
        return {str(key): _kept(part, depth + 1) for key, part in value.items()} if depth < _MAX_DEPTH else _TOO_DEEP
    if isinstance(value, (list, tuple)):
        return [_kept(part, depth + 1) for part in value] if depth < _MAX_DEPTH else _TOO_DEEP
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, (str, int, float)) else str(value)


def _cleaned_object(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    """Names that become equal by cleaning get a number each, so that no value hides another."""
    shown: dict[str, Any] = {}
    times: Counter[str] = Counter()
    for key, part in value.items():
        cleaned = name = clean(str(key))
        while name in shown:
            times[cleaned] += 1
            name = f"{cleaned} ({times[cleaned] + 1})"
        shown[name] = _cleaned(part, depth + 1)
    return shown


THIRDS_PER_TOKEN = 3

_FOLLOWERS = dict(
    zip(
        "abcdefghiklmnopqrstuvwx",
        (
            *(
                "bcdilmnprstuvy",
                "elouy",
                "ehklotu",
                "eirs",
                "acdelmnprstvxy",
                "ior",
                "eh",
                "aeio",
                "cdefglmnorstv",
                "e",
            ),
            *("adeilosuy", "aeop", "acdegiost", "bdfkmnprstuvw", "aelor", "u", "adegimnosty", "ehiopstu", "aehiorsu"),
            *("gilmnprst", "e", "hi", "pt"),
        ),
        strict=True,
    )
)
"""For each letter, those that often follow it in English."""


@cache
def _costs() -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Thirds of a token for a byte (low half of the index) after another (high half).

    numpy is imported where tokens are counted: a driver whose workers judge never does.
    """
    import numpy as np

    costs = np.full((256, 256), THIRDS_PER_TOKEN, np.uint8)
    costs[:, list(string.whitespace.encode())] = 1
    costs[:, 0x80:0xE0], costs[:, 0xE0:0xF0], costs[:, 0xE3:0xEE], costs[:, 0xF0:] = 2, 5, 3, 6
    lower, upper = (list(letters.encode()) for letters in (string.ascii_lowercase, string.ascii_uppercase))
    costs[:, lower], costs[:, upper] = 1, 2
    for letters in (lower, upper, list(string.digits.encode())):
        costs[np.ix_(letters, lower)] = costs[np.ix_(letters, upper)] = THIRDS_PER_TOKEN
    for vowel in b"aeiou":
        costs[lower, vowel] = costs[vowel, lower] = 2
    for first, others in _FOLLOWERS.items():
        for second in others:
            costs[ord(first), ord(second)] = costs[ord(first.upper()), ord(second)] = 1
            costs[ord(first.upper()), ord(second.upper())] = 2
    return costs.ravel()


_SPACE = 0x20


def thirds(text: str) -> int:
    """The size of ``text`` in thirds of a token, the unit used to fit a prompt into its budget.

    The size of texts that are joined by punctuation or spaces is at most the sum of theirs.
    """
    import numpy as np

    encoded = np.frombuffer(b" " + text.encode(errors="replace") + b" ", np.uint8)  # it may have a lone surrogate
    pairs = encoded[:-2].astype(np.uint16) << 8 | encoded[1:-1]
    spaces = encoded == _SPACE
    single = np.count_nonzero(spaces[:-2] & ~spaces[1:-1] & spaces[2:])  # a word of one letter is a whole token
    return int(_costs()[pairs].sum(dtype=np.int64)) + int(single)


def count_tokens(text: str) -> int:
    return -(-thirds(text) // THIRDS_PER_TOKEN)
