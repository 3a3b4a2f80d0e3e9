"""What 0.1.0 left behind goes on working: its ledger, its home and its ``.env``.

The state under ``tests/data/v0_1_0`` was made by 0.1.0 itself. Its README says what it holds and how it was made.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from data_bridge.database import open_database
from data_bridge.embedded import EmbeddedServer
from data_bridge.migrate import apply, load_migrations, read_states
from tests.builders_upgrade import FIXTURE, HOME, MADE_IN, WEEKLY, WIDTH, old_settings, restore_home, restore_ledger
from tests.conftest import in_own_loop
from tests.fakes.judge_server import JudgeServer, honest
from tests.settings_read import commands
from tests.tiny_model import shared_tiny_model
from trainer.cli import check_windows, lineage, promote, report, train_mmo
from trainer.config.commands import TrainSettings, all_variables
from trainer.config.settings import Command, extra_of, flag_of, is_secret, public_values, settings_from, settings_of
from trainer.config.sources import load
from trainer.config.training import GateSettings
from trainer.inference.base_model import EMBEDDED, model_directory
from trainer.inference.checkpoints import store_of
from trainer.judge.open import identity_of
from trainer.ledger.certificates import find
from trainer.ledger.evaluations import latest_evaluation
from trainer.ledger.periods import Held, Periods
from trainer.ledger.releases import pointer_file, read_pointer
from trainer.promote.ruling import standing_ruling
from trainer.run.session import fingerprint
from trainer.serve.checkpoints import ServedCheckpoints, following_ledger
from trainer.train.backends.remote_job import Receipt
from trainer.types import JudgeIdentity, Release

NEWEST_OF_0_1_0 = 9
"""Number of its last migration."""
OLD = old_settings()
ANSWERS: list[dict[str, Any]] = json.loads((FIXTURE / "answers.json").read_text())
MAINS = {
    "check_windows": check_windows.main,
    "lineage": lineage.main,
    "promote": promote.main,
    "report": report.main,
    "train_mmo": train_mmo.main,
}


FEW = ("--eval-samples", "1", "--eval-questions", "4")
"""Of what an evaluation asks: how much it knows is not the point here."""


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_tiny_model(tmp_path_factory, width=WIDTH)


@dataclass(frozen=True)
class Old:
    """The folder that 0.1.0 was used in, which is the working directory now, and the database of its ledger."""

    folder: Path
    url: str

    @property
    def home(self) -> Path:
        return self.folder / HOME

    def fetch(self, query: str, *arguments: Any) -> list[Any]:
        async def work() -> list[Any]:
            connection = await asyncpg.connect(self.url)
            try:
                return list(await connection.fetch(query, *arguments))
            finally:
                await connection.close()

        return in_own_loop(work)

    def value(self, query: str, *arguments: Any) -> Any:
        (row,) = self.fetch(query, *arguments)
        return row[0]


@pytest.fixture
def old(make_database: Callable[..., str], tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Old:
    """The ledger in a database of the team's, as 0.1.0 left it: nothing has migrated it yet."""
    url = make_database()
    in_own_loop(lambda: restore_ledger(url, tmp_path))
    restore_home(tmp_path, tiny)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DATABASE_URL", url)
    return Old(tmp_path, url)


# The ledger


async def test_the_migrations_that_are_newer_are_applied_and_change_no_row(old: Old) -> None:
    tables = await _contents(old.url)
    connection = await asyncpg.connect(old.url)
    newer = [migration.number for migration in load_migrations() if migration.number > NEWEST_OF_0_1_0]
    pending = [state.migration.number for state in await read_states(connection) if state.word == "pending"]
    assert pending == newer
    assert [migration.number for migration in await apply(connection)] == newer
    assert {state.word for state in await read_states(connection)} == {"applied"}
    await connection.close()
    after = await _contents(old.url)
    for table, rows in tables.items():
        if table != "hindsight.migrations":
            assert _holds(after[table], rows), table


async def _contents(url: str) -> dict[str, list[dict[str, Any]]]:
    connection = await asyncpg.connect(url)
    names = await connection.fetch(
        "SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables"
        " WHERE schemaname IN ('public', 'hindsight') ORDER BY 1"
    )
    found = {}
    for (name,) in names:
        rows = await connection.fetch(f"SELECT to_jsonb(t)::text AS row FROM {name} t ORDER BY t::text")
        found[name] = sorted((json.loads(row["row"]) for row in rows), key=lambda row: str(sorted(row.items())))
    await connection.close()
    assert len(found) > 20
    return found


def _holds(now: Any, before: Any) -> bool:
    """Whether all that was said before is said now; more may be said."""
    if isinstance(before, dict):
        return isinstance(now, dict) and all(key in now and _holds(now[key], told) for key, told in before.items())
    if isinstance(before, list):
        return (
            isinstance(now, list) and len(now) == len(before) and all(map(_holds, now, before))  # in the same order
        )
    return bool(now == before)


@pytest.mark.parametrize("is_migrated", [False, True], ids=["as it was left", "migrated"])
@pytest.mark.parametrize("told", ANSWERS, ids=lambda told: " ".join([told["command"], *told["arguments"][:2]]))
def test_a_command_says_what_it_said_in_0_1_0(
    told: Mapping[str, Any], is_migrated: bool, old: Old, capsys: pytest.CaptureFixture[str]
) -> None:
    if is_migrated:
        in_own_loop(lambda: _migrate(old.url))
    assert MAINS[told["command"]]([*told["arguments"], "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    before = json.loads(json.dumps(told["answer"]).replace(MADE_IN, str(old.folder)))
    before.pop("database", None)  # it was the embedded one
    before = _but_for_the_split(before)
    assert _holds(answer, before), (answer, before)


OF_THE_SPLIT = {
    "usable",
    "usable_windows",
    "reasons",
    "examples",
    "left_out",
    "groups",
    "judge_calls",
    "estimated_calls",
}
OF_THE_SPLIT |= {"judge_tokens", "train_tokens", "trajectories to train", "windows to train"}


def _but_for_the_split(told: Any) -> Any:
    """What does not depend on which windows are kept for evaluation: a hash chose them in 0.1.0, now the newest are."""
    if isinstance(told, list):
        return [_but_for_the_split(one) for one in told]
    if not isinstance(told, dict) or "gain" in told:
        return told
    names = {"windows": "windows to train", "trajectories": "trajectories to train"} if "left_out" in told else {}
    return {name: _but_for_the_split(one) for name, one in told.items() if names.get(name, name) not in OF_THE_SPLIT}


async def _migrate(url: str) -> None:
    connection = await asyncpg.connect(url)
    await apply(connection)
    await connection.close()


def test_the_page_of_a_run_is_written_again(old: Old, capsys: pytest.CaptureFixture[str]) -> None:
    for run_id, model in old.fetch("SELECT run_id, model FROM hindsight.runs ORDER BY started_at"):
        assert report.main([run_id]) == 0
        page = (old.home / "runs" / run_id / "report.html").read_text()
        assert run_id in page
        assert page.count("<svg") > 1, f"no picture of {model}"


async def test_the_evidence_of_an_evaluation_is_about_releases_and_its_ruling_stands(old: Old) -> None:
    async with open_database(old.url, old.home, migrate=True) as database:
        rows = await database.pool.fetch("SELECT candidate_step, ruling, reasons FROM hindsight.evaluations")
        assert sorted(row["candidate_step"] for row in rows) == [2, 3]
        for row in rows:
            evaluation = await latest_evaluation(database, "hindsight", row["candidate_step"])
            assert evaluation is not None
            place = str(old.home / "checkpoints" / "hindsight" / f"step-00000{row['candidate_step']}")
            assert evaluation.candidate == Release("hindsight", row["candidate_step"], "tiny", "cpu", place)
            assert evaluation.candidate.name == f"hindsight@step{row['candidate_step']}"
            assert isinstance(evaluation.incumbent, Release) == (row["candidate_step"] == 2)
            decision = await standing_ruling(database, evaluation, GateSettings())
            assert decision is not None
            assert (decision.ruling, list(decision.reasons)) == (row["ruling"], row["reasons"])


async def test_a_certificate_and_a_period_are_still_held(old: Old) -> None:
    async with open_database(old.url, old.home, migrate=True) as database:
        (named,) = await database.pool.fetch(
            "SELECT judge, rubric, rubric_version, prompt_version FROM hindsight.certificates WHERE judge = 'judge'"
        )
        certificate = await find(database, JudgeIdentity(**dict(named), is_llm=True))
        assert certificate is not None
        today = identity_of(settings_from(TrainSettings, judge_model="judge").judge)
        assert await find(database, today) is None, "that judge is shown something else today"
        assert {"contrast", "outcome flips"} < {line.name for line in certificate.lines}
        assert "by edition 1 of the certificate, which does not count any more" in (certificate.fault or "")
        (row,) = await database.pool.fetch("SELECT job, period FROM hindsight.periods")
        held = await Periods(database, row["job"]).claim(row["period"])
        assert isinstance(held, Held)
        assert (held.state, held.exit_code) == ("done", 0)


def test_the_receipt_of_a_remote_job_is_understood() -> None:
    receipt = Receipt.parse("job-1 (after step 4, 1200 tokens, sent 2026-02-02T00:00:05Z)", policy_step=3)
    assert receipt == Receipt("job-1", 4, 1200, datetime(2026, 2, 2, 0, 0, 5, tzinfo=UTC))


# The home


def served(old: Old) -> ServedCheckpoints:
    def model_of(directory: Path | None, name: str) -> Any:
        return directory

    stored = store_of(old.home, "hindsight")
    checkpoints = ServedCheckpoints(old.home, "hindsight", stored, model_of, base_model="tiny")
    checkpoints.refresh()
    checkpoints.check_served()
    return checkpoints


def test_the_pointer_file_names_what_agents_use_and_the_canary_and_their_checkpoints_are_served(old: Old) -> None:
    pointer = read_pointer(old.home, "hindsight")
    assert pointer is not None
    assert pointer.serving is not None
    assert pointer.canary is not None
    assert pointer.serving.release.name == "hindsight@step2"
    assert pointer.canary.promotion.release.name == "hindsight@step3"
    assert len(pointer.canary.agents) == 2
    on_trial = next(iter(pointer.canary.agents))
    checkpoints: Any = served(old)
    assert checkpoints.served_name == "hindsight@step2"
    assert checkpoints.choose("hindsight", None) == old.home / "checkpoints" / "hindsight" / "step-000002"
    assert checkpoints.choose("hindsight", on_trial) == old.home / "checkpoints" / "hindsight" / "step-000003"


async def test_a_server_follows_a_ledger_that_nobody_has_migrated(old: Old) -> None:
    pointer_file(old.home, "hindsight").unlink()
    async with following_ledger(old.url, old.home, "hindsight"):
        assert served(old).served_name == "hindsight@step2"


def test_the_model_that_was_converted_is_not_converted_again(old: Old) -> None:
    converted = old.home / "models" / "smollm2-135m-instruct-1"
    converted.mkdir(parents=True)
    assert model_directory(EMBEDDED, old.home) == converted


def test_a_rollback_ends_the_canary_and_then_goes_to_what_0_1_0_promoted(
    old: Old, capsys: pytest.CaptureFixture[str]
) -> None:
    assert promote.main(["--rollback", "--reason", "no trial"]) == 0
    assert promote.main(["--rollback", "--reason", "it loses money"]) == 0
    pointer = read_pointer(old.home, "hindsight")
    assert pointer is not None
    assert pointer.serving is not None
    assert (pointer.serving.release.name, pointer.canary) == ("hindsight@step1", None)
    assert served(old).served_name == "hindsight@step1"
    states = old.fetch("SELECT step, kind, state FROM hindsight.promotions ORDER BY promotion_id")
    assert [tuple(row) for row in states] == [
        (1, "promotion", "superseded"),
        (2, "promotion", "rolled_back"),
        (3, "promotion", "rolled_back"),
        (1, "rollback", "serving"),
    ]
    assert old.value("SELECT version FROM trained_models WHERE status = 'deployed'") == "1"


def test_a_canary_that_0_1_0_began_can_be_finished(old: Old, capsys: pytest.CaptureFixture[str]) -> None:
    assert promote.main(["--finish", "--force", "--reason", "good enough"]) == 0
    assert served(old).served_name == "hindsight@step3"


# Runs that were killed


def test_a_run_on_the_log_is_taken_up_settled_trained_to_its_end_and_pays_for_no_verdict_twice(
    old: Old, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = old.value("SELECT run_id FROM hindsight.runs WHERE model = 'weekly'")
    paid = old.value("SELECT count(*) FROM hindsight.judge_calls WHERE run_id = $1", run_id)
    assert paid > 2, "more was judged than was trained"
    with JudgeServer(otherwise=honest()) as judge:
        judged = ["--judge-model", "judge", "--judge-base-url", judge.base_url, "--price", "0.25/2"]
        assert train_mmo.main([*judged, *WEEKLY]) == 5, capsys.readouterr().err
    told = capsys.readouterr().err
    assert "had been trained before the crash: checkpoint weekly@step2 is recorded" in told
    assert f"Resuming run {run_id}" in told
    assert tuple(*old.fetch("SELECT run_id, state, attempts FROM hindsight.runs WHERE model = 'weekly'")) == (
        *(run_id, "done", 2),
    )
    points = [row["step"] for row in old.fetch("SELECT step FROM hindsight.checkpoints WHERE model = 'weekly'")]
    assert sorted(points) == list(range(1, len(points) + 1))
    assert len(points) > 2
    assert all(store_of(old.home, "weekly").is_sound(step) for step in points)
    twice = (
        "SELECT trajectory_id FROM hindsight.batch_trajectories WHERE model = 'weekly' GROUP BY 1 HAVING count(*) > 1"
    )
    assert old.fetch(twice) == []
    calls = "SELECT verdict_key, order_number FROM hindsight.judge_calls WHERE run_id = $1 AND result = 'ok'"
    asked = [tuple(row) for row in old.fetch(calls, run_id)]
    assert len(asked) == len(set(asked)) == len(judge.requests) + paid


def test_the_closed_loop_of_an_embedded_home_goes_on_where_it_was(
    server_folder: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    restore_home(server_folder, tiny)
    monkeypatch.chdir(server_folder)
    with EmbeddedServer(server_folder / HOME / "postgres", options={"fsync": "off"}) as server:
        old = Old(server_folder, server.url())
        in_own_loop(lambda: restore_ledger(old.url, server_folder))
        days = "SELECT run_id, (summary -> 'days')::text, attempts FROM hindsight.runs WHERE model = 'hindsight'"
        run_id, before, _ = old.fetch(f"{days} AND state = 'running'")[0]
        played_before = old.value("SELECT count(*) FROM hindsight.simulated_windows")
        assert train_mmo.main(["--iterations", "3", "--until", "2026-02-04T00:00", *FEW]) == 5, capsys.readouterr().err
        ended = old.fetch(f"{days} AND state = 'done' ORDER BY started_at DESC")
        assert ended[0]["run_id"] == run_id
        days_now = json.loads(ended[0][1])
        assert len(json.loads(before)) == 1
        assert days_now[:1] == json.loads(before)
        assert [day["day"] for day in days_now] == [1, 2, 3]
        assert "windows_played" not in days_now[1], "the day that was half trained was not played again"
        assert ended[0]["attempts"] == 2
        assert old.value("SELECT count(*) FROM hindsight.simulated_windows") == played_before + 6 + 40, (
            "and the hours that decide"
        )
        left_behind = "SELECT count(*) FROM trajectories WHERE \"agentId\" = 'left-behind'"
        assert old.value(left_behind) == 1, "what was in the spool has arrived"
        evaluated = old.fetch("SELECT report::text FROM hindsight.evaluations WHERE run_id = $1", run_id)
        windows = json.loads(evaluated[0]["report"])["windows"]
        assert windows
        assert all(window["pnl"] for window in windows)
        told = "SELECT max(window_id) FROM hindsight.simulated_windows WHERE prompt_version = '1'"
        assert min(window["window_id"] for window in windows) > old.value(told), "0.1.0's world cannot be replayed"


# Settings


def now_called(cls: type[Command], name: str, flag: str | None) -> str:
    """Today's name of a setting: the same, the one that was formerly called so, or the one with its flag."""
    placed = [(one.name, one.field) for one in settings_of(cls)]
    found = [one for one, _ in placed if one == name]
    found += [one for one, field in placed if extra_of(field, "formerly") == name]
    found += [one for one, field in placed if flag_of(one, field) == flag]
    assert found, f"{name} ({flag}) is no setting any more"
    return found[0]


def resolved(
    cls: type[Command], argv: list[str], environ: Mapping[str, str] | None = None, dotenv: Path = Path("/nonexistent")
) -> dict[str, Any]:
    """Every setting by its name, secrets in full."""
    known = all_variables()
    settings = load(cls, argv, prog="", description="", environ=environ or {}, dotenv=dotenv, known_variables=known)
    values = public_values(settings)
    for section, name, field in settings_of(cls):
        secret = getattr(getattr(settings, section), name) if is_secret(field) else None
        if secret is not None:
            values[name] = secret.get_secret_value()
    return values


def expected(
    cls: type[Command], told: Mapping[str, Any], values: Mapping[str, Any], texts: Mapping[str, str]
) -> dict[str, Any]:
    """What 0.1.0 resolved, with the secrets that it did not tell, and without what is ignored now."""
    return {
        name: texts[told["settings"][name]["variable"]] if value == "[set]" else value
        for name, value in values.items()
        if name not in cls.ignored
    }


TEXTS = dict(
    line.split("=", 1) for line in (FIXTURE / "every_variable.env").read_text().splitlines() if not line.startswith("#")
)
RENAMED = {
    "HINDSIGHT_" + former.upper(): command
    for command, cls in commands().items()
    for _, _, field in settings_of(cls)
    if (former := extra_of(field, "formerly")) and former in OLD["commands"][command]["settings"]
}
"""Variables of 0.1.0 that have another name now, and the command that reads them."""


def warned_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("command", OLD["commands"])
def test_every_variable_of_a_0_1_0_env_file_means_what_it_meant(command: str, caplog: pytest.LogCaptureFixture) -> None:
    told, cls = OLD["commands"][command], commands()[command]
    values = resolved(cls, told["needed"], dotenv=FIXTURE / "every_variable.env")
    assert values == resolved(cls, told["needed"], environ=TEXTS)
    for name, value in expected(cls, told, told["with_variables"], TEXTS).items():
        today = NEW_DEFAULTS.get(name, value) if value == told["defaults"][name] else value
        assert values[now_called(cls, name, told["settings"][name]["flag"])] == today, name
    assert {message.split()[0] for message in warned_of(caplog)} == {
        variable for variable, reader in RENAMED.items() if reader == command
    }


NEW_DEFAULTS = {"held_out_share": 0.25, "groups": 36, "groups_per_step": 12} | {
    "windows_per_iteration": 24,
    "iterations": 6,
}
"""The first was a tenth, chosen by hash; the second, of a certification, was too few to measure anything."""
NO_LONGER_FLAGS = {"--database-url": "DATABASE_URL", "--notify-url": "HINDSIGHT_NOTIFY_URL"}
"""Secrets: a URL with a password is refused as a flag now."""


def with_secrets_as_variables(argv: list[str]) -> tuple[list[str], dict[str, str]]:
    """The flags of 0.1.0 with secrets where they belong now."""
    kept, variables = list(argv), {}
    for flag in NO_LONGER_FLAGS.keys() & set(argv):
        at = kept.index(flag)
        _, variables[NO_LONGER_FLAGS[flag]] = kept[at : at + 2]
        del kept[at : at + 2]
    return kept, variables


@pytest.mark.parametrize("command", OLD["commands"])
def test_every_flag_of_a_command_of_0_1_0_is_accepted_and_means_what_it_meant(
    command: str, caplog: pytest.LogCaptureFixture
) -> None:
    told, cls = OLD["commands"][command], commands()[command]
    for argv, before in (
        (told["flags"], told["with_flags"]),
        ([*told["needed"], *told["off"]], told["with_off"]),
        (told["needed"], told["defaults"]),
    ):
        flags, variables = with_secrets_as_variables(argv)
        values = resolved(cls, flags, environ=variables)
        for name, value in expected(cls, told, before, TEXTS).items():
            today = NEW_DEFAULTS.get(name, value) if value == told["defaults"][name] else value
            assert values[now_called(cls, name, told["settings"][name]["flag"])] == today, f"{name} of {argv}"
    renamed = {"--" + variable.removeprefix("HINDSIGHT_").lower().replace("_", "-") for variable in RENAMED}
    ignored = {"--" + name.replace("_", "-") for name in cls.ignored}
    assert {message.split()[0] for message in warned_of(caplog)} == (renamed | ignored) & set(told["flags"])


def test_a_variable_that_was_renamed_is_one_of_them() -> None:
    assert RENAMED["HINDSIGHT_MOST_WAITING"] == "serve"


@pytest.mark.parametrize("command", ["train_mmo", "evaluate"])
def test_the_settings_that_the_ledger_keeps_have_the_names_they_had(command: str) -> None:
    told, cls = OLD["commands"][command], commands()[command]
    now = public_values(load(cls, [], prog="", description="", environ={}, dotenv=Path("/nonexistent")))
    assert set(told["defaults"]) - set(now) == set(cls.ignored)


FINGERPRINTS = {
    "defaults": "57d2a1e68429852385ffa4c7",
    "another judge": "2a0a9457e6ca06b74bbd232e",
    "another market": "446be16b1abcea6573de3867",
    "another model": "fc6a26015e46bbb2eb165f95",
    "other groups": "3f4a353a31586a7ba39fe721",
    "other rows": "0dfc3131455741e7fdd8d838",
    "the game's log": "a7181b01dfd69bbd7150c17a",
}
"""As 0.1.0 computed them of the values in ``settings.json``."""


@pytest.mark.parametrize("name", FINGERPRINTS)
def test_equal_settings_have_the_fingerprint_that_they_had(name: str) -> None:
    """Otherwise a run that was killed before the upgrade would never be taken up."""
    told = OLD["fingerprints"][name]
    assert told["fingerprint"] == FINGERPRINTS[name]
    spelled_out = {"windows_per_iteration": 18, **told["values"]}  # the default of then: CHANGELOG.md says so
    assert fingerprint(settings_from(TrainSettings, **spelled_out)) == FINGERPRINTS[name]
