"""Packing: room for rows and tokens, the order of arrival, short replies beside long ones, no wave of mere padding."""

from __future__ import annotations

import random

from trainer.inference.wave import MAX_ROWS, Reply, Waiting, cheapest_pair, in_waves


def make_reply(*, max_tokens: int = 10, prompt: int = 20, written: int = 0, is_wanted: bool = True) -> Reply:
    reply = Reply(None, tuple(range(prompt)), 1.0, max_tokens, (), random.Random(0), is_wanted=lambda: is_wanted)
    reply.token_ids = [0] * written
    return reply


def waiting_for(replies: list[Reply], *, tokens: int = 10**6) -> Waiting:
    waiting = Waiting(tokens)
    for reply in replies:
        waiting.add(reply)
    return waiting


def test_a_burst_begins_with_as_many_rows_as_are_worth_it_and_the_rest_stays_in_order() -> None:
    replies = [make_reply() for _ in range(20 * MAX_ROWS)]
    waiting = waiting_for(replies)
    begun = waiting.take([])
    assert begun == replies[:MAX_ROWS]
    assert waiting.take([begun]) == []
    assert waiting.take([begun[10:]]) == replies[MAX_ROWS : MAX_ROWS + 10]


def test_replies_begin_only_while_there_is_room_for_all_that_they_may_become() -> None:
    waiting = waiting_for([make_reply(max_tokens=100) for _ in range(5)], tokens=320)
    begun = waiting.take([])
    assert len(begun) == 3  # 20 tokens of the prompt, which they share, and 100 of each reply
    assert waiting.take([begun]) == []
    assert len(waiting.take([begun[:1]])) == 1


def test_a_reply_larger_than_all_room_begins_alone_and_not_never() -> None:
    large = [make_reply(max_tokens=200) for _ in range(2)]
    waiting = waiting_for(large, tokens=100)
    assert waiting.take([]) == large[:1]
    assert waiting.take([large[:1]]) == []
    assert waiting.take([]) == large[1:]


def test_a_short_reply_has_room_however_many_long_ones_wait() -> None:
    long = [make_reply(max_tokens=2_000) for _ in range(50)]
    waiting = waiting_for(long, tokens=5_000)
    begun = waiting.take([])
    short = make_reply(max_tokens=16)
    waiting.add(short)
    assert waiting.take([begun]) == [short]
    assert waiting.take([[*begun, short]]) == []


def test_nobody_begins_a_reply_that_is_not_wanted_any_more() -> None:
    gone, staying = make_reply(is_wanted=False), make_reply()
    waiting = waiting_for([gone, staying])
    assert waiting.remove_unwanted() == [gone]
    assert waiting.take([]) == [staying]
    assert not waiting


def test_a_long_prompt_is_not_what_short_ones_are_padded_to() -> None:
    short = [make_reply(prompt=length) for length in (30, 50, 40)]
    long = make_reply(prompt=8_000)
    assert in_waves([short[0], long, *short[1:]]) == [[short[0], short[2], short[1]], [long]]


def test_the_smallest_waves_are_joined_and_none_that_would_be_mostly_padding() -> None:
    crowd = [make_reply(written=3) for _ in range(40)]
    far = [make_reply(written=1_500, max_tokens=2_000)]
    new, newer = [make_reply(prompt=25)], [make_reply(prompt=30)]
    assert cheapest_pair([crowd, far, new, newer]) == (2, 3)
    assert cheapest_pair([crowd, far]) is None
    assert cheapest_pair([crowd, crowd]) is None  # more rows than a wave has
