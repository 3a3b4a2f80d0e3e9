"""Hours of the simulated market, played by a language model: for ``off_policy.py --model``."""

from __future__ import annotations

import random
import sys
from datetime import timedelta
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from data_bridge.models import AgentTrajectory, ChatMessage
from data_bridge.scoring import Scored, ScoreRequest
from data_bridge.window_ids import start_of, window_of
from tests.builders import make_action, make_call, make_step, make_trajectory
from trainer.inference.policy import CpuPolicy
from trainer.world.actions import BUY, SELL, Decision
from trainer.world.exchange import Exchange
from trainer.world.market import Market
from trainer.world.observation import messages_for, observe

AGENTS = 6
"""In a group."""


class LanguageWeek:
    """Plays hours of the simulated market with a language model, which chooses between BUY and SELL alone."""

    def __init__(self, policy: CpuPolicy, chance: random.Random) -> None:
        self.policy, self._chance = policy, chance
        self._market, self._hour = Market(7), 0

    def group(self, step: int) -> tuple[list[AgentTrajectory], list[bool]]:
        hour, replies, known, right = self._next()
        likely = torch.tensor([sum(one.logprobs) for one in known]).softmax(dim=0).tolist()
        members, who = [], []
        for agent in range(AGENTS):
            chosen = self._chance.choices((0, 1), weights=likely)[0]
            tokens = list(known[chosen].token_ids), list(known[chosen].logprobs)
            call = make_call(
                replies[chosen],
                model=f"hindsight@step{step}",
                messages=list(hour),
                completion_token_ids=tokens[0],
                completion_logprobs=tokens[1],
            )
            step_of_it = make_step(calls=[call], action=make_action((BUY, SELL)[chosen]))
            members.append(make_trajectory(f"agent-{agent}", trajectory_id=f"{self._hour}-{agent}", steps=[step_of_it]))
            who.append(chosen == right)
        return members, who

    def right(self) -> float:
        """The chance of the right answer beside the wrong one, in hours that were not trained."""
        found = []
        for _ in range(12):
            _, _, known, right = self._next()
            found.append(float(torch.tensor([sum(one.logprobs) for one in known]).softmax(dim=0)[right]))
        return fmean(found)

    def _next(self) -> tuple[tuple[ChatMessage, ...], list[str], list[Scored], int]:
        hour = self._market.hour(window_of(start_of("2026-11-01T00:00") + timedelta(hours=self._hour)))
        self._hour += 1
        messages = tuple(messages_for(observe(hour, 0, Exchange(hour).quotes(0)), hour.stage.name))
        replies = [str(Decision(verb, hour.tickers[0].symbol, 20)) for verb in (BUY, SELL)]
        known = [one for one in self.policy.score([ScoreRequest(messages, reply) for reply in replies]) if one]
        return messages, replies, known, int(hour.tickers[0].end_price <= hour.tickers[0].start_price)
