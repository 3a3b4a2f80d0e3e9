"""Verdicts that were paid for once: looked up before a call, claimed during it, stored before they are used.

A claim is a row with a lease that the holder keeps renewing; a process that finds a live claim waits for
that verdict instead of paying for it too, and takes over when the lease expires. Every step is one short
transaction, so a pooler in transaction mode works; concurrent requests are combined into one statement.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

import asyncpg
import msgspec

from data_bridge.database import Database
from trainer.types import JudgeIdentity

logger = logging.getLogger(__name__)

LEASE = timedelta(seconds=30)
"""How long a dead host's claim blocks others."""

_LOAD = """
SELECT verdict_key, order_number, scores, prompt_hash, prompt_tokens, completion_tokens, cached_tokens, cost_usd,
       characters_cut
  FROM hindsight.verdicts WHERE verdict_key = ANY($1)
"""
# Rows in key order, skipping those that another host holds: two hosts can never deadlock.
_CLAIM = """
INSERT INTO hindsight.verdict_claims AS c (verdict_key, order_number, holder, expires_at)
SELECT wanted.*, $3, clock_timestamp() + $4
  FROM (SELECT DISTINCT * FROM unnest($1::text[], $2::int[]) AS w(k, n) ORDER BY k, n) AS wanted
 WHERE NOT EXISTS (SELECT FROM hindsight.verdict_claims AS live
                    WHERE live.verdict_key = k AND live.order_number = n AND live.expires_at >= clock_timestamp())
    ON CONFLICT (verdict_key, order_number) DO UPDATE SET holder = EXCLUDED.holder, expires_at = EXCLUDED.expires_at
 WHERE c.expires_at < clock_timestamp()
RETURNING verdict_key, order_number
"""
_RENEW = """
WITH ours AS (SELECT verdict_key, order_number FROM hindsight.verdict_claims WHERE holder = $1
               ORDER BY verdict_key, order_number FOR UPDATE)
UPDATE hindsight.verdict_claims AS c SET expires_at = clock_timestamp() + $2 FROM ours
 WHERE c.verdict_key = ours.verdict_key AND c.order_number = ours.order_number
"""
_RELEASE = """
DELETE FROM hindsight.verdict_claims AS c USING unnest($1::text[], $2::int[]) AS w(k, n)
 WHERE c.verdict_key = w.k AND c.order_number = w.n AND c.holder = $3
"""
_RELEASE_ALL = "DELETE FROM hindsight.verdict_claims WHERE holder = $1"
_VERDICT = """verdict_key, order_number, judge, is_llm, rubric, rubric_version, prompt_version, prompt_hash, run_id,
       window_id, group_id, scores, prompt_tokens, completion_tokens, cached_tokens, cost_usd, characters_cut, pass"""
_CALL = """run_id, verdict_key, order_number, window_id, group_id, judge, prompt_hash, result, fault, prompt_tokens,
       completion_tokens, cached_tokens, tokens_estimated, cost_usd, latency_ms"""
_RECORD_CALLS = f"""
INSERT INTO hindsight.judge_calls ({_CALL})
SELECT {_CALL} FROM jsonb_populate_recordset(NULL::hindsight.judge_calls, $1)
"""
# One statement, so that it is one round trip and needs no transaction around it.
_STORE = f"""
WITH recorded AS ({_RECORD_CALLS}), stored AS (
INSERT INTO hindsight.verdicts ({_VERDICT})
SELECT {_VERDICT} FROM jsonb_populate_recordset(NULL::hindsight.verdicts, $2)
    ON CONFLICT (verdict_key, order_number) DO NOTHING
)
DELETE FROM hindsight.verdict_claims AS c USING jsonb_populate_recordset(NULL::hindsight.verdict_claims, $2) AS w
 WHERE c.verdict_key = w.verdict_key AND c.order_number = w.order_number AND c.holder = $3
"""

_UNANSWERED = """
SELECT verdict_key FROM hindsight.judge_calls WHERE verdict_key = ANY($1) AND result IN ('bad_reply', 'filtered')
 GROUP BY verdict_key, order_number HAVING bool_or(result = 'filtered') OR count(*) >= $2
"""
MAX_REPLIES = 2
"""Requested for one usable reply."""

Q = TypeVar("Q")
A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class JudgeQuestion:
    """One group in one order for one judge: what is paid for at most once."""

    verdict_key: str
    order_number: int
    window_id: str
    group_id: str
    identity: JudgeIdentity
    is_blind: bool = False
    """Whether it is about the decisions without their outcome: the first of two passes."""


@dataclass(frozen=True, slots=True)
class JudgedTrajectory:
    """The score of one trajectory in one order. ``content`` is the digest of its view."""

    content: str
    trajectory_id: str
    score: float
    """What is trained. In two passes: ``blind``, corrected by what hindsight shows about the reasons."""
    explanation: str
    blind: float | None = None
    """In two passes: the score without the outcome."""
    hindsight: float | None = None
    """In two passes: the score with it."""
    correction: float | None = None
    """In two passes: what the judge says that hindsight shows about the reasons."""
    steps: tuple[float | None, ...] = ()
    """With --step-credit: the score of each decision, None where there is no usable one."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """An answered question."""

    scores: tuple[JudgedTrajectory, ...]
    prompt_hash: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float = 0.0
    characters_cut: int = 0


class CallResult(StrEnum):
    """How a call ended."""

    OK = "ok"
    BAD_REPLY = "bad_reply"
    """Answered, but not usable: wrong ids, a score out of range, a refusal, a cut-off."""
    FILTERED = "filtered"
    """The endpoint would not answer because of what it was shown: a content filter."""
    REFUSED = "refused"
    """The endpoint rejected the request (no such format, no such model, no access)."""
    BUSY = "busy"
    FAILED = "failed"
    """5xx, or no connection."""
    TIMEOUT = "timeout"


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the endpoint and its result."""

    result: CallResult
    prompt_hash: str
    latency_ms: float
    fault: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt tokens, those that the provider's prefix cache served."""
    tokens_estimated: bool = False
    cost_usd: float = 0.0


Answered = tuple[JudgeQuestion, Judgement, Call | None]


class VerdictStore(Protocol):
    """Stores judgements. ``claim`` is exclusive until ``release`` or the end of its lease."""

    async def load(self, verdict_key: str) -> dict[int, Judgement]: ...

    async def is_unanswered(self, verdict_key: str) -> bool:
        """Whether the judge has refused this question, or given no usable reply to it as often as it is asked."""
        ...

    async def claim(self, question: JudgeQuestion) -> tuple[bool, Judgement | None]:
        """Whether the question is ours to ask; and its judgement, if another process has stored it by now."""
        ...

    async def release(self, question: JudgeQuestion) -> None: ...

    async def store(self, question: JudgeQuestion, judgement: Judgement, call: Call | None = None) -> None:
        """Store the judgement and its call, both or neither; a claim on it ends."""
        ...

    async def record_call(self, question: JudgeQuestion, call: Call) -> None: ...

    async def spent(self) -> float:
        """Dollars that this run has paid so far, including earlier attempts."""
        ...


class MemoryVerdicts:
    """Forgets everything with the process: for judging without a database, and for asking again deliberately."""

    def __init__(self) -> None:
        self.judgements: dict[str, dict[int, Judgement]] = {}
        self.calls: list[tuple[JudgeQuestion, Call]] = []
        self._claimed: set[tuple[str, int]] = set()

    async def load(self, verdict_key: str) -> dict[int, Judgement]:
        return dict(self.judgements.get(verdict_key, {}))

    async def is_unanswered(self, verdict_key: str) -> bool:
        results = [call.result for question, call in self.calls if question.verdict_key == verdict_key]
        return CallResult.FILTERED in results or results.count(CallResult.BAD_REPLY) >= MAX_REPLIES

    async def claim(self, question: JudgeQuestion) -> tuple[bool, Judgement | None]:
        name = (question.verdict_key, question.order_number)
        taken = name not in self._claimed
        self._claimed.add(name)
        return taken, self.judgements.get(question.verdict_key, {}).get(question.order_number)

    async def release(self, question: JudgeQuestion) -> None:
        self._claimed.discard((question.verdict_key, question.order_number))

    async def store(self, question: JudgeQuestion, judgement: Judgement, call: Call | None = None) -> None:
        if call is not None:
            await self.record_call(question, call)
        self.judgements.setdefault(question.verdict_key, {}).setdefault(question.order_number, judgement)

    async def record_call(self, question: JudgeQuestion, call: Call) -> None:
        self.calls.append((question, call))

    async def spent(self) -> float:
        return 0.0


class Together(Generic[Q, A]):
    """Answers many small requests with one statement: requests that arrive while one is running go into the next.

    Adds no delay of its own: a single request is sent alone, immediately.
    """

    def __init__(self, work: Callable[[list[Q]], Awaitable[list[A]]]) -> None:
        """``work`` returns one answer per question, in order; its error is raised for all of them."""
        self._work = work
        self._waiting: list[tuple[Q, asyncio.Future[A]]] = []
        self._under_way: asyncio.Task[None] | None = None

    async def ask(self, question: Q) -> A:
        answer: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, answer))
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.create_task(self._answer_all())
        return await answer

    async def finish(self) -> None:
        """Wait for the running statements, also for callers that no longer wait."""
        if self._under_way is not None:
            await self._under_way

    async def _answer_all(self) -> None:
        while self._waiting:
            asked, self._waiting = self._waiting, []
            try:
                answers = await self._work([question for question, _ in asked])
            except Exception as error:
                for _, future in asked:
                    if not future.done():
                        future.set_exception(error)
            else:
                for (_, future), answer in zip(asked, answers, strict=True):
                    if not future.done():
                        future.set_result(answer)


class PostgresVerdicts:
    """``hindsight.verdicts``, ``judge_calls`` and ``verdict_claims``. Created by ``open_verdicts``."""

    def __init__(self, database: Database, run_id: str, lease: timedelta = LEASE, holder: str | None = None) -> None:
        self._pool = database.pool
        self._run_id = run_id
        self._lease = lease
        self._holder = holder or f"{run_id}/{uuid.uuid4().hex}"
        self._held: set[tuple[str, int]] = set()
        self._loads = Together(self._load_all)
        self._refusals = Together(self._unanswered_all)
        self._claims = Together(self._claim_all)
        self._stores = Together(self._store_all)

    async def load(self, verdict_key: str) -> dict[int, Judgement]:
        return await self._loads.ask(verdict_key)

    async def is_unanswered(self, verdict_key: str) -> bool:
        return await self._refusals.ask(verdict_key)

    async def claim(self, question: JudgeQuestion) -> tuple[bool, Judgement | None]:
        return await self._claims.ask(question)

    async def release(self, question: JudgeQuestion) -> None:
        key, order = question.verdict_key, question.order_number
        if (key, order) in self._held:
            self._held.discard((key, order))
            await self._pool.execute(_RELEASE, [key], [order], self._holder)

    async def store(self, question: JudgeQuestion, judgement: Judgement, call: Call | None = None) -> None:
        await self._stores.ask((question, judgement, call))

    async def _load_all(self, keys: list[str]) -> list[dict[int, Judgement]]:
        found: dict[str, dict[int, Judgement]] = {key: {} for key in keys}
        for row in await self._pool.fetch(_LOAD, list(found)):
            judgement = msgspec.convert({**row, "scores": json.loads(row["scores"])}, Judgement)
            found[row["verdict_key"]][row["order_number"]] = judgement
        return [found[key] for key in keys]

    async def _unanswered_all(self, keys: list[str]) -> list[bool]:
        found = {row["verdict_key"] for row in await self._pool.fetch(_UNANSWERED, keys, MAX_REPLIES)}
        return [key in found for key in keys]

    async def _claim_all(self, questions: list[JudgeQuestion]) -> list[tuple[bool, Judgement | None]]:
        names = [(question.verdict_key, question.order_number) for question in questions]
        keys, numbers = [key for key, _ in names], [number for _, number in names]
        rows = await self._pool.fetch(_CLAIM, keys, numbers, self._holder, self._lease)
        taken = {(row["verdict_key"], row["order_number"]) for row in rows}
        self._held |= taken
        # Looked up after the claim, in a separate statement: only then does it see what the last holder stored.
        known = await self._load_all(keys)
        answers = []
        for name, orders in zip(names, known, strict=True):
            answers.append((name in taken, orders.get(name[1])))
            taken.discard(name)  # requested twice at once: the first one has it
        return answers

    async def _store_all(self, answered: list[Answered]) -> list[None]:
        """Store verdicts and calls and delete the claims, all or nothing."""
        answered = sorted(answered, key=lambda item: (item[0].verdict_key, item[0].order_number))
        verdicts = [self._row(question, judgement) for question, judgement, _ in answered]
        calls = [self._row(question, call) for question, _, call in answered if call is not None]
        names = [(question.verdict_key, question.order_number) for question, _, _ in answered]
        await self._pool.execute(_STORE, json.dumps(calls), json.dumps(verdicts), self._holder)
        self._held.difference_update(names)
        return [None] * len(answered)

    async def record_call(self, question: JudgeQuestion, call: Call) -> None:
        await self._pool.execute(_RECORD_CALLS, json.dumps([self._row(question, call)]))

    async def spent(self) -> float:
        asked = "SELECT coalesce(sum(cost_usd), 0) FROM hindsight.judge_calls WHERE run_id = $1"
        return float(await self._pool.fetchval(asked, self._run_id))

    async def keep_claims(self) -> None:
        """Renew our claims forever. A failed renewal is retried; the lease outlives two failures."""
        while True:
            await asyncio.sleep(self._lease.total_seconds() / 3)
            if self._held:
                try:
                    await self._pool.execute(_RENEW, self._holder, self._lease)
                except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    logger.warning("could not renew the claims on verdicts", exc_info=True)

    async def finish(self) -> None:
        """Wait for running writes, then release every claim.

        Also a claim that was cancelled halfway, which we may or may not hold.
        """
        for requests in (self._loads, self._refusals, self._claims, self._stores):
            await requests.finish()
        await self._pool.execute(_RELEASE_ALL, self._holder)

    def _row(self, question: JudgeQuestion, answer: Judgement | Call) -> dict[str, object]:
        """Fields have the names of columns; a statement uses those of its table."""
        return {
            "verdict_key": question.verdict_key,
            "order_number": question.order_number,
            "run_id": self._run_id,
            "window_id": question.window_id,
            "group_id": question.group_id,
            "pass": "blind" if question.is_blind else "hindsight",
            **msgspec.to_builtins(question.identity),
            **msgspec.to_builtins(answer),
        }


async def release_claims_of_dead(database: Database, run_id: str) -> None:
    """Drop the claims that earlier processes of ``run_id`` left; only call this if they are known to be gone."""
    await database.pool.execute("DELETE FROM hindsight.verdict_claims WHERE starts_with(holder, $1)", f"{run_id}/")


@asynccontextmanager
async def open_verdicts(
    database: Database, run_id: str, lease: timedelta = LEASE, holder: str | None = None
) -> AsyncIterator[PostgresVerdicts]:
    """The store of one run, which renews its claims while it is open."""
    verdicts = PostgresVerdicts(database, run_id, lease, holder)
    renewal = asyncio.create_task(verdicts.keep_claims(), name="keep verdict claims")
    try:
        yield verdicts
    finally:
        renewal.cancel()
        await asyncio.gather(renewal, return_exceptions=True)
        await verdicts.finish()
