"""The loop of an agent that learns by being used: observe → lessons → prompt → act → record → outcome.

    loop = AgentLoop(recorder, prompt=my_prompt, act=OpenAIActing(client, "hindsight"), guard=my_guard, lessons=lessons)
    async with loop.window("agent-7") as hour:
        decided = await hour.decide(Seen("ACME rises. BUY or SELL?", {"agentBalance": 1000, "agentPnL": 0}))
        await hour.end(final_balance=990, final_pnl=4)
    await loop.outcome(database, hour.window_id, what_really_happened)

One loop serves all agents of a process, hundreds at once: it keeps no state but theirs. Every part is a protocol of one
method, so that a team replaces any of them by its own. What is recorded is exactly what the model was sent, lessons
included; the recorder's promises hold unchanged.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol, Self

import msgspec

from data_bridge.database import Database
from data_bridge.lesson_client import Decider, LessonLookup, ShownLesson, put_lessons
from data_bridge.models import Action, ChatMessage, LLMCall, WindowOutcomes
from data_bridge.outcomes import record_outcomes
from data_bridge.recorder import Recorder
from data_bridge.recording import TrajectoryRecording

if TYPE_CHECKING:
    from openai import AsyncOpenAI

EXPLORER = "explorer"
"""The model name of an answer that exploration chose: nobody sampled it, so it has no tokens."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What an agent observes when it has to decide."""

    text: str
    state: Mapping[str, Any]
    """Its accounts: ``agentBalance``, ``agentPnL``, ``openPositions``, ``role``, …"""
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    """In the game's clock: lessons are looked up as of this time."""
    data: Any = None
    """Whatever the team's own guard and exploration need."""


@dataclass(frozen=True, slots=True)
class AgentPrompt:
    messages: Sequence[ChatMessage]
    version: str = ""
    """Empty: the game's own prompt."""


class Prompting(Protocol):
    async def prompt(self, agent_id: str, seen: Seen) -> AgentPrompt:
        """The conversation up to the agent's turn, in the version that the agent uses now."""
        ...


class Acting(Protocol):
    async def act(self, agent_id: str, messages: Sequence[ChatMessage]) -> LLMCall:
        """The model's answer to ``messages``, as a call that can be recorded; its messages are set by the loop."""
        ...


class Exploring(Protocol):
    def explore(self, agent_id: str, seen: Seen) -> str | None:
        """A reply to take instead of the model's; None: the model decides."""
        ...


class Guarding(Protocol):
    async def guard(self, agent_id: str, seen: Seen, reply: str) -> Action:
        """Carry ``reply`` out if it is an action that the agent may do now; otherwise an action that failed, and why.

        It knows the reply alone, not the prompt: no lesson can talk it into anything.
        """
        ...


@dataclass(frozen=True, slots=True)
class Decided:
    reply: str
    action: Action
    prompt_version: str
    lessons: tuple[ShownLesson, ...]
    explored: bool


class AgentLoop:
    """The parts, put together once; ``window`` begins an agent's hour."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        prompt: Prompting,
        act: Acting,
        guard: Guarding,
        lessons: LessonLookup | None = None,
        explore: Exploring | None = None,
    ) -> None:
        self.recorder, self.prompt, self.act, self.guard = recorder, prompt, act, guard
        self.lessons, self.explore = lessons, explore

    def window(self, agent_id: str, **how: Any) -> AgentWindow:
        """One agent's hour; ``how`` as in ``Recorder.start_trajectory``."""
        return AgentWindow(self, self.recorder.start_trajectory(agent_id, **how))

    async def outcome(
        self, database: Database, window_id: str, outcomes: WindowOutcomes, *, now: datetime | None = None
    ) -> None:
        """Write what really happened in a window that is over."""
        await record_outcomes(database, window_id, outcomes, now=now or datetime.now(UTC))


class AgentWindow:
    """One agent's decisions in one window."""

    def __init__(self, loop: AgentLoop, trajectory: TrajectoryRecording) -> None:
        self._loop, self._trajectory = loop, trajectory
        self.agent_id, self.window_id = trajectory.agent_id, trajectory.window_id
        self.trajectory_id = trajectory.trajectory_id

    async def decide(self, seen: Seen) -> Decided:
        """One decision, recorded. An exception of a part is the caller's, and leaves a step without an action."""
        loop, agent_id = self._loop, self.agent_id
        async with self._trajectory.step(seen.state, at=seen.at) as step:
            prompt = await loop.prompt.prompt(agent_id, seen)
            messages, shown = list(prompt.messages), list[ShownLesson]()
            if loop.lessons is not None:
                messages, shown = await put_lessons(messages, loop.lessons, Decider(agent_id, step.at, step.role))
            if prompt.version:
                step.log_provider_access("PROMPT", {"version": prompt.version}, "the prompt's version")
            taken = None if loop.explore is None else loop.explore.explore(agent_id, seen)
            if taken is None:
                call = _as_sent(await loop.act.act(agent_id, messages), messages)
            else:
                call = LLMCall(model=EXPLORER, messages=messages, response=taken, temperature=0.0)
            step.log_llm_call(call)
            action = await loop.guard.guard(agent_id, seen, call.response)
            step.complete_step(action)
        return Decided(call.response, action, prompt.version, tuple(shown), taken is not None)

    async def end(
        self, *, final_balance: float | None = None, final_pnl: float | None = None, at: datetime | None = None
    ) -> str:
        """End the agent's hour; after that nothing loses it."""
        return await self._trajectory.end_trajectory(final_balance=final_balance, final_pnl=final_pnl, at=at)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._trajectory.__aexit__(*error)


def _as_sent(call: LLMCall, messages: list[ChatMessage]) -> LLMCall:
    return msgspec.structs.replace(call, messages=messages)


@dataclass(frozen=True, slots=True)
class OpenAIActing:
    """Asks an OpenAI-compatible endpoint; keeps token ids and log-probabilities where it returns them."""

    client: AsyncOpenAI
    model: str
    temperature: float = 1.0
    max_tokens: int = 64
    ask_for_tokens: bool = False

    async def act(self, agent_id: str, messages: Sequence[ChatMessage]) -> LLMCall:
        from data_bridge.record_openai import token_ids_of

        started = time.monotonic()
        more: dict[str, Any] = {}
        if self.ask_for_tokens:
            more = {"logprobs": True, "extra_body": {"return_token_ids": True}}
        sent: Any = [message.as_dict() for message in messages]
        answer = await self.client.chat.completions.create(
            model=self.model,
            messages=sent,
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            user=agent_id,  # serve.py knows a canary's agents by it
            **more,
        )
        choice = answer.choices[0]
        ids = token_ids_of(choice)
        logprobs = [one.logprob for one in (choice.logprobs.content if choice.logprobs is not None else None) or ()]
        has_tokens = bool(ids) and len(ids) == len(logprobs)
        return LLMCall(
            model=answer.model,
            response=choice.message.content or "",
            temperature=self.temperature,
            max_tokens=self.max_tokens,
            latency_ms=round(1000 * (time.monotonic() - started), 1),
            completion_token_ids=ids if has_tokens else None,
            completion_logprobs=logprobs if has_tokens else None,
            logprobs_temperature=1.0 if has_tokens else None,
            finish_reason=choice.finish_reason,
        )
