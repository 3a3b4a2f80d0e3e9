"""What a backend and its checkpoints can do, and what its update is: code checks these, never the backend's name.

``docs/gpu-and-serverless.md`` has the same as a table; a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Update:
    """What one step of a backend does with a batch. Where W&B decides, nobody here knows."""

    optimizer_steps: str = "one per packed sequence"
    optimizer: str = "paged 8-bit AdamW, betas 0.9 and 0.99"
    weight_decay: str = "0.1"
    saves_optimizer: bool | None = True
    """Whether a step continues with the moments of the last one after a restart. None: not known."""
    clips_gradient: str = "`--max-grad-norm`"
    has_kl: bool = True
    weighs_stale: bool = True
    """Tokens of an older policy are weighted by how the policy has changed since (``--max-importance``)."""
    masks_moved: bool = False
    """Tokens that have moved far enough already are pushed no further; foreign ones enter no ratio."""
    corrects_sampling: bool = False
    """Log-probabilities are computed again for the temperature and top-p that were sampled with."""
    ignored: frozenset[str] = frozenset()
    """Settings without any effect on it: refused."""


@dataclass(frozen=True, slots=True)
class BackendAbilities:
    """What a backend and its checkpoints can do."""

    trains_here: bool = True
    """Training uses the model on this machine; otherwise the next batch can be prepared during a step."""
    serves_itself: bool = False
    """Agents reach its checkpoints where they were trained, without a server of ours."""
    runs_in_engine: bool = False
    """Our engine runs its checkpoints from files: in this process, and in ``serve.py``, which tells agents apart."""
    is_stand_in: bool = False
    """It is the fallback without a GPU and without a key, and reports say so."""
    update: Update = Update()


_OF_THE_CPU = frozenset(
    {"updates", "warm_start", "entropy_bonus", "weight_decay", "token_weights", "init_from", "train_workers"}
)
_OURS = Update(
    optimizer_steps="`--updates`, 1",
    optimizer="AdamW, betas 0.9 and 0.95",
    weight_decay="`--weight-decay`, 0",
    masks_moved=True,
    corrects_sampling=True,
)
_WANDBS = Update(
    optimizer_steps="W&B decides",
    optimizer="W&B decides",
    weight_decay="W&B decides",
    saves_optimizer=None,
    clips_gradient="W&B decides",
    has_kl=False,
    weighs_stale=False,
    ignored=_OF_THE_CPU | {"kl", "lora_rank", "max_grad_norm", "max_importance"},
)
_ABILITIES = {
    "cpu": BackendAbilities(runs_in_engine=True, is_stand_in=True, update=_OURS),
    "local": BackendAbilities(update=Update(ignored=_OF_THE_CPU)),
    "serverless": BackendAbilities(trains_here=False, serves_itself=True, update=_WANDBS),
}


def abilities_of(backend: str) -> BackendAbilities:
    """The abilities of the named backend; the ledger stores only the name.

    A backend that is not ours is treated like ``local``: it trains here, and a server at --serve-url serves it.
    """
    return _ABILITIES.get(backend, BackendAbilities())
