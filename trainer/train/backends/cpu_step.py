"""One gradient step on the CPU: groups packed into sequences, forward, ART's loss, backward, clip, update, metrics.

The loss is ART's; how the sequences are made is in ``packing``.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import torch

from data_bridge.errors import BackendError
from trainer.inference.layout import Layout
from trainer.inference.policy import CpuPolicy, Likelihoods
from trainer.train.backends.correction import BEHAVIOUR_INPUT, DEFAULT_REGION, MASKS, Region
from trainer.train.backends.packing import PackedSequence, TokenWeights, pack

if TYPE_CHECKING:
    import art
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

_KL_SAMPLE = 8
"""Without a KL penalty, one in this many sequences is also read with the adapter off, to measure the KL."""


@dataclass(frozen=True, slots=True)
class StepSettings:
    """What one step needs to know; ``objective`` is ART's own configuration of its loss."""

    objective: Any
    learning_rate: float
    max_grad_norm: float
    kl: float = 0.0
    entropy_bonus: float = 0.0
    updates: int = 1
    weight_decay: float = 0.0
    token_weights: TokenWeights = "reply"
    scale_rewards: bool = False
    only_good: bool = False
    """Only imitate replies above their group's mean; see ``pack``."""
    region: Region = DEFAULT_REGION
    """What tokens of another policy than the one trained may count."""

    def pack(
        self, groups: Sequence[art.TrajectoryGroup], tokenizer: PreTrainedTokenizerBase, *, seed: str
    ) -> list[PackedSequence]:
        """``groups`` as the sequences of a step with these settings."""
        return pack(
            groups,
            tokenizer,
            scale_rewards=self.scale_rewards,
            seed=seed,
            only_good=self.only_good,
            region=self.region,
            token_weights=self.token_weights,
        )


class NotFinite(ArithmeticError):
    """The loss or its gradient is not a number. Raised before the optimizer sees it."""


Numbered = tuple[int, PackedSequence]
"""A sequence and its number within its update."""


@dataclass(slots=True)
class StepTally:
    """Values per trained token, from which the metrics are computed."""

    new: list[Tensor] = field(default_factory=list)
    old: list[Tensor] = field(default_factory=list)
    then: list[Tensor] = field(default_factory=list)
    """Of the policy that sampled the token; the new one's where it enters no ratio."""
    masks: list[dict[str, Tensor]] = field(default_factory=list)
    ratios: list[Tensor] = field(default_factory=list)
    """At the level that the loss uses."""
    advantages: list[Tensor] = field(default_factory=list)
    entropies: list[Tensor] = field(default_factory=list)
    first_entropies: list[Tensor] = field(default_factory=list)
    """Of the first token of every reply."""
    from_base: list[Tensor] = field(default_factory=list)
    """KL of whole distributions from the base model, where it was measured."""

    def add(self, other: StepTally) -> None:
        for name in StepTally.__slots__:
            getattr(self, name).extend(getattr(other, name))


class Team(Protocol):
    """Several processes that make one update; see ``ranks``."""

    def accumulate(
        self, policy: CpuPolicy, numbered: Sequence[Numbered], trained: int, settings: StepSettings
    ) -> tuple[float, dict[int, StepTally]]:
        """As the function below, over all of them."""
        ...

    def agree(self, policy: CpuPolicy) -> None:
        """After an update: raises unless all of them have come to the weights of ``policy``."""
        ...


def gradient_step(
    policy: CpuPolicy,
    groups: Sequence[art.TrajectoryGroup],
    settings: StepSettings,
    *,
    seed: str,
    ranks: Team | None = None,
) -> dict[str, float]:
    """Train ``policy`` on ``groups`` and return the step's metrics. BackendError if nothing was trainable.

    Gradients accumulate over the packed sequences, in this process or in several ``ranks``; ``seed`` decides their
    order.
    """
    sequences = settings.pack(groups, policy.tokenizer, seed=seed)
    if not any(sequence.trainable_tokens for sequence in sequences):
        raise BackendError(
            "The batch has no trainable token, so nothing was trained: check that the log has token ids and "
            "log-probabilities, or that the replies can be scored, and that the scores of a group differ."
        )
    started = monotonic()
    tally = StepTally()
    losses, norms = [], []
    for part in _parts(sequences, settings.updates):
        loss, norm = _update(policy, part, settings, tally, ranks)
        losses.append(loss)
        norms.append(norm)
    seconds = monotonic() - started
    return {
        "loss": sum(losses) / len(losses),
        "grad_norm": sum(norms) / len(norms),
        "learning_rate": settings.learning_rate,
        "updates": float(len(losses)),
        "sequences": float(len(sequences)),
        **_metrics(tally, settings),
        "tokens_per_second": sum(sequence.tokens.shape[1] for sequence in sequences) / seconds,
        "step_seconds": seconds,
        "peak_memory_gb": _peak_memory(),
    }


def _update(
    policy: CpuPolicy, sequences: Sequence[PackedSequence], settings: StepSettings, tally: StepTally, ranks: Team | None
) -> tuple[float, float]:
    """One optimizer update: the mean loss over all trained tokens of ``sequences``, and the gradient's norm."""
    trained = sum(sequence.trainable_tokens for sequence in sequences)
    numbered = list(enumerate(sequences))
    begin_update(policy, settings)
    total, noted = (accumulate if ranks is None else ranks.accumulate)(policy, numbered, trained, settings)
    for number in sorted(noted):
        tally.add(noted[number])
    norm = finish_update(policy, settings, total)
    if ranks is not None:
        ranks.agree(policy)
    return total, norm


def begin_update(policy: CpuPolicy, settings: StepSettings) -> None:
    """No gradient yet, and the optimizer as the settings say."""
    policy.learns_entropy = settings.entropy_bonus > 0
    for group in policy.optimizer.param_groups:
        group["lr"], group["weight_decay"] = settings.learning_rate, settings.weight_decay
    policy.optimizer.zero_grad(set_to_none=True)


def accumulate(
    policy: CpuPolicy, numbered: Sequence[Numbered], trained: int, settings: StepSettings
) -> tuple[float, dict[int, StepTally]]:
    """Add up the gradients of some sequences of an update that trains ``trained`` tokens; their part of its loss."""
    total = 0.0
    noted: dict[int, StepTally] = {}
    for number, sequence in numbered:
        noted[number] = StepTally()
        loss = _loss(policy, sequence, settings, noted[number], sample_base=number % _KL_SAMPLE == 0) / trained
        loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types
        total += float(loss.detach())
    return total, noted


def finish_update(policy: CpuPolicy, settings: StepSettings, loss: float) -> float:
    """Clip the gradient and make the update; the gradient's norm. NotFinite before the optimizer sees such a one."""
    norm = float(torch.nn.utils.clip_grad_norm_(policy.parameters(), settings.max_grad_norm))
    if not math.isfinite(loss) or not math.isfinite(norm):
        raise NotFinite
    policy.optimizer.step()
    return norm


def backward(policy: CpuPolicy, sequence: PackedSequence, settings: StepSettings) -> None:
    """Forward and backward pass of one sequence alone."""
    loss = _loss(policy, sequence, settings, StepTally(), sample_base=False) / sequence.trainable_tokens
    loss.backward()  # type: ignore[no-untyped-call]  # torch gives it no types


def _loss(
    policy: CpuPolicy, sequence: PackedSequence, settings: StepSettings, tally: StepTally, *, sample_base: bool
) -> Tensor:
    """ART's policy loss summed over the sequence's trained tokens, minus the entropy bonus."""
    from art.loss import loss_fn

    inputs = sequence.inputs
    targets = inputs["assistant_mask"][0].nonzero()[:, 0]
    likelihoods = _likelihoods(policy, sequence, targets)
    base = None
    if settings.kl > 0 or sample_base:
        with torch.no_grad(), policy.as_base():
            base = _likelihoods(policy, sequence, targets)
        tally.from_base.append(policy.divergence(likelihoods, base))
    _note(tally, inputs, targets, likelihoods, settings.objective)
    spread = _spread(likelihoods.logprobs, targets, sequence.tokens.shape[1])
    reference = None if base is None else _spread(base.logprobs, targets, sequence.tokens.shape[1])
    objective = settings.objective
    if BEHAVIOUR_INPUT in inputs:
        objective = {**objective, "truncated_importance_sampling": settings.region.most}
    if inputs["logprobs"].isnan().all():  # imitation: ART replaces missing ones by the policy's own, but warns
        inputs = inputs | {"logprobs": inputs["logprobs"].index_copy(1, targets, likelihoods.logprobs.detach()[None])}
    loss: Tensor = loss_fn(inputs, spread, reference, None, objective, reduction="sum").policy_loss
    if settings.entropy_bonus:
        loss = loss - settings.entropy_bonus * likelihoods.entropies[_first_of_reply(targets)].sum()
    return loss


def _likelihoods(policy: CpuPolicy, sequence: PackedSequence, targets: Tensor) -> Likelihoods:
    inputs = sequence.inputs
    layout = Layout(inputs["group_ids"], inputs["parent_ids"], policy.read(sequence.beginnings))
    return policy.likelihoods(sequence.tokens, inputs["input_pos"], layout, targets)


def _spread(values: Tensor, targets: Tensor, length: int) -> Tensor:
    """Per-target values at the positions where ART's loss expects them: the value of token i+1 at position i."""
    return values.new_zeros(1, length).index_put((torch.zeros_like(targets), targets - 1), values)


def _first_of_reply(targets: Tensor) -> Tensor:
    """Which targets begin a reply: those whose predecessor is not a target."""
    return torch.cat([torch.tensor([True]), targets[1:] != targets[:-1] + 1])


def _parts(sequences: Sequence[PackedSequence], number: int) -> list[Sequence[PackedSequence]]:
    """``sequences`` distributed over at most ``number`` updates, none of them empty."""
    number = max(1, min(number, len(sequences)))
    return [sequences[start::number] for start in range(number)]


def _note(tally: StepTally, inputs: dict[str, Any], targets: Tensor, likelihoods: Likelihoods, objective: Any) -> None:
    new = likelihoods.logprobs.detach()
    old = inputs["logprobs"][0, targets]
    old = torch.where(old.isnan(), new, old)
    tally.new.append(new)
    tally.old.append(old)
    then = inputs.get(BEHAVIOUR_INPUT, inputs["logprobs"])[0, targets]
    tally.then.append(torch.where(then.isnan(), new, then))
    tally.masks.append(
        {name: inputs[name][0, targets] if name in inputs else torch.zeros_like(targets).bool() for name in MASKS}
    )
    tally.ratios.append(_ratios(new - old, inputs["group_ids"][0, targets], objective))
    tally.advantages.append(inputs["advantages"][0, targets])
    tally.entropies.append(likelihoods.entropies.detach())
    tally.first_entropies.append(likelihoods.entropies.detach()[_first_of_reply(targets)])


def _ratios(differences: Tensor, replies: Tensor, objective: Any) -> Tensor:
    """Each token's importance ratio as ART's loss uses it: its own, its whole reply's, or a mix of both."""
    from art.utils.group_aggregate import group_aggregate

    own = differences.clamp(-20, 20).exp()
    level = objective.get("importance_sampling_level", "token")
    if level == "token":
        return own
    reply: Tensor = group_aggregate(differences[None], by=replies[None], reduce="mean")[0].clamp(-20, 20).exp()
    return {"sequence": reply, "average": (own + reply) / 2, "geometric_average": (own * reply).sqrt()}[level]


def _metrics(tally: StepTally, settings: StepSettings) -> dict[str, float]:
    new, old, advantages = torch.cat(tally.new), torch.cat(tally.old), torch.cat(tally.advantages)
    ratio = torch.cat(tally.ratios)
    low, high = _clip_range(settings.objective)
    most = settings.objective.get("max_negative_advantage_importance_sampling_weight") or math.inf
    clipped = ((ratio > 1 + high) & (advantages > 0)) | (((ratio < 1 - low) | (ratio > most)) & (advantages < 0))
    metrics = {
        "trainable_tokens": float(len(new)),
        "entropy": float(torch.cat(tally.entropies).mean()),
        "first_token_entropy": float(torch.cat(tally.first_entropies).mean()),
        "ratio": float(ratio.mean()),
        "ratio_max": float(ratio.max()),
        "effective_sample_size": float(ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum())),
        "clip_share": float(clipped.float().mean()),
        **_behaviour_metrics(tally, new, old, settings.region),
    }
    if tally.from_base:
        metrics["kl"] = float(torch.cat(tally.from_base).mean())
    return metrics


def _behaviour_metrics(tally: StepTally, new: Tensor, old: Tensor, region: Region) -> dict[str, float]:
    """How far the policy is from those that sampled the tokens, and what was done about it."""
    then = torch.cat(tally.then)
    weight = (old - then).clamp(-20, 20).exp()
    return {
        "kl_behaviour": _kl(new, then),
        "behaviour_weight": float(weight.clamp(max=region.most).mean()),
        "share_ratio_one": float((new == then).float().mean()),
        "share_truncated": float((weight > region.most).float().mean()),
        **{f"share_{name}": float(torch.cat([one[name] for one in tally.masks]).float().mean()) for name in MASKS},
    }


def _kl(policy: Tensor, reference: Tensor) -> float:
    """Mean per token of the non-negative estimator exp(d) - 1 - d, d = reference - policy."""
    difference = (reference - policy).clamp(-20, 20)
    return float((difference.exp() - 1 - difference).mean())


def _clip_range(objective: Any) -> tuple[float, float]:
    """The bounds that ART's loss uses, including its defaults."""
    is_ppo = objective.get("ppo", False)
    low = objective.get("epsilon", 0.2 if is_ppo else 1.0)
    high = objective.get("epsilon_high", None if is_ppo else 4.0)
    return low, low if high is None else high


def _peak_memory() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return math.floor(peak * 1000) / 1000
