"""A row or a file of little size takes little memory and time, whatever it holds."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from data_bridge.database import Database
from data_bridge.decode import Undecodable, decode_steps, role_of
from data_bridge.errors import ConfigurationError
from data_bridge.quality import Reason
from data_bridge.redaction import redact
from data_bridge.traces import import_traces
from tests.builders import WINDOW, insert_rows, insert_window, recorder_steps, trajectory_row

ROOT = Path(__file__).parents[2]
MOST_MB = 300

READS = """
import asyncio, resource, sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from data_bridge.database import open_database
from data_bridge.quality import Rules, check
from data_bridge.reader import WindowReader
from data_bridge.window_ids import end_of

async def main(url, window):
    async with open_database(url, Path("unused")) as database:
        rules = Rules(now=end_of(window, 1) + timedelta(hours=1))
        reader = WindowReader(database, rules)
        async for read in reader.stream(await reader.discover(everything=True)):
            checked = check(read, rules)
            print(len(checked.usable), *sorted({one.reason.value for one in checked.excluded}))

asyncio.run(main(*sys.argv[1:]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
IMPORTS = """
import asyncio, resource, sys
from pathlib import Path
from data_bridge.database import open_database
from data_bridge.errors import HindsightError
from data_bridge.traces import import_traces

async def main(url, file):
    async with open_database(url, Path("unused")) as database:
        try:
            print((await import_traces(database, Path(file))).new)
        except HindsightError as error:
            print(error.exit_code, error)

asyncio.run(main(*sys.argv[1:]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def memory_of(program: str, *arguments: str) -> tuple[str, int]:
    """What ``program`` says, and the most memory in MB that it took."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    *said, peak = done.stdout.splitlines()
    return "\n".join(said), int(peak)


def many(item: str, size: int) -> str:
    return "[" + ",".join([item] * (size // (len(item) + 1))) + "]"


STEP = '[{"llmCalls":[{"response":"BUY"}],"action":{"actionType":"BUY","result":RESULT}}]'
ATTACKS = {
    "steps": many("{}", 4_900_000),
    "calls": '[{"llmCalls":' + many("{}", 4_900_000) + "}]",
    "lists in a result": STEP.replace("RESULT", many("[]", 4_900_000)),
    "numbers in a result": STEP.replace("RESULT", many("0.5", 4_900_000)),
    "words in a result": STEP.replace("RESULT", many('"ab"', 4_900_000)),
    "numbers as tokens": '[{"llmCalls":[{"completionTokenIds":' + many("7", 4_900_000) + "}]}]",
}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_row_of_too_many_objects_is_refused_before_they_are_made(name: str) -> None:
    with pytest.raises(Undecodable, match="of at most") as refused:
        decode_steps(ATTACKS[name].encode())
    assert refused.value.reason is Reason.OVERSIZED


def test_steps_and_calls_are_counted_below_that_limit_too() -> None:
    for text, what in ((many("{}", 30_000), "steps"), ('[{"llmCalls":' + many("{}", 600) + "}]", "calls in a step")):
        with pytest.raises(Undecodable, match=what) as refused:
            decode_steps(text.encode())
        assert refused.value.reason is Reason.OVERSIZED


def test_brackets_and_commas_in_a_prompt_are_text() -> None:
    steps = recorder_steps(20, prompt='[{"price": 1, "said": "\\"{[,"}],' * 6_000)
    assert len(decode_steps(json.dumps(steps).encode())) == 20


def test_metadata_of_too_many_objects_says_nothing() -> None:
    assert role_of('{"role": "whale", "gameKnowledge": {"a": ' + many("{}", 4_000_000) + "}}") is None


@pytest.mark.parametrize("name", ["steps", "lists in a result"])
async def test_twenty_such_rows_take_little_memory_and_cost_only_themselves(
    database: Database, database_url: str, name: str
) -> None:
    await insert_window(database.pool, WINDOW, agents=3)
    said, before = memory_of(READS, database_url, WINDOW)
    assert said == "3"
    rows = [trajectory_row("agent-1", steps_json=ATTACKS[name]) for _ in range(20)]
    await insert_rows(database.pool, "trajectories", rows)
    said, peak = memory_of(READS, database_url, WINDOW)
    assert said == "3 over_share oversized"
    assert peak - before < MOST_MB


@pytest.mark.parametrize(
    "unit",
    ["a.", "a://:", "http://x", "a", "://", "-+", "a:b@", "http://u:p", "http://u:PASSWORD@", "postgres://u:", "@:/"],
)
def test_redacting_takes_time_in_proportion(unit: str) -> None:
    def seconds(size: int) -> float:
        text = unit * (size // len(unit))
        best = float("inf")
        for _ in range(3):
            started = time.process_time()
            redact(text)
            best = min(best, time.process_time() - started)
        return best

    small, large = seconds(200_000), seconds(800_000)
    assert large < max(8 * small, 0.02)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("postgres://u:hunter2@host/db", "postgres://u:[secret]@host/db"),
        ("at https://:tok:en/x@h.", "at https://:[secret]@h."),
        ("a://b://u:p@h c://u:q@h", "a://b:[secret]@h c://u:[secret]@h"),
        ("http://x:1 http://u:p@h", "http://x:1 http://u:[secret]@h"),
        ("1http://u:p@h", "1http://u:[secret]@h"),
        ("postgres://user:PASSWORD@host", "postgres://user:PASSWORD@host"),
        ("http://host:80/path and no more", "http://host:80/path and no more"),
        ("x://u:a://v:p@h", "x://u:[secret]@h"),
    ],
)
def test_every_password_in_a_url_is_still_masked(text: str, clean: str) -> None:
    assert redact(text) == clean


# Traces

LINE = {
    "trajectory": {"trajectoryId": "t1", "agentId": "ada", "startTime": "2026-03-02T10:05:00", "stepsJson": "[]"},
}


def test_an_archive_that_unpacks_to_gigabytes_is_one_sentence(database_url: str, tmp_path: Path) -> None:
    honest, bomb = tmp_path / "honest.jsonl.gz", tmp_path / "bomb.jsonl.gz"
    honest.write_bytes(gzip.compress(json.dumps(LINE).encode()))
    said, before = memory_of(IMPORTS, database_url, str(honest))
    assert said == "1"
    with gzip.open(bomb, "wb", compresslevel=1) as file:
        file.write(b'{"trajectory": {"stepsJson": "')
        for _ in range(600):
            file.write(b"a" * 2**20)
    said, peak = memory_of(IMPORTS, database_url, str(bomb))
    assert said == f"2 {bomb}, line 1 is longer than 32 MB: it is not a trace."
    assert peak - before < MOST_MB


def test_a_line_of_millions_of_objects_is_one_sentence(database_url: str, tmp_path: Path) -> None:
    file = tmp_path / "t.jsonl"
    file.write_text(json.dumps(LINE))
    _, before = memory_of(IMPORTS, database_url, str(file))
    file.write_text(json.dumps(LINE)[:-1] + ', "outcomes": ' + many("{}", 30_000_000) + "}")
    said, peak = memory_of(IMPORTS, database_url, str(file))
    assert "line 1 is not a trace" in said
    assert said.startswith("2 ")
    assert peak - before < MOST_MB


@pytest.mark.parametrize("place", ["trajectory", "steps", "outcomes"])
async def test_deep_json_in_a_trace_is_one_sentence(database: Database, tmp_path: Path, place: str) -> None:
    deep = "[" * 100_000 + "]" * 100_000
    row = json.dumps(LINE["trajectory"])
    text = {
        "trajectory": f'{{"trajectory": {deep}}}',
        "steps": f'{{"trajectory": {row[:-1]}, "metadataJson": {deep}}}}}',
        "outcomes": f'{{"trajectory": {row}, "outcomes": {deep}}}',
    }[place]
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(ConfigurationError, match="line 1 is not a trace"):
        await import_traces(database, tmp_path / "t.jsonl")
    assert await database.pool.fetchval("SELECT count(*) FROM trajectories") == 0
