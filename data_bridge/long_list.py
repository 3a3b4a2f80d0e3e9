"""Lists of any length that take little memory: the items are in a temporary file, and are decoded when looked at.

For what grows with the log and is needed more than once: surveyed windows, planned groups, exclusions, verdicts. The
file has no name and belongs to this process alone, so that a kill leaves nothing behind.
"""

from __future__ import annotations

import tempfile
import weakref
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, overload

import msgspec

from data_bridge.errors import ConfigurationError

T = TypeVar("T")

_IN_MEMORY = 1_000_000
"""Bytes up to which no file is made: what most runs need."""
_AT_ONCE = 250_000
"""Bytes read or written at a time."""
_SHOWN = 1_000
"""Items up to which all of them are in a repr: asyncio's debug mode writes one of every result."""


class Lazy(Sequence[T], Generic[T]):
    """A sequence that makes its items when they are looked at; equal to any sequence with equal items."""

    def item(self, place: int) -> T:
        """The item at a ``place`` from 0 to the length."""
        raise NotImplementedError

    @overload
    def __getitem__(self, key: int) -> T: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[T, ...]: ...
    def __getitem__(self, key: int | slice) -> T | tuple[T, ...]:
        places = range(len(self))[key]
        return self.item(places) if isinstance(places, int) else tuple(map(self.item, places))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(tuple(self)) if len(self) <= _SHOWN else f"<{len(self)} items>"

    def sorted(self, key: Callable[[T], Any]) -> Picked[T]:
        """A view of the items in the order of their keys, of which alone all are in memory."""
        keys = list(map(key, self))
        return Picked(self, array("Q", sorted(range(len(keys)), key=keys.__getitem__)))


class LongList(Lazy[T]):
    """Items of one type that msgspec knows: as many as the disk holds, in 8 bytes of memory each.

    ConfigurationError if the temporary file cannot be written.
    """

    def __init__(self, kind: type[T], items: Iterable[T] = ()) -> None:
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._file = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        self._ends = array("Q", [0])
        self._written, self._unwritten = 0, bytearray()
        self._in_memory: dict[int, T] = {}
        """Items with half of a character, which no encoding takes."""
        self.extend(items)

    def append(self, item: T) -> None:
        try:
            self._unwritten += self._encode(item)
        except UnicodeEncodeError:
            self._in_memory[len(self)] = item
        self._ends.append(self._written + len(self._unwritten))
        if len(self._unwritten) > _AT_ONCE:
            self._write()

    def extend(self, items: Iterable[T]) -> None:
        for item in items:
            self.append(item)

    def __len__(self) -> int:
        return len(self._ends) - 1

    def item(self, place: int) -> T:
        first, end = self._ends[place], self._ends[place + 1]
        return self._in_memory[place] if place in self._in_memory else self._decode(self._read(first, end))

    def __iter__(self) -> Iterator[T]:
        begin = 0
        while begin < len(self):
            first = self._ends[begin]
            end = max(begin + 1, bisect_right(self._ends, first + _AT_ONCE) - 1)
            block = memoryview(self._read(first, self._ends[end]))
            for place in range(begin, end):
                if place in self._in_memory:
                    yield self._in_memory[place]
                else:
                    yield self._decode(block[self._ends[place] - first : self._ends[place + 1] - first])
            begin = end

    def _read(self, first: int, end: int) -> bytes:
        if end > self._written:
            self._write()
        self._file.seek(first)
        return self._file.read(end - first)

    def _write(self) -> None:
        try:
            self._file.seek(self._written)
            self._file.write(self._unwritten)
            self._file.flush()
        except OSError as error:
            raise ConfigurationError(
                f"The plan cannot be kept in a temporary file ({error.strerror}): set TMPDIR to a folder with room."
            ) from error
        self._written += len(self._unwritten)
        self._unwritten.clear()


class Picked(Lazy[T]):
    """Some items of another sequence, in an order of their own."""

    def __init__(self, items: Sequence[T], places: Sequence[int]) -> None:
        self._items, self._places = items, places

    def __len__(self) -> int:
        return len(self._places)

    def item(self, place: int) -> T:
        return self._items[self._places[place]]
