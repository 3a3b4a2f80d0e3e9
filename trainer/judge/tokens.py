"""How many tokens a text has, without a tokenizer: the judge's is not known, and its budget must hold anyway.

Three bytes of UTF-8 a token is more than English (about four), about right for JSON full of numbers, and
right for scripts whose characters take three bytes: an upper estimate for what we send.
"""

from __future__ import annotations

BYTES_PER_TOKEN = 3


def count_tokens(text: str) -> int:
    return -(-len(text.encode(errors="replace")) // BYTES_PER_TOKEN)  # a reply may hold half of a surrogate pair
