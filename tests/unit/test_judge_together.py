"""Requests that come together are answered together, each with its own answer."""

from __future__ import annotations

import asyncio

import pytest

from trainer.ledger.verdicts import Together


async def test_what_comes_in_while_one_is_under_way_goes_into_the_next() -> None:
    batches: list[list[int]] = []

    async def double(numbers: list[int]) -> list[int]:
        batches.append(numbers)
        await asyncio.sleep(0.001)
        return [2 * number for number in numbers]

    together = Together(double)
    first = asyncio.create_task(together.ask(1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    others = await asyncio.gather(*(together.ask(number) for number in range(2, 6)))
    assert (await first, others) == (2, [4, 6, 8, 10])
    assert batches == [[1], [2, 3, 4, 5]]


async def test_an_error_is_everybodys_and_the_next_requests_are_answered() -> None:
    async def refuse_seven(numbers: list[int]) -> list[int]:
        if 7 in numbers:
            raise ValueError("seven")
        return numbers

    together = Together(refuse_seven)
    failed = await asyncio.gather(together.ask(6), together.ask(7), return_exceptions=True)
    assert [str(error) for error in failed] == ["seven", "seven"]
    assert await together.ask(8) == 8


async def test_a_request_that_nobody_waits_for_any_more_is_still_finished() -> None:
    stored: list[int] = []

    async def store(numbers: list[int]) -> list[None]:
        await asyncio.sleep(0.01)
        stored.extend(numbers)
        return [None for _ in numbers]

    together = Together(store)
    asked = asyncio.create_task(together.ask(1))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await together.finish()
    assert stored == [1]
