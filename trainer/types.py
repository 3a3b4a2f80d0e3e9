"""What passes between the stages: groups, verdicts, batches, checkpoints; and the three exchangeable protocols.

A stage takes one of these types and returns the next. Nothing here imports torch or art.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from data_bridge.authorship import Served
from data_bridge.models import AgentTrajectory, ChatMessage, WindowOutcomes
from data_bridge.quality import Exclusion, Reason
from data_bridge.worlds.market import MARKET
from data_bridge.worlds.world import World
from trainer.abilities import BackendAbilities, abilities_of
from trainer.config.training import AddressSettings
from trainer.rewards import Baseline, Potential, RewardHistory

if TYPE_CHECKING:
    import art

MIN_GROUP = 2
"""Minimum number of group members: a relative score needs a peer."""


@dataclass(frozen=True, slots=True)
class Group:
    """Comparable trajectories of one window: each agent at most once, all under the same ground truth."""

    group_id: str
    window_id: str
    trajectories: tuple[AgentTrajectory, ...]
    outcomes: WindowOutcomes
    world: World = MARKET
    hours: int = 1


TWO_PASSES = "-two-passes"
"""At the end of the prompt's version: a judge asked in two passes is another judge, with a certificate of its own."""
WITH_STEPS = "-steps"
"""In the prompt's version: a judge that is asked to score decisions as well reads another prompt."""


@dataclass(frozen=True, slots=True)
class JudgeIdentity:
    """The judge and its rubric: two verdicts are comparable only if these are equal."""

    judge: str
    """The model's name at its endpoint, or ``outcome`` for the offline judge."""
    rubric: str
    rubric_version: str
    prompt_version: str
    is_llm: bool

    @property
    def has_two_passes(self) -> bool:
        return self.prompt_version.endswith(TWO_PASSES)

    @property
    def scores_steps(self) -> bool:
        """Whether an LLM is asked for the score of each decision; the offline judge always gives them."""
        return WITH_STEPS in self.prompt_version


@dataclass(frozen=True, slots=True)
class Verdict:
    """The score of one trajectory, averaged over the orders in which it was judged."""

    trajectory_id: str
    score: float
    uncertainty: float
    """Standard error of ``score`` between orders: its own, or this judge's on others if asked once; 0: not known."""
    explanation: str
    luck: float | None = None
    """How much higher the judge scored it when it knew the outcome than before: only known after two passes."""
    steps: tuple[float | None, ...] = ()
    """The score of each of its decisions, None for one without; empty if the judge scored the whole alone."""


@dataclass(frozen=True, slots=True)
class JudgedGroup:
    """A group with one verdict for each of its trajectories, in the same order.

    A member that could not be judged costs only itself: it is not in ``group`` but in ``left_out``.
    """

    group: Group
    verdicts: tuple[Verdict, ...]
    identity: JudgeIdentity
    verdict_key: str
    """Its key in ``hindsight.verdicts``."""
    cost_usd: float = 0.0
    """Paid in this run; 0 when the verdict came from the cache."""
    cached: bool = False
    left_out: tuple[Exclusion, ...] = ()
    """Planned members that the judge left out, each with its own reason."""
    use: int = 1
    """How often it is trained with this time: more than 1 for a replayed group."""

    @property
    def scores(self) -> list[float]:
        return [verdict.score for verdict in self.verdicts]

    @property
    def uncertainties(self) -> list[float]:
        return [verdict.uncertainty for verdict in self.verdicts]


@dataclass(frozen=True, slots=True)
class JudgeFailure:
    """A group without a verdict. Recorded as an exclusion of each of its trajectories, never as a score."""

    group: Group
    reason: Reason
    detail: str
    cost_usd: float = 0.0
    left_out: tuple[Exclusion, ...] = ()
    """Planned members that are not in ``group``, each with its own reason."""


class Judge(Protocol):
    """Anything that turns groups into verdicts: the LLM judge and the offline judge."""

    @property
    def identity(self) -> JudgeIdentity: ...

    async def judge(self, group: Group) -> JudgedGroup | JudgeFailure:
        """The verdict on ``group``. Safe to call concurrently; the judge limits its own concurrency."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled reply, with the tokens and log-probabilities that training needs."""

    text: str
    token_ids: tuple[int, ...] = ()
    """The sampled tokens, end-of-sequence included when it was sampled. Empty if the endpoint does not return them."""
    logprobs: tuple[float, ...] = ()
    """One per token, at temperature 1 (the raw distribution)."""
    token_texts: tuple[str, ...] = ()
    """The text of each single token. Empty if not known."""
    finish_reason: str = "stop"
    model: str = ""
    """The exact checkpoint that answered, e.g. ``hindsight@step3``."""
    prompt_tokens: int = 0
    """Tokens of the messages as the model read them; 0 if the endpoint does not return it."""


class ChatModel(Protocol):
    """Anything that answers chat messages: the embedded model, an OpenAI-compatible endpoint, a scripted stand-in."""

    @property
    def name(self) -> str: ...

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        n: int = 1,
        temperature: float = 1.0,
        max_tokens: int = 64,
        stop: Sequence[str] = (),
        seed: int | None = None,
    ) -> list[Completion]: ...

    async def close(self) -> None: ...


WANDB_BASE_URL = "https://api.training.wandb.ai/v1"
"""The endpoint that trains and serves: ART's client has the same default."""


@dataclass(frozen=True, slots=True)
class Serving:
    """An OpenAI-compatible endpoint, and the checkpoint's name there."""

    base_url: str
    model: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A trained state of one model."""

    model: str
    step: int
    base_model: str
    backend: str
    location: str
    """A directory for the CPU and local backends, ``wandb-artifact:///…`` for serverless."""

    @property
    def name(self) -> str:
        return f"{self.model}@step{self.step}"

    @property
    def abilities(self) -> BackendAbilities:
        """The abilities of the backend that trained it."""
        return abilities_of(self.backend)

    def served_at(self, addresses: AddressSettings) -> Serving:
        """W&B's endpoint if the backend serves its own checkpoints; otherwise the server at --serve-url."""
        if self.abilities.serves_itself:
            return Serving(addresses.wandb_base_url or WANDB_BASE_URL, self.location)
        return Serving(addresses.serve_url, self.name)

    def as_release(self, prompt_version: str = "", lessons_policy: str = "") -> Release:
        """This checkpoint with these prompts and lessons."""
        where = (self.base_model, self.backend, self.location)
        return Release(self.model, self.step, *where, prompt_version, lessons_policy)


@dataclass(frozen=True, slots=True)
class Release(Checkpoint):
    """What agents are given together: weights, prompts and lessons. The gate, canary and rollback work on releases.

    An empty prompt version means the game's own prompts; an empty lessons policy means no lessons.
    """

    prompt_version: str = ""
    lessons_policy: str = ""

    @property
    def identity(self) -> tuple[str, int, str, str]:
        """What two releases differ by: the same checkpoint with other lessons is another release."""
        return (self.model, self.step, self.prompt_version, self.lessons_policy)

    @property
    def is_base(self) -> bool:
        """Whether it is the untrained model with the game's own prompts and no lessons: what agents had at first."""
        return self.identity[1:] == (0, "", "")

    @property
    def checkpoint(self) -> Checkpoint:
        return Checkpoint(self.model, self.step, self.base_model, self.backend, self.location)

    @property
    def name(self) -> str:
        """``hindsight@step14``, followed by what else differs from the game's own."""
        return "+".join(part for part in (self.checkpoint.name, self.prompt_version, self.lessons_policy) if part)


def release_of(
    checkpoint: Checkpoint, used: Release | None, lessons: str | None = None, prompts: str | None = None
) -> Release:
    """``checkpoint`` with the prompts and lessons that agents ``used`` so far, or with others (empty: none): new
    weights do not take away what was promoted beside the old ones."""
    before = used or checkpoint.as_release()
    prompts = before.prompt_version if prompts is None else prompts
    return checkpoint.as_release(prompts, before.lessons_policy if lessons is None else lessons)


@dataclass(frozen=True, slots=True)
class Batch:
    """The judged groups of one gradient step, and the policy step they were prepared for."""

    batch_id: str
    model: str
    policy_step: int
    groups: tuple[JudgedGroup, ...]
    untrained: tuple[Exclusion, ...] = ()
    """Members whose own tokens must not be trained, each with its reason; they still set their group's mean."""
    served: tuple[Served, ...] | None = None
    """What the model's plain name meant when, by the ledger; None: not known."""
    share: float = 1.0
    """Of a whole step: less for what was left over at the end of a pass."""
    baselines: Mapping[str, Baseline] = field(default_factory=dict)
    """By trajectory, what is usual for its agent or role, or what HOLD would have scored (also by ``ID#NUMBER``)."""
    potentials: Mapping[str, Potential] = field(default_factory=dict)
    """By decision; empty without --potential."""
    emphasis: Mapping[str, float] = field(default_factory=dict)
    """By trajectory, what its group counts by the error patterns that it shows, where that is more than 1."""
    most_emphasis: float = 1.0
    """``--pattern-weight``; 1 without feedback of patterns."""


@dataclass(frozen=True, slots=True)
class PreparedBatch:
    """A batch as ART trains it, and what was left out of it."""

    batch: Batch
    groups: list[art.TrajectoryGroup]
    exclusions: tuple[Exclusion, ...]
    trainable_tokens: int
    metrics: dict[str, float] = field(default_factory=dict)
    """What is known before training: rewards, advantages, shares of foreign, re-scored and off-temperature tokens."""
    pace: float = 1.0
    """The share of the learning rate at which it is trained: by what its verdicts are worth, and by its size."""
    history: RewardHistory | None = None
    """How every member came to its advantage; None if the backend has rewards of its own."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of one gradient step."""

    checkpoint: Checkpoint
    trainable_tokens: int
    metrics: dict[str, float] = field(default_factory=dict)
    parent_step: int | None = None
    """The step it started from; None: the one before it."""


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """The members of a group in their order, after dropout."""

    group_id: str
    trajectory_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlannedWindow:
    window_id: str
    hours: int
    groups: tuple[PlannedGroup, ...]


@dataclass(frozen=True)
class RunPlan:
    """Every window of the run, and what dropout and grouping leave out of them; large plans are not in memory."""

    windows: Sequence[PlannedWindow]
    excluded: Sequence[Exclusion]
    dropout_rate: float
    total: int
    """Trajectories in groups, before dropout."""

    @cached_property
    def groups(self) -> int:
        return sum(len(window.groups) for window in self.windows)

    @cached_property
    def trajectories(self) -> int:
        return sum(len(group.trajectory_ids) for window in self.windows for group in window.groups)

    @cached_property
    def dropped(self) -> int:
        return sum(exclusion.reason is Reason.DROPOUT for exclusion in self.excluded)


NOTHING_PLANNED = RunPlan((), (), 0.0, 0)
"""The plan of a run that gets its windows later, day by day."""
Submitted = Callable[[str], Awaitable[None]]
"""Stores what is known about the remote job, so that a crash cannot lose it; each call replaces the previous text.

Called first before the batch leaves this process (so that a crash during sending is noticed), and again with the
job's id before the job is followed. The text is the backend's own receipt, with the job's id first:
store it as it is, and hand the newest one to ``settle`` as ``job_id``; None means that nothing was ever sent.
"""


class TrainingBackend(Protocol):
    """One trained model on one backend. Not safe for two processes at once: the ledger's lock prevents that."""

    name: str

    async def open(self) -> int:
        """Load or register the model. Returns the newest durable step (0 for an untrained model)."""
        ...

    async def current_step(self) -> int:
        """The newest durable step, as the disk or the server reports it now."""
        ...

    def checkpoint(self, step: int) -> Checkpoint: ...

    async def prepare(self, batch: Batch) -> PreparedBatch:
        """Convert, score replies logged without log-probabilities, and count. Trains and pays for nothing."""
        ...

    async def train(self, prepared: PreparedBatch, *, on_submitted: Submitted) -> StepResult:
        """One gradient step. The checkpoint is durable when this returns. BackendError if nothing was trainable.

        ``trainer.faults.RowFaults`` names the rows that made the step fail, if nothing was trained and it can be
        made without them; the caller then prepares the batch again, with these rows in ``Batch.untrained``.

        An error after the first call of ``on_submitted`` does not mean that the batch was rejected: the job may
        continue. Leave the batch submitted, and let ``settle`` find out what happened to it.
        """
        ...

    async def settle(self, batch_id: str, job_id: str | None, policy_step: int) -> StepResult | None:
        """After a crash: the result of a batch that was submitted, waiting for its job if it still runs.

        None if the backend never received it or says that it failed: it may be sent again. BackendError if not known.
        """
        ...

    async def remove(self, steps: Sequence[int]) -> list[int]:
        """Delete the files of these checkpoints, if they are on this machine; returns the deleted steps."""
        ...

    async def close(self) -> None: ...
