"""Lessons without pgvector, with another embedder, through the judge, and from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from data_bridge.database import Database, open_database
from data_bridge.errors import BackendError, ConfigurationError
from data_bridge.migrate import apply, load_migrations
from tests.builders import WINDOW, make_outcomes
from tests.builders_judge import agent
from tests.builders_lessons import GAME, MONDAY, WordEmbedder, new_lesson
from trainer.certify.probes import ATTACKS
from trainer.config.lessons import KeptLessons
from trainer.inference.embedding import EmbeddingEndpoint
from trainer.judge.prompt import fit, load_rubric
from trainer.judge.view import view_of
from trainer.ledger.lessons import gate_lessons, vector_type
from trainer.lesson import Scope, Trust
from trainer.lessons.consolidate import consolidate
from trainer.lessons.retrieval import open_lessons_of
from trainer.lessons.wording import quoted
from trainer.types import Group

ROOT = Path(__file__).parents[2]


async def test_without_the_privilege_to_create_pgvector_the_numbers_are_compared_in_memory(
    make_database: Callable[..., str], tmp_path: Path
) -> None:
    url = make_database()
    plain = [
        type(one)(one.number, one.name, one.sql.replace("EXISTS vector SCHEMA", "EXISTS no_such_extension SCHEMA"))
        for one in load_migrations()
    ]
    connection = await asyncpg.connect(url)
    await apply(connection, plain)
    await connection.close()
    async with open_database(url, tmp_path) as database:
        assert (await vector_type(database.pool)).sql == "real[]"
        lessons = await open_lessons_of(database, WordEmbedder())
        assert await lessons.retrieve("strike", GAME, as_of=MONDAY) == []
        await lessons.store([new_lesson("strike means sell"), new_lesson("flood means buy")])
        found = await lessons.retrieve("a strike", GAME, as_of=MONDAY)
        assert found[0].lesson.content == "strike means sell"
        assert (await consolidate(lessons, KeptLessons())).changed == 0


# An endpoint for embeddings


class _Embeddings(BaseHTTPRequestHandler):
    size = 8

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        data = [
            {"index": place, "object": "embedding", "embedding": [float(len(text))] * self.size}
            for place, text in enumerate(asked["input"])
        ]
        body = json.dumps({"object": "list", "data": data, "model": asked["model"], "usage": {}}).encode()
        self.send_response(500 if asked["model"] == "broken" else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Embeddings)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()


async def test_an_endpoints_vectors_are_made_of_length_one_and_their_dimension_is_checked(endpoint: str) -> None:
    embedder = EmbeddingEndpoint("small", endpoint, "key")
    vectors = await embedder.embed(["one", "three"])
    assert vectors.shape == (2, 8)
    assert (vectors**2).sum(axis=1) == pytest.approx([1, 1])
    assert embedder.dimensions == 8
    await embedder.close()

    wrong = EmbeddingEndpoint("small", endpoint, "key", dimensions=16)
    with pytest.raises(ConfigurationError, match="8 numbers instead of 16"):
        await wrong.embed(["one"])
    await wrong.close()


async def test_an_endpoint_that_fails_is_named_and_its_key_is_not(endpoint: str) -> None:
    broken = EmbeddingEndpoint("broken", endpoint, "secret-key-4711")
    with pytest.raises(BackendError, match="'broken'") as caught:
        await broken.embed(["one"])
    assert "secret-key-4711" not in str(caught.value)
    await broken.close()


# Poisoning


async def test_an_injection_that_was_stored_as_a_lesson_reaches_the_judge_only_as_quoted_data(
    database: Database,
) -> None:
    """Even gated, even shown: the judge's instructions do not change, and no text of it is outside an agent's JSON."""
    lessons = await open_lessons_of(database, WordEmbedder())
    rubric = load_rubric("trading")
    clean = fit(view_of(Group("g", WINDOW, (agent(1, pnl=1.0), agent(2)), make_outcomes())), rubric, 24_000)
    for attack in ATTACKS:
        new = new_lesson(quoted(attack.text), trust=Trust.API, scope=Scope("poison", agent_id=attack.name))
        (stored,) = await lessons.store([new])
        await gate_lessons(database.pool, [stored.lesson_id])
        (found,) = await lessons.retrieve(attack.text, Scope("poison", agent_id=attack.name), as_of=MONDAY, k=1)
        prompt = f"Lessons:\n- {found.lesson.shown}\n\nACME trades at 100."
        group = Group("g", WINDOW, (agent(1, pnl=1.0, prompt=prompt), agent(2)), make_outcomes())
        fitted = fit(view_of(group), rubric, 24_000)
        asked = fitted.prompt([0, 1], b"nonce")

        assert fitted.system == clean.system
        assert asked.user.count("<trajectory") == asked.user.count("</trajectory>") == 2
        inside = [part.partition("</trajectory>")[0] for part in asked.user.split("<trajectory ")[1:]]
        for body in inside:
            assert isinstance(json.loads(body.partition(">")[2]), dict)


# The command


def run(home: Path, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "lessons.py"), *arguments, "--home", str(home)]
    environment = {"DATABASE_URL": url, "PATH": os.environ["PATH"]}
    return subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=False)


async def test_lessons_are_listed_exported_and_retired_from_the_command_line(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    lessons = await open_lessons_of(database, WordEmbedder())
    texts = ["strike means sell", "flood means buy"]
    first, _ = await lessons.store([new_lesson(text, scope=Scope("game")) for text in texts])

    listed = run(tmp_path, database_url, "list", "strikes", "--json")
    assert [one["content"] for one in json.loads(listed.stdout)] == ["strike means sell"]
    assert run(tmp_path, database_url, "retire", first.lesson_id).returncode == 2
    assert run(tmp_path, database_url, "retire", first.lesson_id, "--reason", "it was luck").returncode == 0
    again = run(tmp_path, database_url, "retire", first.lesson_id, "--reason", "again")
    assert (again.returncode, again.stdout) == (2, "")
    assert "There is no lesson" in again.stderr

    assert run(tmp_path, database_url, "export", "--output", "all.jsonl").returncode == 0
    lines = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    assert {(one["content"], one["retired_because"]) for one in lines} == {(texts[0], "it was luck"), (texts[1], "")}
    shown = run(tmp_path, database_url, "list")
    assert "flood means buy" in shown.stdout
    assert "strike" not in shown.stdout
