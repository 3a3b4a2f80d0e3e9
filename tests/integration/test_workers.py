"""Units judged by workers that Ray places: the same verdicts as in one process, whatever is killed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

import data_bridge.shares
import trainer.workers.units
from data_bridge.connection_url import parse_connection_url
from data_bridge.database import Database, open_database
from data_bridge.quality import Rules
from tests.builders import NOW, hours_before, insert_outcomes, insert_trajectory, insert_window
from tests.builders_judge import API_KEY
from tests.builders_run import World
from tests.fakes.judge_server import JudgeServer, Request, by_profit, honest
from tests.fakes.kills import CountingJudge, Parts
from tests.fakes.ray_cluster import Cluster, running_cluster
from tests.fakes.training_backend import FakeBackend
from trainer.cli.judge_windows import main
from trainer.config.sections import JudgeSecrets, TrainingJudge
from trainer.workers.sections import secrets_file, secrets_from, section_of
from trainer.workers.worker import more_units

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A Ray for the tests of this file."""
    with running_cluster() as running:
        yield running


@dataclass(frozen=True)
class Judging:
    """judge_windows as a process, on one database."""

    url: str
    home: Path
    server: JudgeServer

    def command(self, *flags: str) -> list[str]:
        return [
            *(sys.executable, str(ROOT / "scripts" / "judge_windows.py"), "--json", "--until", NOW.isoformat()),
            *("--home", str(self.home), "--judge-model", "judge", "--judge-base-url", self.server.base_url, *flags),
        ]

    @property
    def environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HINDSIGHT_", "JUDGE_"))}
        return kept | {"DATABASE_URL": self.url, "JUDGE_API_KEY": API_KEY, "JUDGE_PRICE": "1/10"}

    def started(self, command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    async def result(self, *flags: str) -> dict[str, Any]:
        process = await asyncio.create_subprocess_exec(
            *self.command(*flags), env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return dict(json.loads(out))


async def _verdicts(url: str, home: Path) -> list[tuple[Any, ...]]:
    """What is stored, without what differs from one asking to the next: the ids in a prompt, and the moment."""
    async with open_database(url, home) as database:
        rows = await database.pool.fetch(
            "SELECT verdict_key, order_number, window_id, group_id, scores::text FROM hindsight.verdicts ORDER BY 1, 2"
        )
        return [tuple(row) for row in rows]


async def test_one_worker_two_workers_and_one_process_come_to_the_same(
    make_database: Callable[..., str], template_database: str, tmp_path: Path, cluster: Cluster
) -> None:
    filled = make_database(template_database)
    async with open_database(filled, tmp_path) as database:
        for number, window_id in enumerate(hours_before(number=6)):
            await insert_window(database.pool, window_id, agents=3 + 4 * number)
        await insert_trajectory(database.pool, "agent-1", window_id=window_id)
        await insert_trajectory(database.pool, "broken", window_id=window_id, steps_json="{")
    on_ray = ("--ray-address", cluster.address)
    ways = [(), ("--workers", "1", *on_ray), ("--workers", "2", *on_ray)]
    copies = [make_database(parse_connection_url(filled).database) for _ in ways]

    async def judged(place: int) -> tuple[Any, ...]:
        url, home = copies[place], tmp_path / str(place)
        with JudgeServer() as server:
            result = await Judging(url, home, server).result("--judge-order-rule", "all", *ways[place])
            assert result["usage"]["calls"] == len(server.requests)
        assert result["windows"][-1]["left_out"] == {"duplicate_agent": 1, "malformed_json": 1}
        return result["windows"], result["usage"]["judged"], await _verdicts(url, home)

    found = await asyncio.gather(*(judged(place) for place in range(len(ways))))
    assert len(found[0][2]) == 2 * found[0][1]
    assert found[0] == found[1] == found[2]


def by_profit_and_place(request: Request) -> dict[str, float]:
    """Who is shown later gets a little less: the scores move between orders."""
    return {name: max(0.0, score - 0.01 * place) for place, (name, score) in enumerate(by_profit(request).items())}


async def test_one_worker_and_two_ask_for_the_same_orders(
    make_database: Callable[..., str], template_database: str, tmp_path: Path, cluster: Cluster
) -> None:
    """By the default rule, all workers go by what was known of the judge before their job. (A process alone goes on
    learning, so that it may ask for less.) Here the judge has been measured, and close groups are asked about twice."""
    filled, ids = make_database(template_database), hours_before(number=12)

    async def insert(some: Sequence[str]) -> None:
        async with open_database(filled, tmp_path) as database:
            for number, window_id in enumerate(some):
                for agent in range(6):
                    pnl = (1.0, 60.0)[number % 2] * agent
                    await insert_trajectory(database.pool, f"agent-{agent}", window_id=window_id, pnl=pnl)
                await insert_outcomes(database.pool, window_id)

    async def judged(url: str, *flags: str) -> tuple[Any, ...]:
        home = tmp_path / str(parse_connection_url(url).database)
        with JudgeServer(otherwise=honest(by_profit_and_place)) as server:
            result = await Judging(url, home, server).result(*flags)
        async with open_database(url, home) as database:
            decided = await database.pool.fetch(
                "SELECT verdict_key, order_number, is_asked, reason, order_sd, turned_share"
                " FROM hindsight.order_decisions ORDER BY 1, 2"
            )
        return result["windows"], await _verdicts(url, home), [tuple(row) for row in decided]

    await insert(ids[:6])
    await judged(filled)
    await insert(ids[6:])
    copies = [make_database(parse_connection_url(filled).database) for _ in range(2)]
    on_ray = ("--ray-address", cluster.address)
    one, two = await asyncio.gather(
        *(judged(url, "--workers", str(number), *on_ray) for number, url in enumerate(copies, start=1))
    )
    assert one == two
    assert {row[2] for row in one[2]} == {True, False}
    assert len(one[0]) == 12


async def test_training_with_workers_makes_the_batches_and_exclusions_of_one_process(
    make_database: Callable[..., str], template_database: str, tmp_path: Path, cluster: Cluster
) -> None:
    """Of more windows than are handed out ahead."""
    filled = make_database(template_database)
    async with open_database(filled, tmp_path) as database:
        for window_id in hours_before(number=40):
            await insert_window(database.pool, window_id, agents=3)
        for window_id in hours_before(number=45)[:5]:
            await insert_window(database.pool, window_id, agents=11)
        await insert_trajectory(database.pool, "agent-1", window_id=window_id)
    copies = [make_database(parse_connection_url(filled).database) for _ in range(3)]

    async def trained(workers: int) -> tuple[Any, ...]:
        url, home = copies[workers], tmp_path / f"training-{workers}"
        async with open_database(url, home) as database:
            world, backend = World(database, home), FakeBackend(home)
            flags: dict[str, Any] = {"workers": workers, "ray_address": cluster.address} if workers else {}
            run = await world.train(backend, held_out_share=0.0, dropout=0.2, min_windows=1, **flags)
            excluded = await database.pool.fetch(
                "SELECT trajectory_id, agent_id, window_id, reason, detail, content_hash FROM hindsight.exclusions"
                " ORDER BY 1"
            )
            batches = [
                [(judged.group.group_id, judged.verdicts, judged.left_out) for judged in batch.groups]
                for batch in backend.trained
            ]
            windows = await database.pool.fetch("SELECT window_id, state, groups FROM hindsight.windows ORDER BY 1")
            assert run.summary["groups_judged"] == 50
            assert set((await world.used()).values()) == {1}
            return batches, [tuple(row) for row in excluded], [tuple(row) for row in windows]

    made = await asyncio.gather(*(trained(workers) for workers in range(3)))
    assert made[0] == made[1] == made[2]
    assert len(made[0][0]) == 25
    assert made[0][1]


async def test_what_is_killed_costs_no_more_than_its_calls_in_flight(
    database_url: str, database: Database, tmp_path: Path, cluster: Cluster
) -> None:
    """A short version of benchmarks/kills.py: workers, the process that places them, and the driver."""
    for window_id in hours_before(number=30):
        await insert_window(database.pool, window_id, agents=6)
    chance = random.Random(3)
    with CountingJudge(delay=0.3) as judge:
        judging = Judging(database_url, tmp_path, judge)
        on_ray = ("--workers", "2", "--ray-address", cluster.address, "--judge-concurrency", "4")
        command = judging.command(*on_ray, "--judge-order-rule", "all", "--worker-lease", "2s", "--held-out-share", "0")
        driver = judging.started(command)
        for part in ("worker", "worker", "placer", "driver"):
            before = len(judge.calls)
            while len(judge.calls) < before + 3 and driver.poll() is None:
                await asyncio.sleep(0.05)
            assert driver.poll() is None, "there is work left for every kill"
            assert Parts(driver.pid, cluster.pid).kill(part, chance, judge)
            if part == "driver":
                driver.wait()
                driver = judging.started(command)
        out, _ = await asyncio.to_thread(driver.communicate)
    assert driver.returncode == 0
    assert json.loads(out)["usage"]["judged"] == 30
    stored = await database.pool.fetchval("SELECT count(*) FROM hindsight.verdicts")
    assert stored == len(judge.questions) == 60, "none is lost"
    assert not judge.unexplained()
    assert len(judge.repeated) <= 4 * len(judge.kills), "no more than could be in flight"


async def test_workers_that_never_come_end_the_run_and_name_the_unit(
    database_url: str,
    database: Database,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (window_id,) = hours_before(number=1)
    await insert_window(database.pool, window_id)
    monkeypatch.setenv("DATABASE_URL", database_url)
    flags = ["--until", NOW.isoformat(), "--home", str(tmp_path), "--judge", "outcome"]
    code = await asyncio.to_thread(
        main, [*flags, "--workers", "1", "--ray-address", "127.0.0.1:1", "--gone-after", "3s"]
    )
    assert code == 4
    said = capsys.readouterr().err
    assert f"Judging waits for window {window_id}" in said
    assert "the same command resumes" in said
    assert not list((tmp_path / "workers").glob("*.env")), "the file with the secrets is gone"
    assert await database.pool.fetchval("SELECT count(*) FROM hindsight.unit_jobs") == 0


def test_a_worker_claims_enough_small_units_for_its_calls_and_few_large_ones() -> None:
    assert more_units(0, 0, 4) == more_units(0, 0, 64) == 8
    assert more_units(8, 8, 32) == 8, "windows of one group: eight of them would not keep 32 calls in flight"
    assert more_units(30, 30, 32) == 2
    assert more_units(8, 512, 32) == 0
    assert more_units(40, 40, 32) < 0
    assert more_units(3, 192, 32) == 5


def test_a_worker_imports_neither_torch_nor_art() -> None:
    heavy = "{'torch', 'art', 'ray', 'numpy'}"
    code = f"import sys, trainer.workers.worker; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_secrets_reach_a_worker_by_a_private_file_and_nothing_else(tmp_path: Path) -> None:
    url, key = "postgresql://u:p'a\\ss@host/db?x=$HOME#1", "sk-'quoted' \\ $key"
    judge = TrainingJudge(judge_model="judge")
    section = section_of(judge, Rules(), world="market", with_steps=False, noise=(0.0, 0))
    assert "secret" not in json.dumps(section.judge)
    with secrets_file(tmp_path / "workers", "job", url, JudgeSecrets(judge_api_key=SecretStr(key))) as path:
        assert path.stat().st_mode & 0o777 == 0o600
        read = secrets_from(str(path), {})
        assert read.database_url == url
        assert read.judge.judge_api_key is not None
        assert read.judge.judge_api_key.get_secret_value() == key
    assert not path.exists()
    assert secrets_from(str(path), {"DATABASE_URL": "elsewhere"}).database_url == "elsewhere"


def test_secrets_of_a_killed_driver_are_removed_by_the_next(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from trainer.config.sections import JudgeSecrets\n"
        "from trainer.workers.sections import secrets_file\n"
        "with secrets_file(Path(sys.argv[1]), 'killed', 'postgresql://', JudgeSecrets()):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=False)
    left = tmp_path / "killed.env"
    assert left.exists()
    an_hour_ago = time.time() - 3600
    with secrets_file(tmp_path, "alive", "postgresql://", JudgeSecrets()) as alive:
        assert left.exists(), "it may be a file that is being written"
        for path in (left, alive):
            os.utime(path, (an_hour_ago, an_hour_ago))
        with secrets_file(tmp_path, "next", "postgresql://", JudgeSecrets()):
            assert not left.exists()
            assert alive.exists()


async def test_a_large_window_is_read_in_parts_and_judged_in_slices(
    make_database: Callable[..., str],
    template_database: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Who is a duplicate, compared with whom or left out is the same as when it is read at once."""
    url = make_database(template_database)
    monkeypatch.setenv("DATABASE_URL", url)
    async with open_database(url, tmp_path) as database:
        (window_id,) = hours_before(number=1)
        await insert_window(database.pool, window_id, agents=40)
        for number in range(5, 15):
            await insert_trajectory(database.pool, f"agent-{number}", window_id=window_id)
    flags = ["--until", NOW.isoformat(), "--home", str(tmp_path), "--judge", "outcome", "--json"]
    shown = []
    for in_parts in (False, True):
        if in_parts:
            monkeypatch.setattr(data_bridge.shares, "BATCH_BYTES", 5_000)
            monkeypatch.setattr(trainer.workers.units, "MAX_GROUPS", 2)
        assert await asyncio.to_thread(main, flags) == 0
        shown.append(json.loads(capsys.readouterr().out)["windows"])
    assert shown[0][0]["left_out"] == {"duplicate_agent": 10}
    assert len(shown[0][0]["groups"]) == 5
    assert shown[0] == shown[1]
