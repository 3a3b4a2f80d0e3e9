"""A lessons policy is part of a release: compared with none and with random ones, gated, published, taken back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import SecretStr

from data_bridge.database import Database
from data_bridge.lesson_prompts import lessons_in, with_lessons
from data_bridge.lookup import read_trajectories
from data_bridge.models import ChatMessage
from data_bridge.window_ids import end_of, windows_from
from tests.builders_lessons import WordEmbedder, new_lesson
from tests.builders_promotion import insert_checkpoint
from tests.fakes.checkpoint_server import Answers, CheckpointServer, against_the_news, follows_the_news
from trainer.config.commands import TrainSettings
from trainer.config.settings import settings_from
from trainer.evidence import Role, Ruling
from trainer.ledger.checkpoints import find_checkpoint
from trainer.ledger.evaluations import way_back
from trainer.ledger.releases import serving
from trainer.lesson import LessonSource, NewLesson, Scope
from trainer.lessons.retrieval import open_lessons_of
from trainer.pipeline import Considered, consider
from trainer.promote.canary import was_shown
from trainer.promote.publish import publish, roll_back
from trainer.run.promotion import promote_checkpoint
from trainer.types import Release, release_of
from trainer.world.agents import scripted_cast
from trainer.world.market import Market
from trainer.world.play import play_windows

MARKET = Market(7, luck=0.0)
TRAINED = list(windows_from("2099-03-02T00:00", 3))
WINDOWS = [window for window in windows_from("2099-03-02T08:00", 40) if MARKET.hour(window).tickers[0].direction][:16]
POLICY = "lessons-1-all-notes"
KNOWN = end_of(TRAINED[-1], 1)
RIGHT, WRONG = "up down to News: follow it", "up down to News: oppose it"


class Believer(CheckpointServer):
    """A model that does what its lessons say; without one that it understands, what it is used to."""

    def __init__(self) -> None:
        super().__init__({})
        self.used_to: Answers = follows_the_news
        self.shown: list[str] = []

    def answer(self, body: dict[str, Any], headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        told = lessons_in([ChatMessage(**message) for message in body["messages"][:1]])
        self.shown += told
        said = {"follow it": follows_the_news, "oppose it": against_the_news}
        answers = next((deed for word, deed in said.items() if any(word in one for one in told)), self.used_to)
        self._checkpoints = {"": answers}
        return super().answer(body, headers)


@pytest.fixture
def model() -> Iterator[Believer]:
    with Believer() as server:
        yield server


@pytest.fixture
async def played(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    """A checkpoint that serves, and windows after its training."""
    monkeypatch.setattr("trainer.inference.embedding.EmbeddedModel", WordEmbedder)
    windows = TRAINED + WINDOWS
    await play_windows(database, tmp_path / "spool", MARKET, scripted_cast(3, 7), windows, write_together=50)
    await insert_checkpoint(database, 1, windows=TRAINED)
    return database


def settings_for(home: Path, server: CheckpointServer) -> TrainSettings:
    return settings_from(
        TrainSettings,
        home=home,
        wandb_api_key=SecretStr("a-key-for-tests"),
        wandb_base_url=server.base_url,
        eval_samples=1,
        eval_questions=0,
        eval_windows=len(WINDOWS),
    )


async def compared(
    played: Database, home: Path, model: Believer, *lessons: NewLesson, junk: int = 40
) -> tuple[Considered, Release]:
    """Step 1 with lessons against step 1 as the agents have it, without."""
    settings = settings_for(home, model)
    store = await open_lessons_of(played, WordEmbedder())
    others = [new_lesson(f"ferry{one} harbour", scope=Scope("game"), known_at=KNOWN) for one in range(junk)]
    await store.store([*lessons, *others])
    point = await find_checkpoint(played, "hindsight", 1)
    await publish(played, home, point.as_release(), point.served_at(settings.promotion), reason="first")
    release = point.as_release("", POLICY)
    return await consider(played, settings, release, run_id=None), release


async def test_lessons_that_help_are_promoted_random_ones_are_seen_not_to_and_one_command_goes_back(
    played: Database, model: Believer, tmp_path: Path
) -> None:
    model.used_to = against_the_news
    barred = LessonSource("t", "agent-1", WINDOWS[0], KNOWN)  # would be found first, were it not of these windows
    cheat = new_lesson("up down to News $ of the hour: mark", scope=Scope("game"), known_at=KNOWN, sources=(barred,))
    late = new_lesson("up down to News later: mark", scope=Scope("game"), known_at=end_of(WINDOWS[-1], 1))
    right = new_lesson(RIGHT, scope=Scope("game"), known_at=KNOWN)
    considered, release = await compared(played, tmp_path, model, right, cheat, late)

    assert considered.decision.ruling is Ruling.PROMOTE, considered.decision
    evaluation = considered.evaluation
    figures = {one.role: one for one in evaluation.figures}
    assert figures[Role.CANDIDATE].name == f"hindsight@step1+{POLICY}"
    assert Role.NO_LESSONS not in figures, "that is the incumbent"
    assert figures[Role.CANDIDATE].score.mean > figures[Role.RANDOM_LESSONS].score.mean + 0.1
    assert not [one for one in model.shown if "mark" in one], "neither from later nor from the evaluation's windows"
    assert any("ferry" in one for one in model.shown), "by chance"
    consulted = await played.pool.fetch("SELECT window_id FROM hindsight.consultations ORDER BY 1")
    assert [row["window_id"] for row in consulted] == WINDOWS

    now = await serving(played, "hindsight")
    assert now is not None
    assert now.release == release
    offered = await played.pool.fetchrow("SELECT * FROM trained_models WHERE status = 'deployed'")
    assert offered is not None
    assert offered["modelId"] == release.name
    assert POLICY in offered["evalMetrics"]
    # New weights keep what was promoted beside the old ones.
    point = await find_checkpoint(played, "hindsight", 1)
    assert release_of(point, now.release).lessons_policy == POLICY
    assert release_of(point, now.release, "").lessons_policy == ""

    at = settings_for(tmp_path, model).promotion
    back = await roll_back(played, tmp_path, "hindsight", lambda one: one.served_at(at), step=None, reason="worse")
    assert back.release == point.as_release()
    rows = await played.pool.fetch("SELECT \"modelId\" FROM trained_models WHERE status = 'deployed'")
    assert [row["modelId"] for row in rows] == ["hindsight@step1"]


async def test_lessons_that_are_wrong_on_purpose_are_refused_and_say_nothing_against_the_weights(
    played: Database, model: Believer, tmp_path: Path
) -> None:
    wrong = new_lesson(WRONG, scope=Scope("game"), known_at=KNOWN)
    considered, release = await compared(played, tmp_path, model, wrong)

    assert considered.decision.ruling is Ruling.REFUSE, considered.decision
    now = await serving(played, "hindsight")
    assert now is not None
    assert now.release.lessons_policy == ""
    assert await way_back(played, "hindsight", 1, 3) is None
    settings = settings_for(tmp_path, model)
    where = (played, tmp_path, "1", "hindsight", settings.gate, settings.promotion)
    with pytest.raises(Exception, match=rf"{release.name.replace('+', '.')} is not promoted \(refuse\)"):
        await promote_checkpoint(*where, lessons=POLICY)
    forced = await promote_checkpoint(*where, lessons=POLICY, force=True, reason="a trial")
    assert forced.release == release


async def test_a_canary_with_lessons_counts_only_decisions_that_were_shown_some(played: Database) -> None:
    names = [row[0] for row in await played.pool.fetch('SELECT "trajectoryId" FROM trajectories LIMIT 1')]
    (plain,) = [one async for one in read_trajectories(played, names, 2**24)]
    assert was_shown(plain, "")
    assert not was_shown(plain, POLICY)
    step = plain.steps[0]
    call = step.llm_calls[0]
    told = msgspec.structs.replace(call, messages=with_lessons(call.seen(), ["Sell: on strikes"], "notes"))
    shown = msgspec.structs.replace(plain, steps=[msgspec.structs.replace(step, llm_calls=[told])])
    assert was_shown(shown, POLICY)
    assert not was_shown(shown, "")
