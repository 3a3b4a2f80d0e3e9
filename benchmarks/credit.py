"""How fast the embedded model learns to read, by how much of the credit is for being valid, and what keeps it reading.

    python benchmarks/credit.py [--validity 0.2] [--unbalanced] [--unweighted] [--imitate 0] [--steps 6] [--quick]

Real gradient steps on hours of the simulated market, without playing: in each hour two BUY and two SELL, as explorers
give them, beside as many invalid replies, which count for the mean and are not trained. After each step the preference
that is the same in every hour is taken out, unless it is ``--unbalanced``. ``--imitate N`` makes the first N steps
imitations of the right replies alone. Printed, for questions with unseen words: the AUC of BUY against SELL for
good news against bad, the direction at temperature 1, the preference for BUY, and how likely either is at all.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from data_bridge.art_converter import UNTRAINED
from data_bridge.models import ChatMessage
from data_bridge.scoring import ScoreRequest
from data_bridge.window_ids import start_of, window_of
from trainer.inference.base_model import EMBEDDED, model_directory, prompt_tokens
from trainer.inference.layout import Layout
from trainer.inference.policy import CpuPolicy
from trainer.inference.shared_prefix import beginning_of
from trainer.train.backends.art_interface import import_art
from trainer.train.backends.balance import Alternatives, aim_of, balance
from trainer.train.backends.cpu_step import StepSettings, gradient_step
from trainer.train.credit import weights
from trainer.world.actions import BUY, SELL, Decision
from trainer.world.exchange import Exchange
from trainer.world.market import Hour, Market
from trainer.world.observation import messages_for, observe
from trainer.world.questions import Question, questions

_TOGETHER = 16


@torch.no_grad()
def preferences(policy: CpuPolicy, asked: Sequence[Question]) -> Any:
    """The log-probabilities of the first tokens of BUY and SELL, a row for each question."""
    first = [policy.tokenizer(verb, add_special_tokens=False).input_ids[0] for verb in (BUY, SELL)]
    prompts = [list(prompt_tokens(policy.tokenizer, one.messages)) for one in asked]
    order = sorted(range(len(asked)), key=prompts.__getitem__)
    found = np.zeros((len(asked), 2))
    for start in range(0, len(order), _TOGETHER):
        part = order[start : start + _TOGETHER]
        lowest, highest = prompts[part[0]], prompts[part[-1]]  # in order: what these two share, all share
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(lowest, highest, strict=False))
        shared = [token for token, _ in alike]
        tokens, positions, groups, ends = list(shared), list(range(len(shared))), [0] * len(shared), []
        for number, index in enumerate(part, start=1):
            rest = prompts[index][len(shared) :]
            positions += range(len(shared), len(shared) + len(rest))
            tokens, groups = tokens + rest, groups + [number] * len(rest)
            ends.append(len(tokens))
        ids = torch.tensor([groups])
        layout = Layout(ids, torch.zeros_like(ids))
        hidden = policy._hidden(torch.tensor([tokens]), torch.tensor([positions]), layout)[0, [end - 1 for end in ends]]
        logprobs = torch.log_softmax(policy._causal.get_output_embeddings()(hidden), dim=-1)[:, first]
        found[part] = logprobs.numpy()
    return found


def described(policy: CpuPolicy, asked: Sequence[Question]) -> str:
    from scipy.stats import mannwhitneyu

    known = preferences(policy, asked)
    direction = np.array([one.direction for one in asked])
    apart = known[:, 0] - known[:, 1]
    area = mannwhitneyu(apart[direction > 0], apart[direction < 0]).statistic
    area /= (direction > 0).sum() * (direction < 0).sum()
    right, bought = 1 / (1 + np.exp(-apart * direction)), 1 / (1 + np.exp(-apart))
    return f"{area:8.2f} {right.mean():10.2f} {bought.mean():8.2f} {np.exp(known).sum(axis=1).mean():8.2f}"


@dataclass(frozen=True, slots=True)
class Lesson:
    """One hour of a step: what was right, and what that counts."""

    hour: Hour
    right: str
    weight: float

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        return tuple(messages_for(observe(self.hour, 0, Exchange(self.hour).quotes(0)), self.hour.stage.name))


def lessons(market: Market, numbers: Sequence[int], *, weighted: bool) -> list[Lesson]:
    """The hours of one step."""
    hours = [market.hour(window_of(start_of("2026-11-01T00:00") + timedelta(hours=number))) for number in numbers]
    rights = [BUY if hour.tickers[0].end_price > hour.tickers[0].start_price else SELL for hour in hours]
    counts = weights([(right, 1.0) for right in rights]) if weighted else [1.0] * len(hours)
    return [Lesson(*one) for one in zip(hours, rights, counts, strict=True)]


def alternatives(policy: CpuPolicy, step: Sequence[Lesson]) -> list[Alternatives]:
    """What ``balance`` reads of the hours of a step."""
    known: dict[str, int] = {}
    tokens = {verb: policy.tokenizer(verb, add_special_tokens=False).input_ids[0] for verb in (BUY, SELL)}
    found = []
    for one in step:
        prompt = prompt_tokens(policy.tokenizer, one.messages)
        said = [message.as_dict() for message in one.messages]
        beginning = beginning_of(said, prompt, policy.tokenizer, known)
        found.append(Alternatives(prompt, beginning, tokens, one.right, one.weight))
    return found


def group_of(policy: CpuPolicy, lesson: Lesson, validity: float) -> Any:
    """Right, wrong and invalid replies to one hour, credited as the train stage would."""
    art = import_art()
    members = []
    for verb in (BUY, SELL) * 2:
        credit = validity + lesson.weight * (0.5 if verb == lesson.right else -0.5)
        text = str(Decision(verb, lesson.hour.tickers[0].symbol, 20))
        members.append(_member(art, policy, lesson.messages, text, credit))
    if validity:
        members += [art.Trajectory(messages_and_choices=list(UNTRAINED), reward=-validity)] * len(members)
    return art.TrajectoryGroup(members)


def _member(art: Any, policy: CpuPolicy, messages: tuple[ChatMessage, ...], text: str, reward: float) -> Any:
    from openai.types.chat.chat_completion import Choice

    [scored] = policy.score([ScoreRequest(messages, text)])
    assert scored is not None
    tokens = [
        {"token": f"token_id:{token}", "logprob": logprob, "top_logprobs": []}
        for token, logprob in zip(scored.token_ids, scored.logprobs, strict=True)
    ]
    message = {"role": "assistant", "content": text}
    choice = Choice.model_validate(
        {"index": 0, "finish_reason": "stop", "message": message, "logprobs": {"content": tokens, "refusal": None}}
    )
    return art.Trajectory(messages_and_choices=[*(one.as_dict() for one in messages), choice], reward=reward)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--validity", type=float, nargs="+", default=[0.2], help="what being valid is worth")
    parser.add_argument("--unbalanced", action="store_true", help="leave the preference that is the same in every hour")
    parser.add_argument("--imitate", type=int, default=0, help="first steps that only imitate right replies")
    parser.add_argument("--unweighted", action="store_true", help="every hour counts the same, whatever was right")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--hours", type=int, default=12, help="in each step")
    parser.add_argument("--learning-rate", type=float, default=7e-4)
    parser.add_argument("--questions", type=int, default=48)
    parser.add_argument("--home", type=Path, default=Path(".hindsight"), help="where the converted model is kept")
    parser.add_argument("--quick", action="store_true", help="a short run")
    options = parser.parse_args()
    if options.quick:
        options.validity, options.steps, options.hours, options.questions = [0.1], 1, 2, 8
    import_art()
    from art._backend_training import build_rl_train_configs

    _, objective = build_rl_train_configs(learning_rate=options.learning_rate, ppo=True, epsilon=0.2)
    policy = CpuPolicy(model_directory(EMBEDDED, options.home), rank=16, learning_rate=options.learning_rate, seed=0)
    asked, market = questions(options.questions, "unseen", "trained"), Market(7)
    print("validity  step      AUC  direction      BUY   either")
    for validity in options.validity:
        policy.reset()
        for step in range(options.steps + 1):
            print(f"{validity:8.2f} {step:5d} {described(policy, asked)}", flush=True)
            if step < options.steps:
                numbers = range(step * options.hours, (step + 1) * options.hours)
                hours = lessons(market, numbers, weighted=not options.unweighted)
                groups = [group_of(policy, one, validity) for one in hours]
                settings = StepSettings(objective, options.learning_rate, 1.0, only_good=step < options.imitate)
                aim = aim_of(policy, alternatives(policy, hours), 0)
                gradient_step(policy, groups, settings, seed=str(step))
                if not options.unbalanced:
                    print(f"{'':14} {described(policy, asked)}  before balancing", flush=True)
                    balance(policy, aim)


if __name__ == "__main__":
    main()
