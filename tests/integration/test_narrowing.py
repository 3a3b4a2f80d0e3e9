"""What a candidate is compared with in the simulated market, and what it may not lose elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from data_bridge.database import Database
from data_bridge.window_ids import windows_from
from tests.builders_promotion import insert_checkpoint
from tests.fakes.checkpoint_server import CheckpointServer, against_the_news, babbles, follows_the_news
from trainer.config.commands import TrainSettings
from trainer.config.settings import settings_from
from trainer.evidence import DAYS_AFTER, QUESTION_COLUMNS, UNSEEN_TICKERS, Reader, Role, Ruling
from trainer.ledger.checkpoints import find_checkpoint
from trainer.ledger.evaluations import latest_evaluation
from trainer.pipeline import Considered, consider
from trainer.world.agents import scripted_cast
from trainer.world.market import Market
from trainer.world.play import play_windows
from trainer.world.vocabulary import TICKERS

MARKET = Market(7, luck=0.0)
WINDOWS = [window for window in windows_from("2099-03-02T08:00", 60) if MARKET.hour(window).tickers[0].direction][:20]


def knows_its_tickers(seen: str) -> str:
    """Has learnt names instead of reading: about any other ticker it says nothing that is an action."""
    return follows_the_news(seen) if seen.split()[0] in TICKERS["trained"] else "BUY $COIN 20%"


@pytest.fixture
async def played(database: Database, tmp_path: Path) -> Database:
    await play_windows(database, tmp_path / "spool", MARKET, scripted_cast(3, 7), WINDOWS, write_together=50)
    await insert_checkpoint(database, 1)
    return database


class GreedyServer(CheckpointServer):
    """The candidate reads when it samples, and only knows names when it does not."""

    def answer(self, body: dict[str, Any], headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        reads = knows_its_tickers if body["temperature"] == 0 else follows_the_news
        self._checkpoints = {**self._checkpoints, ":step1": reads}
        return super().answer(body, headers)


async def _consider(
    played: Database,
    home: Path,
    base: Callable[[str], str],
    candidate: Callable[[str], str],
    server_class: type[CheckpointServer] = CheckpointServer,
    **more: Any,
) -> tuple[Considered, list[str]]:
    said: list[str] = []
    with server_class({":step0": base, ":step1": candidate}) as server:
        known = {"wandb_api_key": SecretStr("a-key"), "wandb_base_url": server.base_url, "eval_samples": 2}
        settings = settings_from(TrainSettings, **(known | {"home": home, "eval_questions": 16} | more))
        release = (await find_checkpoint(played, "hindsight", 1)).as_release()
        return await consider(played, settings, release, run_id=None, say=said.append), said


async def test_a_candidate_that_learnt_its_tickers_by_name_is_refused_whatever_it_gained(
    played: Database, tmp_path: Path
) -> None:
    considered, _ = await _consider(played, tmp_path, against_the_news, knows_its_tickers)
    gain = considered.evaluation.score_difference
    assert gain.low is not None
    assert gain.low > 0, "where it was trained it is much better"
    assert considered.decision.ruling is Ruling.REFUSE
    assert "validity on unseen tickers fell to 0.00 from the base model's 1.00" in considered.decision.sentence
    assert considered.promotion is None


async def test_one_that_is_narrow_only_when_it_does_not_sample_is_refused_too(played: Database, tmp_path: Path) -> None:
    await played.pool.execute(
        'UPDATE trajectories SET "stepsJson" = replace("stepsJson"::text, \'"temperature":0\', \'"temperature":1\')'
    )
    considered, _ = await _consider(played, tmp_path, against_the_news, follows_the_news, GreedyServer)
    assert considered.evaluation.reading is not None
    assert considered.evaluation.reading.temperature == 1.0
    found = considered.evaluation.narrowing
    assert found is not None
    assert (found.candidate, found.base, found.greedy_candidate, found.greedy_base) == (1.0, 1.0, 0.0, 1.0)
    assert considered.decision.ruling is Ruling.REFUSE
    assert considered.decision.sentence.startswith("greedy validity on unseen tickers fell to 0.00")


async def test_one_that_reads_is_promoted_and_all_four_columns_are_kept_with_the_evaluation(
    played: Database, tmp_path: Path
) -> None:
    considered, said = await _consider(played, tmp_path, against_the_news, follows_the_news)
    assert considered.decision.ruling is Ruling.PROMOTE
    assert "unseen tickers" not in considered.decision.sentence, "measured, and not broken"
    test = considered.evaluation.reading
    assert test is not None
    right = {
        reader: [
            one.right_of_valid.mean
            for column in QUESTION_COLUMNS
            if (one := test.of(reader, column)) and one.right_of_valid
        ]
        for reader in Reader
    }
    assert right[Reader.CANDIDATE] == right[Reader.CANDIDATE_GREEDY] == right[Reader.SCRIPT] == [1.0] * 4
    assert right[Reader.BASE] == right[Reader.BASE_GREEDY] == [0.0] * 4
    assert all(0.1 < share < 0.9 for share in right[Reader.RANDOM][1:])
    for column in QUESTION_COLUMNS:
        picked = test.of(Reader.RANDOM, column)
        assert picked is not None
        assert picked.valid is not None
        assert picked.valid.mean == 1.0, f"always valid: {column}"
    after = test.of(Reader.CANDIDATE, DAYS_AFTER)
    assert after is not None
    assert after.questions == len(WINDOWS)
    assert (test.stronger_base, test.gain.mean) == (Reader.BASE_GREEDY, 1.0)
    random = considered.evaluation.of(Role.RANDOM)
    assert random is not None
    assert random.valid_rate is not None
    assert random.valid_rate.mean == 1.0
    assert [line.split(": ")[0] for line in said] == ["reading test"] * 3
    assert await latest_evaluation(played, "hindsight", 1) == considered.evaluation


async def test_without_questions_the_rarest_states_are_looked_at_and_too_few_are_said_to_be(
    played: Database, tmp_path: Path
) -> None:
    considered, said = await _consider(played, tmp_path, babbles, follows_the_news, eval_questions=0)
    assert (considered.evaluation.reading, said) == (None, [])
    assert "a quarter of 20 decision points is less than 10" in considered.decision.sentence
    assert considered.decision.ruling is Ruling.PROMOTE


async def test_an_evaluation_that_was_stored_before_there_were_questions_can_still_be_read(
    played: Database, tmp_path: Path
) -> None:
    await _consider(played, tmp_path, babbles, follows_the_news, eval_questions=0)
    report = json.loads(await played.pool.fetchval("SELECT report::text FROM hindsight.evaluations"))
    for name in ("reading", "narrowing", "absent"):
        del report[name]
    await played.pool.execute("UPDATE hindsight.evaluations SET report = $1::jsonb", json.dumps(report))
    stored = await latest_evaluation(played, "hindsight", 1)
    assert stored is not None
    assert (stored.reading, stored.narrowing, stored.absent) == (None, None, {})
    assert UNSEEN_TICKERS not in repr(stored)
