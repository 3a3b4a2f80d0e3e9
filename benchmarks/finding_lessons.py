"""Finding lessons: the right one among many, and how long it takes over HTTP.

    python benchmarks/finding_lessons.py                    500 planted pairs among 100,000, then 20 requests a second
    python benchmarks/finding_lessons.py --number 10000     among fewer
    python benchmarks/finding_lessons.py --home DIR --no-quality    the requests again, on the lessons of an earlier run
    python benchmarks/finding_lessons.py --locomo FILE      LoCoMo's questions whose evidence is in the top 10
    python benchmarks/finding_lessons.py --junk 10000       near duplicates and recycled entries, consolidated twice

Embedding a hundred thousand texts takes a core about a quarter of an hour; vectors are kept in --cache. With --distinct
only that many of the other lessons are embedded, and the rest are pairs of them: both texts, and the mean of both
vectors, which is what an embedding of both is near to. The output says so.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp
import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from data_bridge.database import Database, open_database  # noqa: E402
from data_bridge.embedded import EmbeddedServer  # noqa: E402
from tests.builders_console import ConsoleProcess  # noqa: E402
from tests.builders_planted import PlantedPair, fillers, junk, planted_pairs, planted_rules  # noqa: E402
from trainer.config.lessons import KeptLessons  # noqa: E402
from trainer.inference.embedding import EmbeddedModel  # noqa: E402
from trainer.ledger.ingest_keys import make_ingest_key  # noqa: E402
from trainer.ledger.lessons import store_lessons, vector_type  # noqa: E402
from trainer.lesson import Embedder, LessonKind, NewLesson, Scope, Trust  # noqa: E402
from trainer.lessons.consolidate import consolidate  # noqa: E402
from trainer.lessons.memory_index import IndexQuery  # noqa: E402
from trainer.lessons.retrieval import Lessons, fused  # noqa: E402

KNOWN = datetime(2026, 3, 2, tzinfo=UTC)
TOP = 10
CLIENTS, PER_SECOND = 100, 20


def lesson(text: str, game: str = "game", known_at: datetime = KNOWN) -> NewLesson:
    return NewLesson(LessonKind.EPISODIC, Scope(game), "Lesson", text, known_at, Trust.VERDICT)


async def embedded(texts: list[str], embedder: Embedder, cache: Path | None) -> Any:
    """Vectors of ``texts``, from the cache if they are there."""
    name = hashlib.blake2b("\x1f".join(texts).encode(), digest_size=12).hexdigest()
    file = None if cache is None else cache / f"{embedder.name}-{name}.npy"
    if file is not None and file.exists():
        return np.load(file)
    parts, started = [], time.monotonic()
    for start in range(0, len(texts), 2048):
        parts.append(await embedder.embed(texts[start : start + 2048]))
        done = min(len(texts), start + 2048)
        print(f"  embedded {done:,} of {len(texts):,} in {time.monotonic() - started:.0f} s", flush=True)
    vectors = np.concatenate(parts)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, vectors)
    return vectors


async def fill(database: Database, embedder: Embedder, arguments: argparse.Namespace) -> list[PlantedPair]:
    pairs = planted_pairs(arguments.pairs, arguments.seed)
    last = [lesson(one.lesson).lesson_id for one in pairs]  # they are stored last
    query = "SELECT count(*) FROM hindsight.lessons WHERE lesson_id = ANY($1)"
    if await database.pool.fetchval(query, last) == len(set(last)):
        kept = await database.pool.fetchval("SELECT count(*) FROM hindsight.lessons WHERE game = 'game'")
        print(f"  {kept:,} lessons are there already")
        return pairs
    others = arguments.number - len(pairs)
    distinct = min(others, arguments.distinct or others)
    texts = list(fillers(distinct, arguments.seed + 1))
    vectors = await embedded([lesson(text).text for text in texts], embedder, arguments.cache)
    chance = np.random.default_rng(arguments.seed)
    if others > distinct:
        one, two = (chance.integers(0, distinct, others - distinct) for _ in range(2))
        texts += [f"{texts[a]} {texts[b]}" for a, b in zip(one, two, strict=True)]
        mixed = vectors[one] + vectors[two]
        vectors = np.concatenate([vectors, mixed / np.linalg.norm(mixed, axis=1, keepdims=True)])
        print(f"  {distinct:,} of the others are embedded, {others - distinct:,} are pairs of them")
    planted = [one.lesson for one in pairs]
    own = await embedded([lesson(text).text for text in planted], embedder, arguments.cache)
    kind = await vector_type(database.pool)
    started = time.monotonic()
    everything, rows = [*texts, *planted], np.concatenate([vectors, own]).astype(np.float32)
    for start in range(0, len(everything), 5000):
        part = [lesson(text) for text in everything[start : start + 5000]]
        await store_lessons(database.pool, kind, part, rows[start : start + 5000], embedder.name)
    print(f"  stored {len(everything):,} in {time.monotonic() - started:.0f} s")
    return pairs


async def quality(lessons: Lessons, pairs: list[PlantedPair]) -> None:
    """The share of pairs whose lesson is in the top 10, by words, by meaning, and fused."""
    from trainer.ledger.lesson_search import horizon
    from trainer.lesson import ALL_KINDS

    await lessons.retrieve("warm up", Scope("game"), as_of=KNOWN)
    hits: Counter[tuple[str, str]] = Counter()
    for pair in pairs:
        found = await lessons.retrieve(pair.query, Scope("game"), as_of=KNOWN, k=TOP)
        wanted = lesson(pair.lesson).lesson_id
        (vector,) = await lessons.embedder.embed([pair.query])
        index = lessons._indexes["game"]
        seen = await horizon(lessons.database.pool, "game", index.heard, pair.query)
        (ranked,) = index.search([IndexQuery(vector, seen.lexemes, Scope("game"), KNOWN, ALL_KINDS, (), 50)])
        assert fused(ranked)
        own = next((one for one in ranked if one.lesson_id == wanted), None)
        hits["fused", pair.sort] += any(one.lesson.lesson_id == wanted for one in found)
        hits["words", pair.sort] += own is not None and own.told_place is not None and own.told_place <= TOP
        hits["meaning", pair.sort] += own is not None and own.meant_place is not None and own.meant_place <= TOP
    sorts = Counter(pair.sort for pair in pairs)
    print(f"\nThe right lesson in the top {TOP}, of {len(pairs)} planted pairs")
    print(f"{'':10}{'all':>8}" + "".join(f"{sort:>10}" for sort in sorted(sorts)))
    for way in ("words", "meaning", "fused"):
        total = sum(hits[way, sort] for sort in sorts) / len(pairs)
        parts = "".join(f"{hits[way, sort] / sorts[sort]:>10.1%}" for sort in sorted(sorts))
        print(f"{way:10}{total:>8.1%}{parts}")


@dataclass(frozen=True, slots=True)
class Answered:
    took: float
    status: int
    inside: float
    """As the server says it took, in ms too."""


class Client:
    """Asks the console as an agent would; one connection pool for all, as cheap as Python has it."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ask(self, agent: str, key: str, text: str) -> Answered:
        body = {"context": text, "k": TOP, "agent_id": agent, "as_of": KNOWN.isoformat()}
        started = time.perf_counter()
        try:
            async with self._session.post(
                "/api/v1/memory/retrieve", json=body, headers={"authorization": f"Bearer {key}"}
            ) as answer:
                said = await answer.json()
                took = (time.perf_counter() - started) * 1000
                return Answered(took, answer.status, said.get("took_ms", 0.0))
        except (aiohttp.ClientError, TimeoutError):
            return Answered((time.perf_counter() - started) * 1000, 0, 0.0)


async def latency(
    database: Database, server: EmbeddedServer, home: Path, pairs: list[PlantedPair], seconds: float
) -> None:
    """100 paced clients, 20 requests a second in all, each with a key of its own, against the real console.

    No two requests have the same context, so that every one is embedded.
    """
    keys = [(f"agent-{n}", (await make_ingest_key(database, "agent", f"agent-{n}"))[1]) for n in range(CLIENTS)]
    with ConsoleProcess(server.url(), home) as console:
        # Shorter than the server keeps a connection: none is used that the other side has just closed.
        connector = aiohttp.TCPConnector(limit=CLIENTS, keepalive_timeout=2)
        timeout = aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(console.url, connector=connector, timeout=timeout) as session:
            client = Client(session)
            print("\nThe first request, which loads the model and the vectors:", flush=True)
            print(f"  {(await client.ask(*keys[0], 'warm up')).took / 1000:.1f} s")
            for number in range(20):
                await client.ask(*keys[number], f"{pairs[number % len(pairs)].query}, warm up {number}")
            done: list[Answered] = []

            async def paced(place: int) -> None:
                loop = asyncio.get_running_loop()
                due = loop.time() + place / PER_SECOND
                end, number = loop.time() + seconds, place
                while due < end:
                    await asyncio.sleep(max(0.0, due - loop.time()))
                    context = f"{pairs[number % len(pairs)].query}, {place} {number}"
                    done.append(await client.ask(*keys[place], context))
                    due, number = due + CLIENTS / PER_SECOND, number + 37

            used = Used(console.pid, home)
            await asyncio.gather(*(paced(place) for place in range(CLIENTS)))
            used.report(len(done))
    report(done, seconds)


class Used:
    """The processor time that each part takes, and how busy the machine is with others."""

    def __init__(self, console: int, home: Path) -> None:
        import psutil

        own = psutil.Process(console)
        postgres = psutil.Process(int((home / "postgres" / "data" / "postmaster.pid").read_text().split()[0]))
        self._parts = {
            "console": [own],
            "embedding model": [one for one in own.children(recursive=True) if "minilm" in " ".join(one.cmdline())],
            "Postgres": [postgres, *postgres.children()],
            "clients": [psutil.Process()],
        }
        self._at, self._load, self._before = time.monotonic(), os.getloadavg(), self._now()
        self._all = psutil.cpu_times()

    def _now(self) -> dict[str, float]:
        import psutil

        found = {}
        for name, processes in self._parts.items():
            found[name] = 0.0
            for one in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    found[name] += sum(one.cpu_times()[:2])
        return found

    def report(self, requests: int) -> None:
        import psutil

        passed, now = time.monotonic() - self._at, self._now()
        spent = {name: now[name] - self._before[name] for name in now}
        busy = sum(psutil.cpu_times()[:3]) - sum(self._all[:3])
        before, after = (" ".join(f"{one:.2f}" for one in load) for load in (self._load, os.getloadavg()))
        print(f"load average {before} before, {after} after; {os.cpu_count()} cores")
        for name, seconds in spent.items():
            print(f"  {name:16} {seconds:6.1f} s of processor time, {1000 * seconds / requests:5.1f} ms a request")
        others = max(0.0, busy - sum(spent.values()))
        verdict = "quiet" if others < 0.1 * passed else "NOT QUIET"
        print(f"  {'everything else':16} {others:6.1f} s in {passed:.0f} s: {verdict}")


def report(done: list[Answered], seconds: float) -> None:
    errors = Counter(one.status for one in done if one.status != 200)
    over, own = (quantiles(values, n=100) for values in ([one.took for one in done], [one.inside for one in done]))
    print(f"{len(done)} requests in {seconds:.0f} s from {CLIENTS} clients, errors: {dict(errors) or 'none'}")
    print(f"  over HTTP     p50 {over[49]:.1f} ms, p95 {over[94]:.1f} ms, p99 {over[98]:.1f} ms")
    print(f"  in the server p50 {own[49]:.1f} ms, p95 {own[94]:.1f} ms, p99 {own[98]:.1f} ms")


async def consolidated(lessons: Lessons, number: int, rules: int, seed: int) -> None:
    """Junk around planted rules, consolidated twice."""
    planted = planted_rules(rules, seed)
    entries = [
        lesson(text, "junk", KNOWN + timedelta(minutes=place))
        for place, (_, text) in enumerate(junk(planted, number, seed))
    ]
    await lessons.store(entries)
    for time_number in ("first", "second", "whole"):
        started = time.monotonic()
        done = await consolidate(lessons, KeptLessons(), "junk", whole=time_number == "whole")
        left = await lessons.database.pool.fetchval(
            "SELECT count(*) FROM hindsight.lessons WHERE game = 'junk' AND retired_at IS NULL"
        )
        print(
            f"{time_number:>7} consolidation of {number:,} entries around {rules} rules: {left} left, merged "
            f"{done.merged}, rules {done.rules}, changed {done.changed}, {time.monotonic() - started:.1f} s"
        )


_TURN = re.compile(r"D\d+:\d+")


def turns_of(sample: dict[str, Any]) -> dict[str, str]:
    """What was said in a conversation of LoCoMo, by the turn's id; a photo by its caption."""
    found = {}
    for name, session in sample["conversation"].items():
        if name.startswith("session_") and isinstance(session, list):  # beside it is its date, as text
            for turn in session:
                photo = f" [photo: {turn['blip_caption']}]" if turn.get("blip_caption") else ""
                found[turn["dia_id"]] = f"{turn['speaker']}: {turn.get('text', '')}{photo}"
    return found


def questions_of(sample: dict[str, Any], turns: Collection[str]) -> list[tuple[str, set[str]]]:
    """The questions with the turns that answer them; several ids may stand in one text, and some name no turn."""
    found = []
    for one in sample["qa"]:
        evidence = set(_TURN.findall(" ".join(map(str, one.get("evidence") or [])))) & set(turns)
        if evidence:
            found.append((str(one["question"]), evidence))
    return found


async def locomo(file: Path, embedder: Embedder, database: Database) -> tuple[float, float, int]:
    """Questions of LoCoMo (snap-research/locomo, locomo10.json) whose evidence is among the first ten turns found.

    Returns the share with some of the evidence, the share with all of it, and the number of questions.
    """
    kind, some, everything, asked = await vector_type(database.pool), 0, 0, 0
    for place, sample in enumerate(json.loads(file.read_text())):  # noqa: ASYNC240
        turns, game = turns_of(sample), f"locomo-{place}"
        made = [lesson(text, game) for text in turns.values()]
        await store_lessons(database.pool, kind, made, await embedder.embed([one.text for one in made]), embedder.name)
        names: dict[str, set[str]] = {}  # who says the same twice has one lesson for both turns
        for one, turn in zip(made, turns, strict=True):
            names.setdefault(one.lesson_id, set()).add(turn)
        lessons = Lessons(database, kind, embedder)
        for question, evidence in questions_of(sample, turns):
            found = await lessons.retrieve(question, Scope(game), as_of=KNOWN, k=TOP)
            seen = set[str]().union(*(names[one.lesson.lesson_id] for one in found))
            asked, some, everything = asked + 1, some + bool(evidence & seen), everything + (evidence <= seen)
        print(f"  conversation {place + 1}: {some} of {asked} questions so far", flush=True)
    shares = some / max(1, asked), everything / max(1, asked)
    print(f"LoCoMo: evidence of {shares[0]:.1%} of {asked} questions is in the top {TOP}, all of it of {shares[1]:.1%}")
    return *shares, asked


async def run(arguments: argparse.Namespace) -> None:
    with contextlib.ExitStack() as stack:
        folder = arguments.home or stack.enter_context(TemporaryDirectory(prefix="hindsight-lessons-"))
        home, embedder = Path(folder), EmbeddedModel(patience=3600.0)
        async with open_database(None, home) as database:
            try:
                if arguments.locomo is not None:
                    await locomo(arguments.locomo, embedder, database)
                    return
                lessons = Lessons(database, await vector_type(database.pool), embedder, in_postgres=-1)
                if arguments.junk:
                    await consolidated(lessons, arguments.junk, arguments.rules, arguments.seed)
                    return
                pairs = await fill(database, embedder, arguments)
                if not arguments.no_quality:
                    await quality(lessons, pairs)
            finally:
                await embedder.close()
            del lessons
            if arguments.seconds > 0:
                with EmbeddedServer(home / "postgres") as server:
                    await latency(database, server, home, pairs, arguments.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=100_000, help="lessons in the scope")
    parser.add_argument("--pairs", type=int, default=500, help="planted pairs, at most 500")
    parser.add_argument("--distinct", type=int, default=0, help="other lessons that are embedded; 0: all")
    parser.add_argument("--seconds", type=float, default=60, help="of requests over HTTP; 0: none")
    parser.add_argument("--cache", type=Path, help="folder where vectors are kept")
    parser.add_argument("--home", type=Path, help="keep the database there: the next run does not fill it again")
    parser.add_argument("--locomo", type=Path, help="a file of LoCoMo")
    parser.add_argument("--junk", type=int, default=0, help="entries to consolidate")
    parser.add_argument("--rules", type=int, default=40, help="planted rules in the junk")
    parser.add_argument("--no-quality", action="store_true")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="100 pairs among 2,000, ten seconds of requests")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.number, arguments.pairs, arguments.seconds = 2_000, 100, 10.0
    asyncio.run(run(arguments))


if __name__ == "__main__":
    main()
