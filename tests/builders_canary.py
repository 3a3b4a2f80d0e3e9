"""Canaries of known worth: the scores of a game's agents before one started and since, in numbers and in a database."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data_bridge.database import Database
from data_bridge.window_ids import end_of, start_of, window_of
from tests.builders import WINDOW, insert_agents, insert_rows, recorder_steps, trajectory_row
from tests.builders_promotion import insert_checkpoint, insert_run
from trainer.ledger.releases import Promotion, canary_agents_of
from trainer.promote.canary import LOOKS, CanaryEvidence, CanaryRuling, decide
from trainer.promote.publish import publish
from trainer.types import Serving

HELD_OUT = 0.1
HOURS_IN_28_DAYS = round(28 * 24 * (1 - HELD_OUT))
"""Of the newest windows some are kept for the gate and not judged yet: fewer than a tenth of four weeks."""


def played(
    rng: np.random.Generator,
    *,
    worth: float = 0.0,
    effects: float = 0.1,
    canary: int = 2,
    others: int = 18,
    noise: float = 0.25,
    drift: float = 0.0,
    past: int = HOURS_IN_28_DAYS,
    windows: int = HOURS_IN_28_DAYS,
    outside: float = 0.0,
    inside: float = 0.0,
    bounded: bool = False,
) -> CanaryEvidence:
    """A canary that changes its agents' scores by ``worth``.

    ``effects`` is the spread of the agents' own levels, ``drift`` how much an agent changes by itself between the two
    periods. One liar ``outside`` and one ``inside`` the canary change by so much on purpose.
    ``bounded`` scores stay between 0 and 1, which takes some of every difference away.
    """
    agents = canary + others
    level = rng.normal(0.5, effects, (agents, 1))
    change: NDArray[np.float64] = rng.normal(0, drift, agents) if drift else np.zeros(agents)
    change[:canary] += worth
    change[0] += inside
    change[-1] += outside
    hours = rng.normal(0, 0.1, past + windows)  # good and bad hours for everybody
    scores = level + hours + rng.normal(0, noise, (agents, past + windows))
    scores[:, past:] += change[:, None]
    if bounded:
        scores = scores.clip(0, 1)
    usual = scores[:, :past].mean(axis=1, keepdims=True)
    return CanaryEvidence(scores[:, past:] - usual, np.arange(agents) < canary)


def settled(evidence: CanaryEvidence) -> tuple[CanaryRuling, int]:
    """The ruling and the number of windows it took, as far as 28 days give them."""
    decision = decide(evidence)
    assert decision.difference is not None or evidence.windows < LOOKS[0][0]
    return decision.ruling, decision.difference.windows if decision.difference is not None else 0


def shares(trials: int, seed: int, **facts: float) -> dict[CanaryRuling, float]:
    """What became of so many canaries."""
    rng = np.random.default_rng(seed)
    rulings = [settled(played(rng, **facts))[0] for _ in range(trials)]  # type: ignore[arg-type]  # counts are whole
    return {ruling: rulings.count(ruling) / trials for ruling in CanaryRuling}


# In a database

AGENTS = tuple(f"agent-{number:02}" for number in range(1, 13))
BEFORE = tuple(window_of(start_of(WINDOW) - timedelta(hours=hour)) for hour in range(29, -1, -1))
SINCE = tuple(window_of(start_of(WINDOW) + timedelta(hours=hour)) for hour in range(1, 50))
AFTER = end_of(SINCE[-1], 1) + timedelta(hours=1)

Scores = Callable[[str, str], float]
"""The judge's score of an agent in a window."""


def steps_of(model: str, pnl: float = 10.0) -> str:
    steps = recorder_steps(pnl=pnl)
    for step in steps:
        for call in step["llmCalls"]:
            call["model"] = model
    return json.dumps(steps)


async def play(
    database: Database,
    windows: Sequence[str],
    agents: Sequence[str] = AGENTS,
    *,
    canary: frozenset[str] = frozenset(),
    answers: str = "hindsight@step2",
    pnl: Scores = lambda agent, window: 10.0,
) -> None:
    """Each agent's row in each window, named ``window/agent``."""
    await insert_agents(database.pool, agents)
    rows = [
        trajectory_row(
            agent,
            window_id=window,
            steps_json=steps_of(answers if agent in canary else "hindsight@step1", pnl(agent, window)),
            trajectoryId=f"{window}/{agent}",
            finalPnL=None,
        )
        for window in windows
        for agent in agents
    ]
    await insert_rows(database.pool, "trajectories", rows)


async def judge(
    database: Database,
    windows: Sequence[str],
    scores: Scores,
    agents: Sequence[str] = AGENTS,
    *,
    run_id: str = "judge-1",
    group: str = "{window}/1",
    name: str = "{window}/{agent}",
    judge_name: str = "gpt-test",
    judged_at: datetime | None = None,
) -> None:
    """A verdict of our ledger on each window: what ``judge_windows.py`` or a training leaves."""
    rows = [
        (
            f"{run_id}/{judge_name}/{group.format(window=window)}/{name}",
            json.dumps(
                [
                    {"content": "c", "trajectory_id": name.format(window=window, agent=agent), "explanation": ""}
                    | {"score": scores(agent, window)}
                    for agent in agents
                ]
            ),
            *(judge_name, run_id, window, group.format(window=window)),
            (judged_at or end_of(window, 1)),
        )
        for window in windows
    ]
    await database.pool.executemany(
        "INSERT INTO hindsight.verdicts (verdict_key, order_number, scores, judge, is_llm, rubric, rubric_version,"
        " prompt_version, prompt_hash, run_id, window_id, group_id, prompt_tokens, completion_tokens, cost_usd,"
        " created_at) VALUES ($1, 0, $2::jsonb, $3, true, 'default', '1', '1', '', $4, $5, $6, 0, 0, 0, $7)",
        rows,
    )


def level(agent: str, window: str) -> float:
    """Scores of agents that differ from each other, with some noise, the same at every call."""
    rng = np.random.default_rng([int(agent[-2:]), int(start_of(window).timestamp()) // 3600])
    return float(0.2 + 0.05 * int(agent[-2:]) + rng.normal(0, 0.05))


async def start_canary(database: Database, home: Path, share: float = 0.25) -> tuple[Promotion, frozenset[str]]:
    """Step 1 serves; step 2 goes to a share of the agents, after the windows ``BEFORE`` were played and judged."""
    await insert_run(database)
    await play(database, BEFORE)
    await judge(database, BEFORE, level)
    for step in (1, 2):
        point = await insert_checkpoint(database, step, backend="cpu", location=home, windows=[])
        trial = await publish(
            database,
            home,
            point.as_release(),
            Serving("http://127.0.0.1:1/v1", point.name),
            reason="better",
            canary=share if step == 2 else None,
        )
    return trial, await canary_agents_of(database.pool, trial)
