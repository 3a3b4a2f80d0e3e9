"""Training on a frozen log: how far the policy drifts under random verdicts, and what it learns under true ones.

    python benchmarks/off_policy.py [--seeds 20] [--steps 17] [--learning-rate 0.1] [--quick]

A softmax policy over features of the hour, behind the real path of a training step: credit, conversion, scoring,
packing, ART's loss, Adam. One week of hours is played once by the untrained policy and trained step by step:

- ``replaced``: as 0.1.0 did, log-probabilities of replies older than --max-staleness are replaced by the current ones;
- ``logged``: PPO around the logged log-probabilities, however old;
- ``decoupled``: what Hindsight does (``trainer/train/backends/correction.py``);
- ``fresh``: every step is played anew by the current policy.

Printed, with standard errors over seeds: under random verdicts the KL of the policy from the one that played; under
true ones the chance of the right answer; and of all tokens but those of the first step the share whose ratio is
exactly 1, beside the share of foreign ones.

Then a judge of pure noise and a true one, both asked in two orders, for ten steps of fresh play: what the policy learns
when it is told how much the judge differs with itself (``--advantage-scale`` batch and absolute), and when not (0.1.0).

``language_week.py`` is the same on a language model.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import math
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from torch import Tensor

from data_bridge.models import AgentTrajectory
from data_bridge.scoring import Scored, ScoreRequest
from tests.builders import WINDOW, make_action, make_call, make_outcomes, make_step, make_trajectory
from tests.builders_training import IDENTITY, make_trainee
from trainer.config.training import CpuTrainee
from trainer.inference.base_model import prompt_tokens
from trainer.inference.layout import Layout
from trainer.inference.policy import CpuPolicy, Likelihoods
from trainer.inference.rescoring import Position, scored
from trainer.train.backends.art_interface import import_art, largest_ratio_of
from trainer.train.backends.correction import Region
from trainer.train.backends.cpu_step import StepSettings, gradient_step
from trainer.train.backends.prepare import prepare
from trainer.train.selection import why_no_signal
from trainer.types import Batch, Group, JudgedGroup, Verdict

WORDS = (("Up", "Down"), ("A", "B", "C", "D"))
"""What the two tokens of a reply may be; only the first matters."""
BITS = 5
"""Of an hour; the first is the news, the others mean nothing."""
GROUPS = 9
AGENTS = 6
"""In a group."""
Way = Literal["replaced", "logged", "decoupled", "fresh"]
WAYS: tuple[Way, ...] = ("replaced", "logged", "decoupled", "fresh")
State = tuple[int, ...]
STATES: tuple[State, ...] = tuple(product((1, -1), repeat=BITS))


def small_tokenizer() -> Any:
    """A tokenizer of the few words that are said here."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    said = ("<unk>", "<end>", "<system>", "<user>", "<assistant>", "You", "trade.", "Hour:", "yes", "no", "token_id:0")
    words = [*said, *(word for place in WORDS for word in place), *(f"<{number}>" for number in range(20))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<end>", pad_token="<end>")
    made.chat_template = (
        "{% for m in messages %}<{{ m['role'] }}> {{ m['content'] }} {% endfor %}"
        "{% if add_generation_prompt %}<assistant> {% endif %}"
    )
    return made


class SoftmaxPolicy(CpuPolicy):
    """A linear softmax over the bits of an hour, for each token of a reply, in the place of the language model."""

    def __init__(self, tokenizer: Any, learning_rate: float, seed: int) -> None:
        def ids(words: Sequence[str]) -> list[int]:
            return [tokenizer.encode(word, add_special_tokens=False)[0] for word in words]

        self.tokenizer = tokenizer
        self.context = 1 << 20
        self._end = int(tokenizer.eos_token_id)
        self._ends = frozenset({self._end})
        self.learns_entropy = False
        self.words = [ids(words) for words in WORDS]
        self._all = [token for words in self.words for token in words]
        self._yes, self._no = ids(("yes", "no"))
        self._prompt_length = len(prompt_tokens(tokenizer, call_in(STATES[0], "Up A", "x").seen()))
        allowed = torch.tensor([[token in words for token in self._all] for words in self.words])
        self._forbidden = torch.zeros(allowed.shape).masked_fill(~allowed, -math.inf)
        generator = torch.Generator().manual_seed(seed)
        self.weight = torch.nn.Parameter(0.3 * torch.randn(2, len(self._all), BITS + 1, generator=generator))
        self._fresh = {"weight": self.weight.detach().clone()}
        self.optimizer = self._new_optimizer(learning_rate)
        self._is_base = False

    def distribution(self, bits: Tensor, places: Tensor) -> Tensor:
        """Log-probabilities of all words, a row for each hour and place in the reply."""
        weight = self._fresh["weight"] if self._is_base else self.weight
        features = torch.cat([bits, torch.ones(len(bits), 1)], dim=1)
        logits = torch.einsum("nwf,nf->nw", weight[places], features)
        return torch.log_softmax(logits + self._forbidden[places], dim=-1)

    def likelihoods(self, tokens: Tensor, positions: Tensor, layout: Layout, targets: Tensor) -> Likelihoods:
        is_bit = (tokens[0] == self._yes) | (tokens[0] == self._no)
        signs = torch.where(tokens[0] == self._yes, 1.0, -1.0)
        bits = torch.stack([signs[layout.visible[target] & is_bit][:BITS] for target in targets.tolist()])
        known = self.distribution(bits, positions[0, targets] - self._prompt_length)
        places = torch.tensor([self._all.index(token) for token in tokens[0, targets].tolist()])
        chosen = known.gather(1, places[:, None])[:, 0]
        entropies = -(known.exp() * known.nan_to_num(neginf=0.0)).sum(dim=-1)
        return Likelihoods(chosen, entropies.detach(), known.detach())

    def read(self, beginnings: Mapping[int, Sequence[int]]) -> dict[int, list[Any]]:
        """What prompts begin with says nothing of the hour."""
        return {}

    def divergence(self, own: Likelihoods, other: Likelihoods) -> Tensor:
        difference = (own.hidden - other.hidden).nan_to_num(0.0, 0.0, 0.0)
        return (own.hidden.exp() * difference).sum(dim=-1)

    @contextmanager
    def as_base(self) -> Iterator[None]:
        self._is_base = True
        try:
            yield
        finally:
            self._is_base = False

    def _trained(self) -> list[tuple[str, Any]]:
        return [("weight", self.weight)]

    @torch.no_grad()
    def everywhere(self) -> Tensor:
        """Log-probabilities of all words in all hours: [places, hours, words]."""
        bits = torch.tensor(STATES, dtype=torch.float32)
        return torch.stack([self.distribution(bits, torch.full((len(bits),), place)) for place in (0, 1)])

    @torch.no_grad()
    def drift(self) -> float:
        """KL from the untrained policy of a whole reply, mean over all hours."""
        with self.as_base():
            base = self.everywhere()
        now = self.everywhere()
        return float((now.exp() * (now - base).nan_to_num(0.0, 0.0, 0.0)).sum(dim=-1).sum(dim=0).mean())

    def right(self) -> float:
        """The chance of the right answer, mean over all hours."""
        known = self.everywhere()[0].exp()
        return fmean(float(known[row, 0 if state[0] > 0 else 1]) for row, state in enumerate(STATES))


def call_in(state: State, reply: str, model: str, **fields: Any) -> Any:
    hour = " ".join("yes" if bit > 0 else "no" for bit in state)
    return make_call(reply, prompt=f"Hour: {hour}", model=model, finish_reason="length", **fields)


@dataclass(slots=True)
class Week:
    """Plays hours with a policy: the members of a group, and who was right."""

    policy: SoftmaxPolicy
    chance: random.Random
    states: tuple[State, ...] = STATES
    is_inverted: bool = False
    """Whether good news is bad."""
    names: Iterator[int] = field(default_factory=lambda: iter(range(10**9)))

    def group(self, step: int) -> tuple[list[AgentTrajectory], list[bool]]:
        state = self.chance.choice(self.states)
        known = self.policy.everywhere()[:, STATES.index(state)]
        members, right = [], []
        for agent in range(AGENTS):
            is_foreign = agent == 0
            places = [self._drawn(known[place]) for place in (0, 1)]
            if is_foreign:
                places[0] = 0 if ((state[0] > 0) != self.is_inverted) == (self.chance.random() < 0.75) else 1
            reply = f"{WORDS[0][places[0]]} {WORDS[1][places[1] - len(WORDS[0])]}"
            tokens: dict[str, Any] = {} if is_foreign else self._tokens(known, places)
            call = call_in(state, reply, "gpt-9" if is_foreign else f"hindsight@step{step}", **tokens)
            action = make_action("BUY" if places[0] == 0 else "SELL")
            name = f"t{next(self.names)}"
            members.append(
                make_trajectory(f"agent-{agent}", trajectory_id=name, steps=[make_step(calls=[call], action=action)])
            )
            right.append(((places[0] == 0) == (state[0] > 0)) != self.is_inverted)
        return members, right

    def _drawn(self, logprobs: Tensor) -> int:
        return self.chance.choices(range(len(logprobs)), weights=logprobs.exp().tolist())[0]

    def _tokens(self, known: Tensor, places: Sequence[int]) -> dict[str, Any]:
        ids = [self.policy._all[place] for place in places]
        return {"completion_token_ids": ids, "completion_logprobs": [float(known[n, p]) for n, p in enumerate(places)]}


@dataclass(slots=True)
class Outcome:
    drift: float
    right: float
    ratio_one: list[float] = field(default_factory=list)
    foreign: list[float] = field(default_factory=list)


Judging = Literal["random", "true", "noise in two orders", "true in two orders"]


def verdict(name: str, is_right: bool, how: Judging, chance: random.Random) -> Verdict:
    if not how.endswith("in two orders"):
        return Verdict(name, chance.random() if how == "random" else float(is_right), 0.0, "")
    if how.startswith("noise"):
        orders = [chance.random(), chance.random()]
    else:
        orders = [0.1 + 0.8 * is_right + chance.uniform(-0.1, 0.1) for _ in range(2)]
    return Verdict(name, fmean(orders), abs(orders[0] - orders[1]) / 2, "")


def judged(
    members: Sequence[AgentTrajectory], right: Sequence[bool], how: Judging, chance: random.Random
) -> JudgedGroup:
    verdicts = tuple(
        verdict(one.trajectory_id, is_right, how, chance) for one, is_right in zip(members, right, strict=True)
    )
    group = Group(members[0].trajectory_id, WINDOW, tuple(members), make_outcomes())
    return JudgedGroup(group, verdicts, IDENTITY, group.group_id)


def forgotten(member: AgentTrajectory) -> AgentTrajectory:
    """As 0.1.0 saw a reply that was too old: without log-probabilities, so that the current policy's are taken."""
    import msgspec

    step = member.steps[0]
    call = msgspec.structs.replace(step.llm_calls[0], completion_logprobs=None)
    if call.model.startswith("hindsight"):
        call = msgspec.structs.replace(call, model="hindsight")
    return msgspec.structs.replace(member, steps=[msgspec.structs.replace(step, llm_calls=[call])])


class _Scorer:
    def __init__(self, policy: CpuPolicy, step: int) -> None:
        self._position = Position(policy, step, lambda _: None)

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scored | None]:
        return scored(self._position, requests)


async def train(tokenizer: Any, way: Way, how: Judging, seed: int, options: argparse.Namespace) -> Outcome:
    trainee = make_trainee(min_spread=0.0, max_staleness=10**6 if way == "logged" else 4)
    settings = step_settings(trainee, options)
    policy = SoftmaxPolicy(tokenizer, options.learning_rate, seed)
    week, judge = Week(policy, random.Random(f"play {seed}")), random.Random(f"judge {seed}")
    log = [week.group(0) for _ in range(options.steps * GROUPS)] if way != "fresh" else []
    outcome = Outcome(0.0, 0.0)
    for step in range(options.steps):
        hours = log[step * GROUPS : (step + 1) * GROUPS] or [week.group(step) for _ in range(GROUPS)]
        if way == "replaced" and step > trainee.training.max_staleness:
            hours = [([forgotten(one) for one in members], right) for members, right in hours]
        groups = [judged(members, right, how, judge) for members, right in hours]
        metrics = await make_step_on(policy, trainee, groups, step, settings)
        if step:
            outcome.ratio_one.append(metrics["share_ratio_one"])
            outcome.foreign.append(metrics["share_foreign"])
    outcome.drift, outcome.right = policy.drift(), policy.right()
    return outcome


def step_settings(trainee: CpuTrainee, options: argparse.Namespace) -> StepSettings:
    from art._backend_training import build_rl_train_configs

    _, objective = build_rl_train_configs(
        learning_rate=options.learning_rate,
        ppo=True,
        epsilon=trainee.training.epsilon,
        scale_rewards=False,
        max_negative_advantage_importance_sampling_weight=largest_ratio_of(trainee.training),
    )
    return StepSettings(objective, options.learning_rate, 1.0, region=Region(options.max_importance))


async def make_step_on(
    policy: CpuPolicy, trainee: CpuTrainee, groups: Sequence[JudgedGroup], step: int, settings: StepSettings
) -> dict[str, float]:
    batch = Batch(f"batch-{step}", "hindsight", step, tuple(groups))
    prepared = await prepare(batch, trainee, _Scorer(policy, step))
    if not prepared.trainable_tokens:
        return prepared.metrics
    paced = replace(settings, learning_rate=settings.learning_rate * prepared.pace)
    return {**prepared.metrics, **gradient_step(policy, prepared.groups, paced, seed=str(step))}


Told = Literal["0.1.0", "batch", "absolute"]


async def train_uncertain(tokenizer: Any, told: Told, how: Judging, seed: int, options: argparse.Namespace) -> Outcome:
    """Ten steps of fresh play, each of as many groups that have a signal."""
    trainee = make_trainee(min_spread=0.02, advantage_scale="absolute" if told == "absolute" else "batch")
    settings, policy = step_settings(trainee, options), SoftmaxPolicy(tokenizer, options.learning_rate, seed)
    week, judge = Week(policy, random.Random(f"play {seed}")), random.Random(f"judge {seed}")
    for step in range(10):
        groups: list[JudgedGroup] = []
        while len(groups) < GROUPS:
            group = judged(*week.group(step), how, judge)
            if told == "0.1.0":
                group = replace(group, verdicts=tuple(replace(one, uncertainty=0.0) for one in group.verdicts))
            if why_no_signal(group.scores, group.uncertainties, trainee.min_spread) is None:
                groups.append(group)
        await make_step_on(policy, trainee, groups, step, settings)
    return Outcome(policy.drift(), policy.right())


def figure(values: Sequence[float]) -> str:
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return f"{fmean(values):.3f} ± {error:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=17)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--max-importance", type=float, default=1.3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--quick", action="store_true", help="2 seeds, 7 steps")
    options = parser.parse_args()
    if options.quick:
        options.seeds, options.steps = 2, 7
    import_art()
    torch.set_num_threads(1)
    gc.freeze()  # what ART imports is not looked through again and again
    tokenizer = small_tokenizer()
    print(f"{'':>10} {'KL, random verdicts':>22} {'right, true verdicts':>22} {'ratio exactly 1':>16} {'foreign':>8}")
    for way in options.ways:
        noise = [asyncio.run(train(tokenizer, way, "random", seed, options)) for seed in range(options.seeds)]
        truth = [asyncio.run(train(tokenizer, way, "true", seed, options)) for seed in range(options.seeds)]
        ones = fmean([one for run in noise + truth for one in run.ratio_one] or [math.nan])
        foreign = fmean([one for run in noise + truth for one in run.foreign] or [math.nan])
        drift, right = figure([run.drift for run in noise]), figure([run.right for run in truth])
        print(f"{way:>10} {drift:>22} {right:>22} {ones:16.3f} {foreign:8.3f}", flush=True)
    print(f"\n{'':>10} {'KL, noise in two orders':>24} {'right, true in two orders':>26}")
    for told in ("0.1.0", "batch", "absolute"):
        columns = [
            [asyncio.run(train_uncertain(tokenizer, told, how, seed, options)) for seed in range(options.seeds)]
            for how in ("noise in two orders", "true in two orders")
        ]
        drift, right = figure([run.drift for run in columns[0]]), figure([run.right for run in columns[1]])
        print(f"{told:>10} {drift:>24} {right:>26}", flush=True)


if __name__ == "__main__":
    main()
