"""Takes out, after a step, the preference for one answer that is the same in every hour.

A step teaches two things at once: what to answer in this hour and in that, and what to answer in general. The second is
learnt much faster, and mostly by chance: the hours of a step are few and related, and Adam makes full steps of small
remainders. Measured on the embedded model: after five steps it told good news from bad in 97 of 100 pairs, and said BUY
in 96 of 100 hours all the same. From then on its groups have no spread, and it learns nothing more.

So the general part is set after each update instead of learnt: over the hours of the step, each answer is to be
given as often as it was right, by the credit that it gained (``trainer.train.credit``, which weighs hours so that
the answers gain the same). So the log-odds of the answers are centred half-way between the hours in which one was right
and those in which another was: between their medians, since some hours go against the news by luck, and by no more than
exceeds the error of that estimate. The weights are moved by the smallest change that makes this shift (one Newton step
along its gradient, repeated if needed). The difference between hours is what is left alone.

And **the step itself is as large as what is left to be learnt** (``pace``): Adam makes steps of one size, also of what
remains when the policy is right nearly everywhere, and that is mostly luck.

Only groups whose members gave several answers to one prompt say anything about this; without such groups nothing is
done. An answer that was right in a single hour may have been luck, and does not count. If then only one answer
was right in all hours of a step, the step cannot tell a preference from reading: the answers keep the shares that they
had before it. Unless it was so in all of the last steps too; then that answer may just be the right one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trainer.inference.layout import Layout
from trainer.inference.policy import CpuPolicy
from trainer.inference.shared_prefix import beginning_of, common_length
from trainer.rewards import MemberReward, RewardHistory

if TYPE_CHECKING:
    import art
    from numpy.typing import NDArray
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    Shares = NDArray[np.float64]

_ROUNDS = 3
_ENOUGH = 0.25
"""A shift of so many nats is none."""
_FARTHEST = 2.0
"""The largest shift of one round: a log-probability is not linear in the weights over more than a few nats."""
_LEAST_HOURS = 2
"""In how many hours an answer must have been right."""
_MANY_SIDES = 10
"""If only one answer was right in so many steps in a row, it may just be the right one."""
ONE_SIDED = "one_sided_steps"
"""The metric by which a checkpoint knows how many steps before it had only one right answer."""
_TOKENS_AT_ONCE = 1024
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Alternatives:
    """One prompt, and how each of the answers that were given to it goes on."""

    tokens: tuple[int, ...]
    """The prompt, and what all answers begin with."""
    beginning: int
    """How many of them precede the last message."""
    answers: Mapping[str, int]
    """The token at which each answer parts from the others."""
    right: str
    gain: float
    """The answer that gained most credit, and how much."""


def alternatives_of(
    groups: Sequence[art.TrajectoryGroup], history: RewardHistory, tokenizer: PreTrainedTokenizerBase
) -> list[Alternatives]:
    """The groups of a step in which one answer was right, each with the answers that were given to its prompt.

    A reply that is not trained is not known here. Where answers part at their first token, the token of one that only
    other hours have is taken from there.
    """
    rewards = {one.graded.trajectory_id: one for one in history.members}
    known: dict[str, int] = {}
    read = [one for group in groups if (one := _given(group, rewards, tokenizer, known)) is not None]
    found = [_alternatives(one) for one in read]
    usual: dict[str, Counter[int]] = {}
    for given, own in zip(read, found, strict=True):
        if own is not None and len(own.tokens) == len(given.prompt):
            for answer, token in own.answers.items():
                usual.setdefault(answer, Counter())[token] += 1
    tokens = {answer: counted.most_common(1)[0][0] for answer, counted in usual.items()}
    all_found = (own or _borrowed(given, tokens) for given, own in zip(read, found, strict=True))
    return [one for one in all_found if one is not None]


@dataclass(frozen=True, slots=True)
class Aim:
    """How often each answer is to be given over the hours of a step; nothing is done if that cannot be told."""

    hours: Sequence[Alternatives]
    goal: Mapping[str, float]
    """The share of each answer."""
    centre: Shares
    """What the log-odds of each answer are to be, half-way between the hours."""
    one_sided: int
    """How many steps in a row had only one right answer, this one included."""


def aim_of(policy: CpuPolicy, hours: Sequence[Alternatives], one_sided: int | None) -> Aim:
    """What to aim at, decided before the step is made. ``one_sided`` is that of the last step; None: there is none."""
    goal = _goal(hours)
    if goal:
        odds = np.log(list(goal.values()))
        return Aim(_offering(hours, goal), goal, odds - odds.mean(), 0)
    sides = _MANY_SIDES if one_sided is None else one_sided + 1
    times = Counter(answer for one in hours for answer in one.answers)
    usual = {answer: 0.5 for answer, number in sorted(times.items()) if number >= _LEAST_HOURS}
    hours = _offering(hours, usual)
    if sides >= _MANY_SIDES or len(usual) < 2 or not hours:
        return Aim((), {}, np.zeros(0), sides)
    logprobs = _logprobs(policy, hours, usual)
    shares = _shares(logprobs, _weights(hours))
    centre, _ = _centre(logprobs, hours, [])
    return Aim(hours, dict(zip(usual, shares.tolist(), strict=True)), centre, sides)


def pace(policy: CpuPolicy, aim: Aim) -> float:
    """How large the step is to be: 1 for a policy that guesses, less the more of the hours' right answers it gives.

    An hour whose right answer does not count, because it was right nowhere else, says nothing about this.
    """
    hours = [one for one in aim.hours if one.right in aim.goal]
    if not hours:
        return 1.0
    odds = _logprobs(policy, hours, aim.goal)
    odds = np.exp(odds - odds.max(axis=1, keepdims=True))
    chances = odds / odds.sum(axis=1, keepdims=True)
    answers = list(aim.goal)
    given = [chance[answers.index(one.right)] for chance, one in zip(chances, hours, strict=True)]
    guessed = [1 / sum(answer in one.answers for answer in answers) for one in hours]
    weights = _weights(hours)
    regret, by_guessing = float(weights @ (1 - np.array(given))), float(weights @ (1 - np.array(guessed)))
    return min(1.0, regret / by_guessing)


def balance(policy: CpuPolicy, aim: Aim) -> dict[str, float]:
    """Move the policy's weights as described above; what it preferred before and after, as metrics."""
    metrics = {ONE_SIDED: float(aim.one_sided)}
    if not aim.hours:
        return metrics
    shift, metrics["lean"] = _shift(policy, aim)
    for _ in range(_ROUNDS):
        size = float(np.abs(shift).max())
        if size < _ENOUGH:
            break
        kept = [parameter.detach().clone() for parameter in policy.parameters()]
        _move(policy, aim.hours, aim.goal, shift * min(1.0, _FARTHEST / size))
        shift_now, lean = _shift(policy, aim)
        if np.abs(shift_now).max() >= size:
            with torch.no_grad():
                for parameter, value in zip(policy.parameters(), kept, strict=True):
                    parameter.copy_(value)
            break
        shift, metrics["lean_left"] = shift_now, lean
    return metrics


@dataclass(frozen=True, slots=True)
class _Given:
    """One group: its prompt, the replies that are trained, by their answer, and which answer was right."""

    prompt: tuple[int, ...]
    beginning: int
    replies: Mapping[str, tuple[int, ...]]
    """The commonest reply with each answer."""
    right: str
    gain: float


def _given(
    group: art.TrajectoryGroup,
    rewards: Mapping[str, MemberReward],
    tokenizer: PreTrainedTokenizerBase,
    known: dict[str, int],
) -> _Given | None:
    """What was answered in ``group`` to the prompt that most of its members saw; None if no answer was right."""
    gains: defaultdict[str, float] = defaultdict(float)
    prompts: dict[tuple[int, ...], list[Any]] = {}
    replies: dict[tuple[int, ...], dict[str, Counter[tuple[int, ...]]]] = {}
    for trajectory in group.trajectories:
        reward = rewards.get(str(trajectory.metadata.get("trajectory_id")))
        answer = None if reward is None else reward.graded.answer
        if reward is None or answer is None:
            continue
        gains[answer] += reward.weight * reward.decision
        if reply := _reply(trajectory):
            messages = [turn for turn in trajectory.messages_and_choices if isinstance(turn, dict)]
            encoded = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
            prompt = tuple(encoded["input_ids"])
            prompts[prompt] = messages
            replies.setdefault(prompt, {}).setdefault(answer, Counter())[reply] += 1
    right, gain = max(gains.items(), key=lambda one: one[1], default=("", 0.0))
    if not prompts or gain < _ROUNDING:
        return None
    prompt = max(prompts, key=lambda one: sum(counted.total() for counted in replies[one].values()))
    usual = {answer: counted.most_common(1)[0][0] for answer, counted in replies[prompt].items()}
    return _Given(prompt, beginning_of(prompts[prompt], prompt, tokenizer, known), usual, right, gain)


def _alternatives(given: _Given) -> Alternatives | None:
    """How the answers of one group go on where they part; None if there are not two, or they do not part."""
    if len(given.replies) < 2:
        return None
    first, last = min(given.replies.values()), max(given.replies.values())  # in order: what these share, all share
    shared = common_length(first, last)
    parting = {answer: reply[shared] for answer, reply in given.replies.items() if len(reply) > shared}
    if len(set(parting.values())) < len(given.replies):
        return None
    return Alternatives((*given.prompt, *first[:shared]), given.beginning, parting, given.right, given.gain)


def _borrowed(given: _Given, usual: Mapping[str, int]) -> Alternatives | None:
    """A group with one known answer, beside the ``usual`` first tokens of the others."""
    if len(given.replies) != 1:
        return None
    [(answer, reply)] = given.replies.items()
    tokens = {**usual, answer: reply[0]}
    if len(tokens) < 2 or len(set(tokens.values())) < len(tokens):
        return None
    return Alternatives(given.prompt, given.beginning, tokens, given.right, given.gain)


def _reply(trajectory: art.Trajectory) -> tuple[int, ...]:
    """The tokens of the reply; empty if the trajectory has several, or none with tokens."""
    if trajectory.additional_histories:
        return ()
    choices = [turn for turn in trajectory.messages_and_choices if not isinstance(turn, dict)]
    content = choices[0].logprobs.content if len(choices) == 1 and choices[0].logprobs is not None else None
    return tuple(int(one.token.removeprefix("token_id:")) for one in content or ())


def _goal(hours: Sequence[Alternatives]) -> dict[str, float]:
    """The share of the credit that each answer gained where it was right; empty if there are not two of them."""
    times = Counter(one.right for one in hours)
    gains: defaultdict[str, float] = defaultdict(float)
    for one in hours:
        if times[one.right] >= _LEAST_HOURS:
            gains[one.right] += one.gain
    total = sum(gains.values())
    return {answer: gain / total for answer, gain in sorted(gains.items())} if len(gains) > 1 else {}


def _offering(hours: Sequence[Alternatives], goal: Mapping[str, float]) -> list[Alternatives]:
    """The hours in which at least two answers of the goal were given."""
    return [one for one in hours if sum(answer in goal for answer in one.answers) > 1]


def _weights(hours: Sequence[Alternatives]) -> Shares:
    gains = np.array([one.gain for one in hours])
    weights: Shares = gains / gains.sum()
    return weights


def _shift(policy: CpuPolicy, aim: Aim) -> tuple[Shares, float]:
    """By how much each answer is too likely, in nats, and by how much the commonest exceeds its share."""
    logprobs = _logprobs(policy, aim.hours, aim.goal)
    lean = float((_shares(logprobs, _weights(aim.hours)) - np.array(list(aim.goal.values()))).max())
    sides = [] if aim.one_sided else list(aim.goal)
    centre, error = _centre(logprobs, aim.hours, sides)
    shift = centre - aim.centre
    size = float(np.abs(shift).max())
    if aim.one_sided == 0 and size > 0:  # else the same hours are compared with themselves
        shift *= max(0.0, 1 - (error / size) ** 2)
    return shift, lean


def _centre(logprobs: Shares, hours: Sequence[Alternatives], sides: Sequence[str]) -> tuple[Shares, float]:
    """The log-odds of each answer half-way between the hours in which each of ``sides`` was right, and their error.

    Without sides: over all hours.
    """
    known = np.isfinite(logprobs)
    mean = np.where(known, logprobs, 0.0).sum(axis=1, keepdims=True) / known.sum(axis=1, keepdims=True)
    odds = np.where(known, logprobs - mean, 0.0)
    classes = [np.array([one.right == side for one in hours]) for side in sides] or [np.ones(len(hours), dtype=bool)]
    own = [odds[members] for members in classes if members.any()]
    centre: Shares = np.mean([np.median(one, axis=0) for one in own], axis=0)
    squared = sum(one.var(axis=0, ddof=1) / len(one) for one in own if len(one) > 1) / len(own) ** 2
    return centre - centre.mean(), float(np.sqrt(np.max(squared)))


def _shares(logprobs: Shares, weights: Shares) -> Shares:
    """How often each answer is given over all hours; an answer that an hour does not offer has -inf there."""
    odds = np.exp(logprobs - logprobs.max(axis=1, keepdims=True))
    shares: Shares = weights @ (odds / odds.sum(axis=1, keepdims=True))
    return np.maximum(shares, 1e-12)


@torch.no_grad()
def _logprobs(policy: CpuPolicy, hours: Sequence[Alternatives], goal: Mapping[str, float]) -> Shares:
    """The log-probability of each answer of the goal in each hour; -inf where it was not given."""
    found = np.full((len(hours), len(goal)), -np.inf)
    for places, values in _read(policy, hours, goal):
        rows, columns = zip(*places, strict=True)
        found[rows, columns] = values.numpy()
    return found


def _move(policy: CpuPolicy, hours: Sequence[Alternatives], goal: Mapping[str, float], shift: Shares) -> None:
    """The smallest change of the weights that takes ``shift`` from the mean log-probability of each answer."""
    given = np.array([[answer in one.answers for answer in goal] for one in hours])
    weights = _weights(hours)[:, None] * given
    weights *= shift / weights.sum(axis=0)
    for parameter in policy.parameters():
        parameter.grad = None
    for places, values in _read(policy, hours, goal):
        factors = torch.tensor([weights[place] for place in places], dtype=values.dtype)
        (values * factors).sum().backward()  # type: ignore[no-untyped-call]  # torch gives it no types
    gradients = [parameter.grad for parameter in policy.parameters()]
    size = sum(float((one**2).sum()) for one in gradients if one is not None)
    with torch.no_grad():
        for parameter, gradient in zip(policy.parameters(), gradients, strict=True):
            if gradient is not None and size > 0:
                parameter.add_(gradient, alpha=-float((shift**2).sum()) / size)
            parameter.grad = None


def _read(
    policy: CpuPolicy, hours: Sequence[Alternatives], goal: Mapping[str, float]
) -> Iterator[tuple[list[tuple[int, int]], Tensor]]:
    """Log-probabilities of answers, some hours at a time: the hour and the answer of each, and its value."""
    columns = {answer: column for column, answer in enumerate(goal)}
    waiting: list[int] = []
    room = 0
    for number, hour in enumerate(hours):
        waiting.append(number)
        room += len(hour.tokens) - hour.beginning + 2 * len(hour.answers)
        if room >= _TOKENS_AT_ONCE or number + 1 == len(hours):
            yield _read_together(policy, {place: hours[place] for place in waiting}, columns)
            waiting, room = [], 0


def _read_together(
    policy: CpuPolicy, hours: Mapping[int, Alternatives], columns: Mapping[str, int]
) -> tuple[list[tuple[int, int]], Tensor]:
    """One packed sequence: each prompt without its last token, then for each answer that token and the answer's."""
    tokens: list[int] = []
    positions: list[int] = []
    groups: list[int] = []
    parents: list[int] = []
    targets: list[int] = []
    places: list[tuple[int, int]] = []
    replies = len(hours) + max(hours)
    for prompt, hour in hours.items():
        rest = hour.tokens[hour.beginning : -1]
        tokens += rest
        positions += range(hour.beginning, len(hour.tokens) - 1)
        groups += [prompt] * len(rest)
        for answer, token in hour.answers.items():
            if answer in columns:
                replies += 1
                tokens += [hour.tokens[-1], token]
                positions += [len(hour.tokens) - 1, len(hour.tokens)]
                groups += [replies] * 2
                targets.append(len(tokens) - 1)
                places.append((prompt, columns[answer]))
        parents += [prompt] * (len(tokens) - len(parents))
    beginnings = {prompt: hour.tokens[: hour.beginning] for prompt, hour in hours.items() if hour.beginning}
    layout = Layout(torch.tensor([groups]), torch.tensor([parents]), policy.read(beginnings))
    read = policy.likelihoods(torch.tensor([tokens]), torch.tensor([positions]), layout, torch.tensor(targets))
    return places, read.logprobs
