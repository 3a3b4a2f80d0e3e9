"""``check_windows`` as a user runs it, on a real Postgres."""

from __future__ import annotations

import json
import os
import pty
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.builders import NOW, WINDOW, hours_before, insert_outcomes, insert_trajectory, insert_window, plugin_steps
from tests.conftest import in_own_loop
from trainer.cli.check_windows import main

ROOT = Path(__file__).resolve().parents[2]
UNTIL = ("--until", f"{NOW:%Y-%m-%dT%H:%M}")


def fill(url: str, work: Callable[[Any], Any]) -> None:
    async def connected() -> None:
        connection = await asyncpg.connect(url)
        try:
            await work(connection)
        finally:
            await connection.close()

    in_own_loop(connected)


def run(url: str, *flags: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "check_windows.py"), *UNTIL, *flags]
    environment = {"DATABASE_URL": url, "PATH": os.environ["PATH"]}
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, check=False)


@pytest.fixture
def call(
    database_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command in this process on the fresh database; gives exit code, output and errors."""
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.chdir(tmp_path)

    def called(*flags: str) -> tuple[int, str, str]:
        code = main([*UNTIL, *flags])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return called


Call = Callable[..., tuple[int, str, str]]


def test_a_database_with_enough_is_ready(database_url: str, call: Call) -> None:
    async def windows(pool: Any) -> None:
        for window_id in hours_before(number=3):
            await insert_window(pool, window_id, agents=4)
        await insert_trajectory(pool, "agent-9", steps_json="{{{", trajectoryId="broken-1")

    fill(database_url, windows)
    code, out, err = call()
    assert (code, err) == (0, "")
    assert "Ready for a training run." in out
    assert "malformed_json" in out
    assert "broken-1" in out
    assert "12 of 13 trajectories usable, in 3 of 3 windows and 3 groups" in out
    lines = out.splitlines()
    assert len({line.index("usable") for line in lines if line.startswith("window")}) == 1
    assert not any(line != line.rstrip() for line in lines)


def test_json_has_what_a_machine_needs(database_url: str, call: Call) -> None:
    async def windows(pool: Any) -> None:
        for window_id in hours_before(number=2):
            await insert_window(pool, window_id, agents=3)
        await insert_trajectory(pool, "agent-9", isEvaluation=True, trajectoryId="evaluated")

    fill(database_url, windows)
    code, out, _ = call("--json", "--judge-model", "gpt-5-mini")
    report = json.loads(out)
    assert code == 3
    assert [(w["id"], w["agents"], w["trajectories"], w["usable"], w["reasons"]) for w in report["windows"]] == [
        ("2026-11-02T09:00", 3, 3, 3, {}),
        ("2026-11-02T10:00", 4, 4, 3, {"evaluation_row": 1}),
    ]
    assert report["reasons"] == {"evaluation_row": 1}
    assert report["examples"] == {"evaluation_row": "evaluated"}
    assert report["ready"] is False
    assert report["missing"][0].startswith("2 usable windows in the last 7 days; a training run needs 3")
    assert 0 < report["estimated_cost"] < 1
    assert call("--json", "--min-windows", "2")[0] == 0


def test_an_empty_database_says_what_is_missing(call: Call) -> None:
    code, out, _ = call("--json")
    report = json.loads(out)
    assert code == 3
    assert (report["windows"], report["ready"], report["estimated_cost"]) == ([], False, 0.0)
    assert "no trajectories in the last 7 days" in report["missing"][0]


def test_lookback_and_min_agents_decide(database_url: str, call: Call) -> None:
    async def windows(pool: Any) -> None:
        for window_id in hours_before(number=3):
            await insert_window(pool, window_id, agents=4)
        await insert_window(pool, "2026-10-20T10:00", agents=4)

    fill(database_url, windows)
    assert len(json.loads(call("--json")[1])["windows"]) == 3
    assert len(json.loads(call("--json", "--lookback", "30d")[1])["windows"]) == 4
    code, out, _ = call("--json", "--min-agents", "5")
    assert (code, json.loads(out)["reasons"]) == (3, {"too_few_agents": 12})


def test_rows_without_a_comparable_peer_are_counted(database_url: str, call: Call) -> None:
    async def windows(pool: Any) -> None:
        for window_id in hours_before(number=3):
            await insert_window(pool, window_id, agents=3)
            await insert_trajectory(
                pool, "whale", window_id=window_id, metadata={"role": "whale"}, trajectoryId=f"whale-{window_id}"
            )

    fill(database_url, windows)
    assert json.loads(call("--json")[1])["reasons"] == {}
    assert json.loads(call("--json", "--grouping", "matched")[1])["reasons"] == {"no_comparable_peer": 3}


def test_the_estimate_is_of_what_dropout_leaves_and_readiness_is_not(database_url: str, call: Call) -> None:
    async def windows(pool: Any) -> None:
        for window_id in hours_before(number=3):
            await insert_window(pool, window_id, agents=8)

    fill(database_url, windows)
    flags = ("--json", "--judge-model", "gpt-5-mini")
    whole, thinned = (json.loads(call(*flags, *more)[1]) for more in ((), ("--target-trajectories", "18")))
    assert (whole["dropped"], thinned["dropped"], thinned["dropout_rate"]) == (0, 6, 0.25)
    assert thinned["estimated_cost"] < whole["estimated_cost"]
    assert (thinned["usable"], thinned["reasons"], thinned["ready"]) == (24, {}, True)
    assert "Dropout of 25% would leave out 6 of them before judging." in call("--target-trajectories", "18")[1]


def test_one_window_is_shown_in_full(database_url: str, call: Call) -> None:
    async def window(pool: Any) -> None:
        await insert_window(pool, agents=3)
        await insert_trajectory(pool, "agent-9", steps=[], trajectoryId="empty-1")
        await insert_outcomes(
            pool, WINDOW, stocks=[{"stockTicker": "EVIL", "newsEvents": json.dumps(["\x1b[31mred\x07 alert"])}]
        )

    fill(database_url, window)
    code, out, _ = call("--window", f"{WINDOW}:00Z")
    assert code == 0
    for text in ("Agent-1", "+20.00", "empty-1", "no_steps", "ACME: 100.00 to 110.00, +10.00 %", "ACME wins", ": YES"):
        assert text in out
    assert "\\x1b[31mred\\x07 alert" in out
    assert "\x1b" not in out
    assert "\x07" not in out
    shown = json.loads(call("--window", WINDOW, "--json")[1])
    assert [line["reason"] for line in shown["trajectories"]] == [None, None, None, "no_steps"]
    assert shown["outcomes"]["stocks"][0]["change_percent"] == 10


def test_a_window_that_is_not_there_or_no_window_at_all(call: Call) -> None:
    code, out, err = call("--window", "2026-11-02T03:00")
    assert (code, out) == (3, "")
    assert "Window 2026-11-02T03:00 has no rows" in err
    code, _, err = call("--window", "yesterday")
    assert code == 2
    assert "--window" in err


def test_a_table_fits_the_terminal(database_url: str, tmp_path: Path) -> None:
    async def window(pool: Any) -> None:
        await insert_window(pool, agents=3, writer="plugin")
        await insert_trajectory(pool, "agent-9", steps=plugin_steps(1)[:0])

    fill(database_url, window)
    command = [sys.executable, str(ROOT / "scripts" / "check_windows.py"), *UNTIL, "--min-windows", "1"]
    for columns in (60, 90, 160):
        master, slave = pty.openpty()
        environment = {"DATABASE_URL": database_url, "COLUMNS": str(columns), "TERM": "xterm", "PATH": ""}
        with subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=slave) as process:
            os.close(slave)
            shown = _read_all(master)
            assert process.wait() == 0
        table = [line for line in shown.split("Left out")[0].splitlines() if "2026-11-02T10:00" in line]
        assert len(table) == 1
        [heading] = [line for line in shown.splitlines() if "usable" in line and "rows" in line]
        assert ("to train" in heading) == (columns == 160)
        plain = "".join(
            part.partition("m")[2] if number else part for number, part in enumerate(table[0].split("\x1b["))
        )
        assert len(plain.rstrip()) <= columns


def _read_all(descriptor: int) -> str:
    chunks = []
    try:
        while chunk := os.read(descriptor, 65536):
            chunks.append(chunk)
    except OSError:  # how a pseudo-terminal says that the other side is closed
        pass
    os.close(descriptor)
    return b"".join(chunks).decode()


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("DROP TABLE market_outcomes, reward_judgments, trajectories CASCADE", "trajectories"),
        ("DROP TABLE market_outcomes", "market_outcomes"),
        ('ALTER TABLE trajectories DROP COLUMN "stepsJson"', "stepsJson"),
    ],
)
def test_a_database_that_is_not_the_games_is_one_sentence(
    database_url: str, call: Call, statement: str, sentence: str
) -> None:
    async def break_it(pool: Any) -> None:
        await insert_window(pool)
        await pool.execute(statement)

    fill(database_url, break_it)
    code, out, err = call()
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert sentence in err
    assert "is it the game's?" in err


def test_a_wrong_password_is_one_sentence_without_it(locked_url: str, tmp_path: Path) -> None:
    done = run(locked_url.replace("PASSWORD", "wr0ng-password"), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "refused the login" in done.stderr
    assert "wr0ng-password" not in done.stderr


def test_a_role_that_may_only_read_is_enough(database_url: str, locked_url: str, tmp_path: Path) -> None:
    role = locked_url.split("://")[1].split(":")[0]

    async def grant(pool: Any) -> None:
        for window_id in hours_before(number=3):
            await insert_window(pool, window_id)
        await pool.execute(f"GRANT SELECT ON trajectories, market_outcomes TO {role}")

    fill(database_url, grant)
    done = run(locked_url.replace("PASSWORD", "right-password"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    fill(database_url, lambda pool: pool.execute(f"DROP OWNED BY {role}"))


def test_help_is_quick(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "scripts" / "check_windows.py"), "--help"]
    taken = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        # The processor's time, so that whatever else runs on the machine does not decide.
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert "--lookback" in done.stdout
    assert min(taken) < 0.5


def test_a_normal_call_imports_no_machine_learning(database_url: str, tmp_path: Path) -> None:
    fill(database_url, insert_window)
    probe = (
        "import sys; from trainer.cli.check_windows import main; main(sys.argv[1:]); "
        "heavy = {'torch', 'art', 'litellm', 'transformers', 'openai', 'wandb'} & set(sys.modules); "
        "sys.exit(repr(heavy) if heavy else 0)"
    )
    for flags in ((), ("--window", WINDOW), ("--json", "--judge-model", "gpt-5-mini")):
        done = subprocess.run(
            [sys.executable, "-c", probe, *UNTIL, *flags],
            env={"DATABASE_URL": database_url, "PATH": "", "PYTHONPATH": str(ROOT)},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout
