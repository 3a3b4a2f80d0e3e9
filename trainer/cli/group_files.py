"""Files of judged groups: JSON lines, or Parquet by the name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec

from data_bridge.traces import written


@contextmanager
def opened_group_file(path: Path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """What writes a row. The file appears only when it is complete, and equal rows give an equal file.

    Parquet is written at the end, from memory; JSON lines as they come.
    """
    with written(path) as write:
        if path.suffix != ".parquet":
            encoder = msgspec.json.Encoder()
            yield lambda row: _line(write, encoder.encode(row))
            return
        rows: list[dict[str, Any]] = []
        yield rows.append
        write(_parquet(rows))


def _line(write: Callable[[bytes], object], line: bytes) -> None:
    write(line + b"\n")


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    import polars as pl

    text, number = pl.String(), pl.Float64()
    schema = {
        "schema": text,
        "group_id": text,
        "window_id": text,
        "trajectory_id": text,
        "agent_id": text,
        "call": pl.Int64(),
        "messages": pl.List(pl.Struct({"role": text, "content": text})),
        "completion": text,
        "token_ids": pl.List(pl.Int64()),
        "logprobs": pl.List(number),
        "logprobs_temperature": number,
        "model": text,
        "temperature": number,
        "top_p": number,
        "finish_reason": text,
        "reward": number,
        "uncertainty": number,
        "advantage": number,
        "judge": text,
        "rubric": text,
        "orders": pl.Int64(),
    }
    file = BytesIO()
    pl.DataFrame(rows, schema=schema).write_parquet(file)
    return file.getvalue()
