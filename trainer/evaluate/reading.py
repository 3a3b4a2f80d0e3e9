"""The reading test of a simulated world: questions with a known answer, in four columns, and no judge.

Trained words, unseen words and unseen names (tickers, or places and items) are asked as the world's own rules say; the
days after are the replies that the blind trial got in the evaluation's own windows. The questions and the seeds of the
replies are the same in every evaluation, so that evaluating again changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from data_bridge.models import ChatMessage
from trainer.evaluate.blind_trial import GreedyPolicy
from trainer.evaluate.comparison import Compared
from trainer.evaluate.simulated_replay import SimulatedReplay, follows_news
from trainer.evidence import (
    DAYS_AFTER,
    TRAINED_WORDS,
    UNSEEN_WORDS,
    Narrowing,
    Reader,
    ReadingFigures,
    ReadingTest,
    Role,
)
from trainer.statistics.shares import paired_gain, share_interval
from trainer.types import ChatModel
from trainer.world.actions import MAX_REPLY_TOKENS
from trainer.world.chance import bits, pick
from trainer.world.rules import AnyQuestion, WorldRules

_TRAINED, _UNSEEN, _NAMES = 8, 1, 2
"""A column gets one in so many of the questions: trained words decide nothing, validity needs fewer than direction."""

_ASKED_TOGETHER = 32
"""Questions whose two replies, greedy and sampled, fill one wave of the engine."""

Replies = list[list[str]]
"""The replies to each question."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How the replies to one question, or in one window, were."""

    replies: int
    valid: int
    right: int


async def ask(
    model: ChatModel, asked: Sequence[AnyQuestion], temperature: float, samples: int, seed: int = 0
) -> Replies:
    """The replies of ``model`` at one temperature."""
    [replies] = await ask_at(model, asked, {temperature: samples}, seed)
    return replies


async def ask_at(
    model: ChatModel, asked: Sequence[AnyQuestion], samples: Mapping[float, int], seed: int = 0
) -> list[Replies]:
    """The replies at each temperature, so many each, some questions at a time and all temperatures together."""
    found: dict[tuple[float, int], list[str]] = {}

    async def one(place: int, temperature: float, number: int) -> None:
        question = asked[place]
        key = bits(seed, question.headline) % 2**31
        completions = await model.chat(
            question.messages, n=number, temperature=temperature, max_tokens=MAX_REPLY_TOKENS, seed=key
        )
        found[temperature, place] = [completion.text for completion in completions]

    for together in _sharing_examples(asked):
        await asyncio.gather(*(one(place, *kind) for place in together for kind in samples.items()))
    return [[found[temperature, place] for place in range(len(asked))] for temperature in samples]


def _sharing_examples(asked: Sequence[AnyQuestion]) -> Iterator[list[int]]:
    """The places of questions with the same worked examples, which an engine reads once; like lengths together."""
    alike: dict[tuple[ChatMessage, ...], list[int]] = {}
    for place, question in enumerate(asked):
        alike.setdefault(question.messages[:-1], []).append(place)
    for own in alike.values():
        own.sort(key=lambda place: len(asked[place].headline))
        size = -(-len(own) // -(-len(own) // _ASKED_TOGETHER))
        yield from (own[start : start + size] for start in range(0, len(own), size))


def at_random(asked: Sequence[AnyQuestion], seed: int = 0) -> Replies:
    """Always valid, in a direction that a coin chooses."""
    return [[one.answer(pick((1, -1), seed, "coin", one.headline))] for one in asked]


def as_read(asked: Sequence[AnyQuestion]) -> Replies:
    """What a reader who knows all words answers."""
    return [[one.answer(one.read())] for one in asked]


def marked(asked: Sequence[AnyQuestion], replies: Replies) -> list[Mark]:
    marks = []
    for question, own in zip(asked, replies, strict=True):
        taken = [question.taken(reply) for reply in own]
        valid = len(taken) - taken.count(None)
        marks.append(Mark(len(taken), valid, taken.count(question.direction)))
    return marks


def figures_of(reader: Reader, column: str, marks: Sequence[Mark]) -> ReadingFigures:
    replies, valid, right = (np.array([getattr(one, name) for one in marks]) for name in ("replies", "valid", "right"))
    return ReadingFigures(
        reader,
        column,
        len(marks),
        valid=share_interval(valid, replies),
        right_of_valid=share_interval(right, valid),
        both=share_interval(right, replies),
    )


async def reading_test(
    models: Mapping[Role, ChatModel],
    base: ChatModel,
    compared: Sequence[Compared],
    replay: SimulatedReplay,
    *,
    temperature: float,
    number: int,
    say: Callable[[str], None],
) -> ReadingTest:
    """Ask candidate and base model ``number`` questions with unseen words, and others; see ``columns_of``."""
    marks: dict[tuple[Reader, str], list[Mark]] = {}
    columns = columns_of(replay.rules, number)
    asked = [question for own in columns.values() for question in own]
    heats = {0.0: 1} | ({temperature: 1} if temperature > 0 else {})
    for model, greedy, sampled in (
        (models[Role.CANDIDATE], Reader.CANDIDATE_GREEDY, Reader.CANDIDATE),
        (base, Reader.BASE_GREEDY, Reader.BASE),
    ):
        say(f"reading test: {len(asked)} questions to {model.name}")
        replies = await ask_at(model, asked, heats)
        marks |= _by_column(greedy, columns, replies[0]) | _by_column(sampled, columns, replies[-1])
    for column, own in columns.items():
        marks[Reader.RANDOM, column] = marked(own, at_random(own))
        marks[Reader.SCRIPT, column] = marked(own, as_read(own))
    say(f"reading test: {DAYS_AFTER}")
    marks |= {(reader, DAYS_AFTER): own for reader, own in (await _days_after(models, compared, replay)).items()}
    return _result(marks, temperature)


def columns_of(rules: WorldRules, number: int) -> dict[str, Sequence[AnyQuestion]]:
    """What is asked: ``number`` questions with unseen words, fewer of the others."""
    return {
        TRAINED_WORDS: rules.questions(-(-number // _TRAINED), "trained", "trained"),
        UNSEEN_WORDS: rules.questions(-(-number // _UNSEEN), "unseen", "trained"),
        rules.unseen_names: rules.questions(-(-number // _NAMES), "trained", "unseen"),
    }


def _by_column(
    reader: Reader, columns: Mapping[str, Sequence[AnyQuestion]], replies: Replies
) -> dict[tuple[Reader, str], list[Mark]]:
    """The marks of replies to all columns, one after the other."""
    left = iter(replies)
    return {(reader, column): marked(own, list(islice(left, len(own)))) for column, own in columns.items()}


def unseen_names(test: ReadingTest, where: str) -> Narrowing:
    """Whether the candidate still gives valid replies about names (the column ``where``) that it never trained on."""

    def valid(reader: Reader) -> float | None:
        figures = test.of(reader, where)
        return figures.valid.mean if figures is not None and figures.valid is not None else None

    candidate, base = valid(Reader.CANDIDATE), valid(Reader.BASE)
    asked = test.of(Reader.CANDIDATE, where)
    if asked is None or candidate is None or base is None:
        return Narrowing(where, 0, None, None, "nothing was asked")
    greedy = (valid(Reader.CANDIDATE_GREEDY), valid(Reader.BASE_GREEDY)) if test.temperature > 0 else (None, None)
    return Narrowing(where, asked.questions, candidate, base, "", *greedy)


def _result(marks: Mapping[tuple[Reader, str], Sequence[Mark]], temperature: float) -> ReadingTest:
    def both(reader: Reader) -> list[float]:
        return [one.right / one.replies for one in marks[reader, UNSEEN_WORDS]]

    # In a tie the greedy one: it needs nothing that the other has.
    stronger = max((Reader.BASE_GREEDY, Reader.BASE), key=lambda reader: sum(both(reader)))
    return ReadingTest(
        temperature,
        tuple(figures_of(reader, column, own) for (reader, column), own in marks.items()),
        stronger,
        paired_gain(both(Reader.CANDIDATE), both(stronger)),
    )


async def _days_after(
    models: Mapping[Role, ChatModel], compared: Sequence[Compared], replay: SimulatedReplay
) -> dict[Reader, list[Mark]]:
    """The trial's replies, a window each. Only the greedy candidate, whom nobody judges, is still to be asked."""
    known = [(at, moment) for at in compared if (moment := replay.moment(at.point)) is not None]
    greedy = GreedyPolicy(models[Role.CANDIDATE])
    answers = await asyncio.gather(*(greedy.replies(at.point, samples=1, temperature=0.0, seed=0) for at, _ in known))
    roles = {
        Reader.CANDIDATE: Role.CANDIDATE,
        Reader.BASE: Role.BASE if Role.BASE in models else Role.INCUMBENT,
        Reader.BASE_GREEDY: Role.GREEDY,
        Reader.RANDOM: Role.RANDOM,
        Reader.SCRIPT: Role.BASELINE,
    }
    by_window: dict[Reader, dict[str, list[tuple[bool, bool]]]] = {reader: {} for reader in Reader}
    for (at, moment), [answer] in zip(known, answers, strict=True):
        texts = {reader: [reply.text for reply in at.replies.get(role, ())] for reader, role in roles.items()}
        for reader, own in (texts | {Reader.CANDIDATE_GREEDY: [answer.text]}).items():
            for text in own:
                played, right = replay.play(at.point, text), follows_news(moment, text)
                if right is not None and played is not None:
                    by_window[reader].setdefault(at.point.window_id, []).append((played.is_valid, right))
    return {
        reader: [Mark(len(own), sum(valid for valid, _ in own), sum(right for _, right in own)) for own in of.values()]
        for reader, of in by_window.items()
    }
