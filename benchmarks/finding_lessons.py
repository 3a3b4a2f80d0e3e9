"""Finding lessons: the right one among many, and how long it takes over HTTP.

    python benchmarks/finding_lessons.py                    500 planted pairs among 100,000, then 20 requests a second
    python benchmarks/finding_lessons.py --number 10000     among fewer
    python benchmarks/finding_lessons.py --locomo FILE      LoCoMo's questions whose evidence is in the top 10
    python benchmarks/finding_lessons.py --junk 10000       near duplicates and recycled entries, consolidated twice

Embedding a hundred thousand texts takes a core about a quarter of an hour; vectors are kept in --cache. With --distinct
only that many of the other lessons are embedded, and the rest are pairs of them: both texts, and the mean of both
vectors, which is what an embedding of both is near to. The output says so.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import quantiles
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from data_bridge.database import Database, open_database  # noqa: E402
from data_bridge.embedded import EmbeddedServer  # noqa: E402
from tests.builders_console import ConsoleProcess  # noqa: E402
from tests.builders_planted import PlantedPair, fillers, junk, planted_pairs, planted_rules  # noqa: E402
from trainer.config.lessons import KeptLessons  # noqa: E402
from trainer.ledger.ingest_keys import make_ingest_key  # noqa: E402
from trainer.ledger.lessons import store_lessons, vector_type  # noqa: E402
from trainer.lesson import Embedder, LessonKind, NewLesson, Scope, Trust  # noqa: E402
from trainer.lessons.consolidate import consolidate  # noqa: E402
from trainer.lessons.embedding import EmbeddedModel  # noqa: E402
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
        seen = await horizon(lessons.database.pool, "game", lessons.embedder.name, index.heard, pair.query)
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


async def latency(database: Database, url: str, home: Path, pairs: list[PlantedPair], seconds: float) -> None:
    """100 paced clients, 20 requests a second in all, each with a key of its own, against the real console."""
    import httpx

    keys = [(f"agent-{n}", (await make_ingest_key(database, "agent", f"agent-{n}"))[1]) for n in range(CLIENTS)]
    with ConsoleProcess(url, home) as console:
        async with httpx.AsyncClient(base_url=console.url, timeout=120) as client:
            path = "/api/v1/memory/retrieve"

            async def ask(agent: str, key: str, text: str) -> tuple[float, int, float]:
                body = {"context": text, "k": TOP, "agent_id": agent, "as_of": KNOWN.isoformat()}
                started = time.perf_counter()
                answer = await client.post(path, json=body, headers={"authorization": f"Bearer {key}"})
                took = (time.perf_counter() - started) * 1000
                inside = answer.json().get("took_ms", 0.0) if answer.status_code == 200 else 0.0
                return took, answer.status_code, inside

            print("\nThe first request, which loads the model and the vectors:", flush=True)
            print(f"  {(await ask(*keys[0], 'warm up'))[0] / 1000:.1f} s")
            for number in range(20):
                await ask(*keys[number], pairs[number % len(pairs)].query)
            done: list[tuple[float, int, float]] = []

            async def paced(place: int) -> None:
                agent, key = keys[place]
                loop = asyncio.get_running_loop()
                due = loop.time() + place / PER_SECOND
                end, number = loop.time() + seconds, place
                while due < end:
                    await asyncio.sleep(max(0.0, due - loop.time()))
                    done.append(await ask(agent, key, pairs[number % len(pairs)].query))
                    due, number = due + CLIENTS / PER_SECOND, number + 37

            await asyncio.gather(*(paced(place) for place in range(CLIENTS)))
    report(done, seconds)


def report(done: list[tuple[float, int, float]], seconds: float) -> None:
    times = sorted(took for took, _, _ in done)
    inside = sorted(took for _, _, took in done)
    errors = Counter(status for _, status, _ in done if status != 200)
    cuts, own = quantiles(times, n=100), quantiles(inside, n=100)
    print(f"{len(done)} requests in {seconds:.0f} s from {CLIENTS} clients, errors: {dict(errors) or 'none'}")
    print(f"  over HTTP     p50 {cuts[49]:.1f} ms, p95 {cuts[94]:.1f} ms, p99 {cuts[98]:.1f} ms")
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


async def locomo(file: Path, embedder: Embedder, database: Database) -> None:
    """Questions of LoCoMo (snap-research/locomo, locomo10.json) whose evidence is among the first ten turns found."""
    kind, hits, asked = await vector_type(database.pool), 0, 0
    for place, sample in enumerate(json.loads(file.read_text())):  # noqa: ASYNC240
        turns = {
            turn["dia_id"]: f"{turn['speaker']}: {turn.get('text', '')}"
            for name, session in sample["conversation"].items()
            if name.startswith("session_") and isinstance(session, list)
            for turn in session
        }
        game = f"locomo-{place}"
        made = [lesson(text, game) for text in turns.values()]
        vectors = await embedder.embed([one.text for one in made])
        await store_lessons(database.pool, kind, made, vectors, embedder.name)
        names = dict(zip((one.lesson_id for one in made), turns, strict=True))
        lessons = Lessons(database, kind, embedder)
        for question in sample["qa"]:
            evidence = {one for one in question.get("evidence", []) if one in turns}
            if not evidence:
                continue
            found = await lessons.retrieve(question["question"], Scope(game), as_of=KNOWN, k=TOP)
            asked += 1
            hits += any(names.get(one.lesson.lesson_id) in evidence for one in found)
        print(f"  conversation {place + 1}: {hits} of {asked} questions so far", flush=True)
    print(f"LoCoMo: the evidence of {hits / max(1, asked):.1%} of {asked} questions is in the top {TOP}")


async def run(arguments: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory(prefix="hindsight-lessons-") as folder:
        home, embedder = Path(folder), EmbeddedModel()
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
            if arguments.seconds > 0:
                with EmbeddedServer(home / "postgres") as server:
                    await latency(database, server.url(), home, pairs, arguments.seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=100_000, help="lessons in the scope")
    parser.add_argument("--pairs", type=int, default=500, help="planted pairs, at most 500")
    parser.add_argument("--distinct", type=int, default=0, help="other lessons that are embedded; 0: all")
    parser.add_argument("--seconds", type=float, default=60, help="of requests over HTTP; 0: none")
    parser.add_argument("--cache", type=Path, help="folder where vectors are kept")
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
