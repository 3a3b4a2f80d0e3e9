"""A whole run in a real ledger, written by the trainer's own code: what a report is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from data_bridge.database import Database
from data_bridge.models import WindowOutcomes
from data_bridge.quality import Exclusion, Reason
from tests.builders import hours_before, insert_window
from tests.builders_report import HELD_OUT, evaluation, example
from trainer.evidence import Evaluation, GateDecision, Ruling
from trainer.ledger.batch_records import BatchRecord, GroupRecord
from trainer.ledger.certificates import Line, keep
from trainer.ledger.evaluations import keep_ruling, save
from trainer.ledger.model_lock import ModelLock, hold
from trainer.ledger.runs import Ledger
from trainer.ledger.states import RunState
from trainer.ledger.verdicts import Call, CallResult, JudgedTrajectory, Judgement, JudgeQuestion, open_verdicts
from trainer.promote.publish import publish
from trainer.types import (
    Checkpoint,
    Group,
    JudgeIdentity,
    PlannedGroup,
    PlannedWindow,
    RunPlan,
    Serving,
    StepResult,
    Verdict,
)

RUN = "run-1"
JUDGE = JudgeIdentity("gpt-test", "trading", "2", "3", is_llm=True)
EXAMINER = JudgeIdentity("gpt-other", "decision", "1", "1", is_llm=True)
"""Who judges the evaluation."""
WINDOWS = hours_before(number=3)
HOSTILE = "</p><script>alert(1)</script><img src=x onerror=alert(2)>"
"""What an agent or a judge may write."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    run_id: str
    trajectory_ids: tuple[str, ...]
    evaluation: Evaluation


async def record_run(
    database: Database, home: Path, *, words: str = "because", also_trained: str | None = None
) -> RecordedRun:
    """Two steps over three windows of three agents, evaluated, promoted. ``also_trained``: one window more."""
    ledger = Ledger(database)
    windows = [*WINDOWS, *([also_trained] if also_trained else [])]
    groups = [await _group(database, window_id, words) for window_id in windows]
    planned = tuple(
        PlannedWindow(one.window_id, 1, (PlannedGroup(one.group_id, tuple(v.trajectory_id for v in one.verdicts)),))
        for one in groups
    )
    left_out = (
        Exclusion("t-dropped", "agent-9", WINDOWS[0], Reason.DROPOUT),
        Exclusion("t-held-out-1", "agent-1", HELD_OUT[-1], Reason.HELD_OUT),
        Exclusion("t-held-out-2", "agent-2", HELD_OUT[-1], Reason.HELD_OUT),
    )
    await ledger.start_run(
        RUN,
        model="hindsight",
        base_model="tiny",
        backend="serverless",
        fingerprint="same",
        settings={"held_out_share": 0.1, "min_gain": 0.0, "note": words, "code_version": "0.1.0 (abc)"},
        plan=RunPlan(planned, left_out, 0.25, 9),
    )
    await _judge(database, groups)
    async with hold(database, "hindsight") as lock:
        await _fail(ledger, lock, groups[:1])
        await _train(ledger, lock, 1, groups[:2])
        await _train(ledger, lock, 2, groups[2:])
    days = [
        {"day": 1, "played_with": "hindsight@step0", "step": 1, "valid_share": 0.5, "mean_pnl": -2.5},
        {"day": 2, "played_with": "hindsight@step1", "step": 2},
        {"day": 3, "played_with": "hindsight@step2", "step": 2, "valid_share": 0.75, "mean_pnl": 4.5},
    ]
    await ledger.finish_run(RUN, RunState.DONE, summary={"days": days})
    await keep(
        database,
        JUDGE,
        [Line("order", 0.05, 0.25, True, "how far the order moves scores", 12, -0.1, 0.2)],
        material="simulated",
        groups=20,
        calls=80,
        cost_usd=0.4,
        unmeasured={"skill": "nobody knows which decisions were sound"},
    )
    return RecordedRun(
        RUN, tuple(v.trajectory_id for g in groups for v in g.verdicts), await _ship(database, home, words)
    )


async def _group(database: Database, window_id: str, words: str) -> GroupRecord:
    """Three agents who made 0, 10 and 20 and were given 0.2, 0.5 and 0.8."""
    ids = await insert_window(database.pool, window_id, agents=3)
    verdicts = tuple(
        Verdict(one, score, 0.05, f"{words} {score}") for one, score in zip(ids, (0.2, 0.5, 0.8), strict=True)
    )
    agents = tuple(f"agent-{number}" for number in range(1, 4))
    return GroupRecord(f"{window_id}/1", window_id, agents, verdicts, JUDGE, f"key of {window_id}")


async def _judge(database: Database, groups: list[GroupRecord]) -> None:
    """Every group in two orders, the second of which gives the last two agents each other's score; one failed call."""
    async with open_verdicts(database, RUN) as verdicts:
        for group in groups:
            asked = Group(group.group_id, group.window_id, (), WindowOutcomes())
            own = [verdict.score for verdict in group.verdicts]
            for order, scores in enumerate((own, [own[0], own[2], own[1]])):
                judged = tuple(
                    JudgedTrajectory(f"content {one.trajectory_id}", one.trajectory_id, score, one.explanation)
                    for one, score in zip(group.verdicts, scores, strict=True)
                )
                call = Call(CallResult.OK, "prompt", 10.0, prompt_tokens=1000, completion_tokens=100, cost_usd=0.25)
                question = JudgeQuestion(group.verdict_key, order, asked.window_id, asked.group_id, JUDGE)
                await verdicts.store(question, Judgement(judged, "prompt", 1000, 100, cost_usd=0.25), call)
        failed = Call(CallResult.TIMEOUT, "prompt", 10.0, prompt_tokens=1000, tokens_estimated=True, cost_usd=0.125)
        await verdicts.record_call(question, failed)
        # The evaluation's judge is asked under the same run.
        compared = JudgeQuestion("key of the evaluation", 0, HELD_OUT[0], "held-out", EXAMINER)
        call = Call(CallResult.OK, "prompt", 10.0, prompt_tokens=500, completion_tokens=50, cost_usd=0.5)
        await verdicts.store(compared, Judgement((JudgedTrajectory("c", "reply-1", 0.5, ""),), "prompt"), call)


def _record(batch_id: str, number: int, policy_step: int, groups: list[GroupRecord]) -> BatchRecord:
    return BatchRecord(batch_id, RUN, "hindsight", number, policy_step, tuple(groups), (), 50 * len(groups))


async def _fail(ledger: Ledger, lock: ModelLock, groups: list[GroupRecord]) -> None:
    record = _record("batch-failed", 1, 0, groups)
    await ledger.batch_prepared(lock, record)
    await ledger.batch_failed(lock, record.batch_id, "the job was lost")


async def _train(ledger: Ledger, lock: ModelLock, step: int, groups: list[GroupRecord]) -> None:
    record = _record(f"batch-{step}", step + 1, step - 1, groups)
    await ledger.batch_prepared(lock, record)
    result = StepResult(checkpoint(step), 50 * len(groups), {})
    histogram = {"edges": [0.0], "counts": [3.0, 3.0 * len(groups)]}
    metrics = {"reward": 0.4 + step / 10, "reward_std": 0.2, "kl": 0.01 * step, "advantage_histogram": histogram}
    await ledger.batch_trained(lock, record, result, metrics)


def checkpoint(step: int) -> Checkpoint:
    return Checkpoint("hindsight", step, "tiny", "serverless", f"wandb-artifact:///team/game/hindsight:step{step}")


async def _ship(database: Database, home: Path, words: str) -> Evaluation:
    measured = replace(
        evaluation(),
        run_id=RUN,
        candidate=checkpoint(2).as_release(),
        judge=JUDGE,
        best=example(0.9, f"BUY {words}", words),
        worst=example(-0.4, f"SELL {words}", words),
    )
    await save(database, measured)
    decision = GateDecision(Ruling.PROMOTE, (f"gain +0.300 is above the required +0.000, {words}",))
    await keep_ruling(database.pool, measured, decision)
    await publish(
        database,
        home,
        checkpoint(2).as_release(),
        Serving("http://127.0.0.1:8808/v1", "hindsight@step2"),
        reason=decision.sentence,
        evaluation=measured,
    )
    return measured
