"""Groups to judge, and settings to judge them with."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Any

from pydantic import SecretStr

from data_bridge.models import AgentTrajectory
from tests.builders import WINDOW, make_action, make_call, make_outcomes, make_step, make_trajectory, trade_worth
from trainer.config.sections import JudgeSecrets, JudgeSettings
from trainer.judge.limits import Retry
from trainer.statistics.intervals import spearman
from trainer.types import Group, JudgedGroup

API_KEY = "sk-test-0123456789abcdef"

SECRETS = JudgeSecrets(judge_api_key=SecretStr(API_KEY))

AT_ONCE = Retry(attempts=3, first_delay=0.01, max_delay=0.2)


def judge_settings(base_url: str = "http://127.0.0.1:9/v1", **changes: Any) -> JudgeSettings:
    values: dict[str, Any] = {
        "judge_model": "judge",
        "judge_base_url": base_url,
        "price": "1/10",
        "judge_timeout": timedelta(seconds=5),
        "judge_attempts": 3,
    }
    return JudgeSettings(**(values | changes))


def agent(number: int, *, pnl: float = 0.0, prompt: str = "ACME trades at 100.", **action: Any) -> AgentTrajectory:
    """An agent that decided once, was asked once, and whose order and books made ``pnl`` of its 1000 in the window."""
    order = make_action(**({"parameters": trade_worth(pnl)} | action))
    step = make_step(0, pnl=500.0, calls=[make_call(prompt=prompt)], action=order)
    return make_trajectory(
        f"agent-{number}",
        trajectory_id=f"trajectory-{number}",
        steps=[step],
        lifetime_pnl=500.0 + pnl,
        content_hash=f"hash-{number}-{pnl}",
    )


def make_group(*pnls: float, group_id: str = "group-1", window_id: str = WINDOW) -> Group:
    """One agent for each P&L in the window; by default -100, 0 and 100."""
    members = [agent(number, pnl=pnl) for number, pnl in enumerate(pnls or (-100.0, 0.0, 100.0), start=1)]
    return Group(group_id, window_id, tuple(members), make_outcomes())


def planted_groups(number: int, seed: int, *, agents: int = 6) -> list[Group]:
    """Groups whose members' skill is planted as their profit: anything from -100 to 100."""
    chance = random.Random(seed)
    return [
        make_group(*(round(chance.uniform(-100, 100), 2) for _ in range(agents)), group_id=f"{WINDOW}/{seed}-{place}")
        for place in range(number)
    ]


def rank_correlation(judged: JudgedGroup) -> float:
    """Of the scores with the planted skill."""
    found = spearman([one.window_pnl or 0.0 for one in judged.group.trajectories], judged.scores)
    return 0.0 if found is None else found
