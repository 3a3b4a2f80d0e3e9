"""JSON that is printed as it is made is the same text as if it had been made first."""

from __future__ import annotations

import io
from typing import Any

import pytest

from data_bridge.quality import Reason
from data_bridge.redaction import json_text
from trainer.cli.output import Each, say_json


def whole(value: Any) -> Any:
    if isinstance(value, Each):
        return [whole(item) for item in value.items]
    return {name: whole(one) for name, one in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize(
    "value",
    [
        Each([]),
        Each([1, "two", {"three": Each([{"four": Each([float("nan")])}, {}])}]),
        {
            "windows": Each([{"window": 'a"b', "left_out": {Reason.DROPOUT: 2}, "groups": Each([[1, 2]])}]),
            "usage": None,
        },
        {"plain": [1, {"two": "3"}]},
    ],
)
def test_an_array_that_is_made_item_by_item_is_printed_as_a_list(value: Any) -> None:
    printed = io.StringIO()
    say_json(value, to=printed)
    assert printed.getvalue() == json_text(whole(value)) + "\n"
