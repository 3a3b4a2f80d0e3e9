"""The data that is read: windows, trajectories, steps, LLM calls, actions and market outcomes.

Rows of both of the game's writers (the recorder and the plugin logger) decode into these types; a field that only one
of them writes has a default. Fields that the game adds later are ignored. All times are aware UTC.
The structs are msgspec's because decoding is the hot path of reading; they are frozen because every stage shares them,
and excluded from garbage collection (``gc=False``) where there are millions of them: JSON has no cycles.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import msgspec

_CHECKPOINT = re.compile(r"(?P<model>.*?)[@:]step(?P<step>\d{1,9})")


DECISIONS = ("action",)
"""Purposes of the calls that make decisions, unless ``--purposes`` is set."""


class NotText(ValueError):
    """A message has parts that are not text, such as an image."""


@dataclass(frozen=True, slots=True)
class Author:
    """Who wrote a reply: the model's name and, if the name contains it, the checkpoint's step."""

    model: str
    step: int | None


class ChatMessage(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One message as the agent's model received it. ``content`` may be a list of parts, or null with tool calls."""

    role: str
    content: str | list[Any] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None

    def text(self) -> str:
        """The message's text, with parts joined unchanged. NotText if a part is not text."""
        if self.content is None or isinstance(self.content, str):
            return self.content or ""
        texts = []
        for part in self.content:
            if isinstance(part, str):
                texts.append(part)
            elif isinstance(part, dict) and isinstance(part.get("text"), str):
                texts.append(part["text"])
            else:
                raise NotText(f"a {self.role} message has a part that is not text")
        return "".join(texts)

    def as_dict(self) -> dict[str, Any]:
        """The message as chat templates expect it: text content, no nulls, no unset fields. NotText as above."""
        said = {key: getattr(self, key) for key in ("name", "tool_calls", "tool_call_id")}
        entry = {"role": self.role, "content": self.text()}
        return entry | {key: value for key, value in said.items() if value is not None}


class LLMCall(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """One call of an agent's model: exactly what it saw and what it replied."""

    model: str = ""
    system_prompt: str = ""
    user_prompt: str = ""
    response: str = ""
    purpose: str = "action"
    temperature: float | None = None
    max_tokens: float | None = None
    top_p: float | None = None
    latency_ms: float | None = None
    action_type: str | None = None
    reasoning: str | None = None
    model_version: str | None = None
    call_id: str | None = None
    timestamp: float | None = None
    messages: list[ChatMessage] | None = None
    """The full conversation, if the writer logged it; otherwise it was only the system and user prompt."""
    prompt_tokens: float | None = None
    completion_tokens: float | None = None
    tool_calls: list[dict[str, Any]] | None = None
    completion_token_ids: list[int] | None = None
    """The sampled tokens, end-of-sequence included. Only our recorder writes them."""
    completion_logprobs: list[float] | None = None
    """Log-probability of each of ``completion_token_ids`` under the policy that sampled it."""
    logprobs_temperature: float | None = None
    """The temperature those log-probabilities were computed at: 1.0 for raw model log-probabilities."""
    finish_reason: str | None = None
    """Why the reply ended, as the endpoint says: ``stop``, ``length``, ``tool_calls``. Only our recorder writes it."""

    def chat(self) -> list[ChatMessage]:
        """The messages that the agent's model received, in order."""
        if self.messages:
            return self.messages
        prompts = [("system", self.system_prompt), ("user", self.user_prompt)]
        return [ChatMessage(role=role, content=text) for role, text in prompts if text]

    def seen(self) -> list[ChatMessage]:
        """``chat`` without the reply, which some writers append to the log although the model did not see it."""
        messages = self.chat()
        if self.messages and messages[-1].role == "assistant" and messages[-1].text() == self.response:
            return messages[:-1]
        return messages

    @property
    def author(self) -> Author:
        """``hindsight@step3`` and ``wandb-artifact:///team/project/hindsight:step3`` are both step 3 of hindsight."""
        name = self.model.rsplit("/", 1)[-1]
        match = _CHECKPOINT.fullmatch(name)
        return Author(name, None) if match is None else Author(match["model"], int(match["step"]))


class Action(msgspec.Struct, frozen=True, gc=False, rename="camel", omit_defaults=True):
    """What the agent did or tried to do. ``error`` is set for every failed action, whichever writer logged it."""

    action_type: str = ""
    action_name: str | None = None
    parameters: dict[str, Any] = {}
    success: bool = False
    result: Any = None
    error: str | None = None
    reasoning: str | None = None
    correctness: Any = None
    timestamp: float | None = None

    @property
    def kind(self) -> str:
        """The action's name in one spelling; real tables contain ``buy`` and ``BUY``."""
        return (self.action_type or self.action_name or "").strip().upper()

    @property
    def is_pending(self) -> bool:
        """Whether the step was never finished: the plugin logger's placeholder, or nothing at all. Not an action."""
        name = self.action_type or self.action_name
        return not name or name.strip().lower() in ("", "pending")

    @property
    def failure(self) -> str | None:
        """Why the action failed, or None if it did not."""
        if self.error:
            return self.error
        if isinstance(self.result, dict) and isinstance(self.result.get("error"), str):
            return str(self.result["error"])
        return None if self.success else "failed"


class EnvironmentState(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """The agent's accounts before the step. Balance and P&L are lifetime figures."""

    balance: float | None = msgspec.field(default=None, name="agentBalance")
    lifetime_pnl: float | None = msgspec.field(default=None, name="agentPnL")
    open_positions: float | None = msgspec.field(default=None, name="openPositions")
    active_markets: float | None = msgspec.field(default=None, name="activeMarkets")
    portfolio_value: float | None = msgspec.field(default=None, name="portfolioValue")
    role: str | None = None
    everything: dict[str, Any] = msgspec.field(default_factory=dict, name="*")
    """The whole state as written, if the world reads more of it than these; then ``balance`` is its resource."""


class Step(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One decision: the state before it, the model calls that made it, and the resulting action."""

    step_number: int = msgspec.field(default=0, name="stepNumber")
    timestamp: float | None = None
    """Milliseconds since the epoch, as written."""
    state: EnvironmentState = msgspec.field(default=EnvironmentState(), name="environmentState")
    llm_calls: list[LLMCall] = msgspec.field(default_factory=list, name="llmCalls")
    action: Action | None = None
    """None if the step ended without an action; the reader also drops the plugin logger's ``pending`` placeholder."""
    reward: float | None = None
    reasoning: str | None = None


class AgentTrajectory(msgspec.Struct, frozen=True):
    """One agent's hour: a row of ``trajectories`` whose JSON could be read."""

    trajectory_id: str
    agent_id: str
    window_id: str
    window_hours: int
    start_time: datetime
    end_time: datetime
    steps: list[Step]
    content_hash: str
    """Hash of ``stepsJson`` as stored: the key of the verdict cache and of the lineage."""
    size_bytes: int
    created_at: datetime | None = None
    """When the row was written; None for a trajectory that was never a row. The earliest of an agent counts."""
    agent_name: str | None = None
    role: str | None = None
    scenario_id: str | None = None
    final_status: str = "completed"
    final_balance: float | None = None
    lifetime_pnl: float | None = None
    is_training_data: bool = True
    is_evaluation: bool = False
    used_in_training: bool = False
    is_sent: bool = False
    """Whether the agent sent it to the console with a key of its own: then the agent wrote it, not the game."""
    replayed_pnl: float | None = None
    """What the decision earned when our own replay rebuilt its hour: a fact. Never read from a row."""

    @property
    def window_pnl(self) -> float | None:
        """The profit that the row claims for this window: last minus first lifetime P&L, never the lifetime figure.

        The last state is the one recorded after the last step (``finalPnL``), if the row has it.
        """
        known = [step.state.lifetime_pnl for step in self.steps if step.state.lifetime_pnl is not None]
        if self.lifetime_pnl is not None:
            known.append(self.lifetime_pnl)
        return known[-1] - known[0] if len(known) >= 2 else None

    @property
    def starting_balance(self) -> float | None:
        """The balance that the row claims at its first step that names one."""
        return next((step.state.balance for step in self.steps if step.state.balance is not None), None)

    @property
    def actions(self) -> list[Action]:
        return [step.action for step in self.steps if step.action is not None and not step.action.is_pending]

    @property
    def llm_calls(self) -> list[LLMCall]:
        return [call for step in self.steps for call in step.llm_calls]


class NewsEvent(msgspec.Struct, frozen=True):
    headline: str
    timestamp: datetime | None = None
    sentiment: str | None = None


class StockOutcome(msgspec.Struct, frozen=True):
    ticker: str
    start_price: float | None = None
    end_price: float | None = None
    change_percent: float | None = None
    """As written by the game; computed from the prices if it is missing."""
    sentiment: str | None = None
    news: tuple[NewsEvent, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether the stock's move is known."""
        return self.change_percent is not None


class PredictionOutcome(msgspec.Struct, frozen=True):
    market_id: str
    question: str | None = None
    outcome: str | None = None
    """None while the market is unresolved."""
    final_probability: float | None = None
    volume: float | None = None

    @property
    def is_known(self) -> bool:
        return self.outcome is not None


class Fact(msgspec.Struct, frozen=True):
    """Something that is known afterwards about a window, told by the game's owner and never by an agent's row."""

    subject: str
    """What it is about: a quest, a ticket, an agent's id; ``AGENT/SUBJECT`` is one agent's part in it."""
    kind: str
    before: float | None = None
    after: float | None = None
    text: str | None = None
    at: datetime | None = None
    """When it happened."""
    visible: bool = False
    """Whether the agents could see it when they decided."""
    agent: str | None = None
    """Whose part it tells, if its subject begins with the id of an agent of the log; set when it is read."""

    def is_of(self, agent_id: str) -> bool:
        """Whether its subject is this agent, or its part in something."""
        return self.subject == agent_id or self.subject.startswith(f"{agent_id}/")

    @property
    def is_known(self) -> bool:
        return self.after is not None or self.text is not None

    @property
    def change(self) -> float | None:
        """By how much the value changed; the value itself if there was none before."""
        return None if self.after is None else self.after - (self.before or 0.0)


class FactDoubts(msgspec.Struct, frozen=True):
    """How many facts of a window count for nothing yet, or came late."""

    unknown: int = 0
    """Announced, without a value."""
    contradictory: int = 0
    """Told differently by two sources: nobody knows which is true, so neither counts."""
    late: int = 0
    """Written after the window was closed; they count."""
    malformed: int = 0
    """Rows that say nothing that can be read."""
    too_many: int = 0
    """Beyond the number that is read of one window."""

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in self.__struct_fields__)

    def plus(self, other: FactDoubts) -> FactDoubts:
        counts = (getattr(self, name) + getattr(other, name) for name in self.__struct_fields__)
        return FactDoubts(*counts)


NO_DOUBTS = FactDoubts()


class WindowOutcomes(msgspec.Struct, frozen=True, dict=True):
    """The ground truth of one closed window, unknown to the agents while they decided."""

    stocks: tuple[StockOutcome, ...] = ()
    predictions: tuple[PredictionOutcome, ...] = ()
    facts: tuple[Fact, ...] = ()
    """All that is not a market, by subject and kind; each is known, and no two have the same subject and kind."""
    doubts: FactDoubts = NO_DOUBTS

    def __bool__(self) -> bool:
        return bool(self.stocks or self.predictions or self.facts)

    @cached_property
    def _by_subject(self) -> dict[str, list[Fact]]:
        found: dict[str, list[Fact]] = {}
        for fact in self.facts:
            found.setdefault(fact.subject, []).append(fact)
        return found

    def about(self, subject: str) -> Sequence[Fact]:
        """The facts about one subject: a window has thousands, and every action asks for a few."""
        return self._by_subject.get(subject, ())

    @property
    def known(self) -> int:
        """The number of markets with a known outcome."""
        return sum(stock.is_known for stock in self.stocks) + sum(market.is_known for market in self.predictions)


class Window(msgspec.Struct, frozen=True):
    """One window as read: the trajectories that could be decoded, and the rows that could not."""

    window_id: str
    hours: int
    trajectories: tuple[AgentTrajectory, ...]
    outcomes: WindowOutcomes
    unreadable: tuple[UnreadableRow, ...] = ()


class UnreadableRow(msgspec.Struct, frozen=True):
    """A row whose JSON yields no steps. ``reason`` is a ``quality.Reason`` value."""

    trajectory_id: str
    agent_id: str
    window_id: str
    reason: str
    detail: str = ""
