"""How many tokens a text has, without a tokenizer: the judge's is not known, and its budget must hold anyway.

An estimate on the safe side of the common tokenizers, in thirds of a token: a small letter or a blank is one third
(English takes a quarter of a token each), a capital two, a digit or a sign a whole token, since many tokenizers
split them, a byte of another script two thirds. Only random letters take more.
"""

from __future__ import annotations

import string

THIRDS_PER_TOKEN = 3

_LIGHT = (string.ascii_lowercase + string.whitespace).encode()
_CAPITALS = string.ascii_uppercase.encode()
_OTHER_SCRIPTS = bytes(range(128, 256))


def thirds(text: str) -> int:
    """The size of ``text`` in thirds of a token, the unit in which a prompt is fitted to its budget."""
    encoded = text.encode(errors="replace")  # a reply may hold half of a surrogate pair
    not_light = encoded.translate(None, _LIGHT)
    signs = len(not_light.translate(None, _CAPITALS + _OTHER_SCRIPTS))
    return len(encoded) + len(not_light) + signs


def count_tokens(text: str) -> int:
    return -(-thirds(text) // THIRDS_PER_TOKEN)
