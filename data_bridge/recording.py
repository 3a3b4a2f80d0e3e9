"""One trajectory while it is recorded: steps, model calls and actions, and finally the row that is stored.

The JSON has exactly the keys that the game's recorder writes, plus token ids and log-probabilities where the
caller has them. The window is the hour in which the trajectory starts: the agent decides on what it saw then.

A value of the wrong type is rejected here, where the agent's author sees it: delivery happens later and elsewhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from types import UnionType
from typing import Any, Self, SupportsFloat

import msgspec

from data_bridge.models import Action, ChatMessage, EnvironmentState, LLMCall
from data_bridge.trajectory_rows import TrajectoryRow, metrics_of, snowflake_id, to_json
from data_bridge.window_ids import in_utc, window_of

current_step: ContextVar[StepRecording | None] = ContextVar("current_step", default=None)
"""The step whose ``async with`` block is running; recorded model clients log their calls to it."""

_MAX_MS = 2**31 - 1  # maximum of the column: 24 days
Store = Callable[[TrajectoryRow], Awaitable[None]]


class StepRecording:
    """One decision. In an ``async with`` block, recorded clients log to it; an unfinished step is stored as pending."""

    def __init__(self, trajectory: TrajectoryRecording, state: dict[str, Any], at: datetime) -> None:
        self._trajectory = trajectory
        self.at = in_utc(at)
        """The decision's time, in the game's clock."""
        self._json: dict[str, Any] = {
            "stepNumber": 0,
            "timestamp": _milliseconds(at),
            "environmentState": state,
            "providerAccesses": [],
            "llmCalls": [],
        }
        self._token: Token[StepRecording | None] | None = None

    @property
    def agent_id(self) -> str:
        return self._trajectory.agent_id

    @property
    def role(self) -> str | None:
        """As the state of its accounts names it."""
        role = self._json["environmentState"].get("role")
        return role if isinstance(role, str) else None

    @property
    def is_complete(self) -> bool:
        return "action" in self._json

    def log_provider_access(self, provider_name: str, data: Mapping[str, Any], purpose: str) -> None:
        """Log what the agent looked up before it decided."""
        self._json["providerAccesses"].append({"providerName": provider_name, "data": dict(data), "purpose": purpose})

    def log_llm_call(self, call: LLMCall) -> None:
        """Log one call of the agent's model, with token ids and log-probabilities if they are known."""
        ids, logprobs = call.completion_token_ids, call.completion_logprobs
        if ids is not None and logprobs is not None and len(ids) != len(logprobs):
            raise ValueError(f"{len(ids)} completion token ids but {len(logprobs)} log-probabilities: give one per id.")
        self._json["llmCalls"].append(_call_json(call))

    def complete_step(self, action: Action, reward: float = 0.0) -> None:
        """Finish the step with its action. The step is recorded only after this."""
        if self.is_complete:
            raise RuntimeError(f"A step of trajectory {self._trajectory.trajectory_id} was completed twice.")
        steps = self._trajectory._steps
        earned = _figure(reward, "reward")
        self._json |= {"stepNumber": len(steps), "action": _action_json(action), "reward": earned}
        steps.append(self._json)

    async def __aenter__(self) -> Self:
        self._token = current_step.set(self)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if self._token is not None:
            current_step.reset(self._token)
        if not self.is_complete:
            said = f"{kind.__name__}: {error}" if kind is not None else "the step was left without an action"
            self.complete_step(Action(action_type="pending", success=False, error=said))


class TrajectoryRecording:
    """One agent's trajectory in a window. An ``async with`` block ends it automatically, also after an exception."""

    def __init__(
        self,
        store: Store,
        agent_id: str,
        *,
        started_at: datetime,
        window_id: str | None,
        window_hours: int,
        scenario_id: str | None,
        agent_name: str | None,
        is_training_data: bool,
        is_evaluation: bool,
        trajectory_id: str | None = None,
        row_id: str | None = None,
    ) -> None:
        self.trajectory_id = trajectory_id = trajectory_id or snowflake_id()
        self._row_id = row_id = row_id or snowflake_id()
        self.agent_id = agent_id
        self.window_id = window_id = window_id or window_of(started_at)
        _refuse_other_types(str, agent_id=agent_id, trajectory_id=trajectory_id, row_id=row_id, window_id=window_id)
        _refuse_other_types(int, window_hours=window_hours)
        _refuse_other_types(str | None, scenario_id=scenario_id, agent_name=agent_name)
        _refuse_other_types(bool, is_training_data=is_training_data, is_evaluation=is_evaluation)
        self._store = store
        self._started_at = started_at
        self._window_hours = window_hours
        self._scenario_id = scenario_id
        self._agent_name = agent_name
        self._is_training_data = is_training_data
        self._is_evaluation = is_evaluation
        self._steps: list[dict[str, Any]] = []
        self._unstored: TrajectoryRow | None = None
        self._ended = False

    def step(self, state: EnvironmentState | Mapping[str, Any], *, at: datetime | None = None) -> StepRecording:
        """Begin a step in this state of the agent's accounts (keys: ``agentBalance``, ``agentPnL``, …)."""
        books = msgspec.to_builtins(state) if isinstance(state, EnvironmentState) else dict(state)
        return StepRecording(self, books, at or datetime.now(UTC))

    async def end_trajectory(
        self,
        *,
        final_balance: float | None = None,
        final_pnl: float | None = None,
        game_knowledge: Mapping[str, Any] | None = None,
        at: datetime | None = None,
        recorded_at: datetime | None = None,
    ) -> str:
        """Finish and store; returns the trajectory id. After that, not even ``kill -9`` loses the row.

        Balance and P&L are the agent's lifetime figures after the last step. ``game_knowledge`` is stored for the game
        only: what an agent's row says is never shown to the judge as truth. ``recorded_at`` defaults to now; set it if
        the agents use a simulated clock. After an OSError (for example, the disk is full) it may be called again.
        """
        if self._ended:
            raise RuntimeError(f"Trajectory {self.trajectory_id} has already ended.")
        now = datetime.now(UTC)
        balance, pnl = _known_figure(final_balance, "final_balance"), _known_figure(final_pnl, "final_pnl")
        self._unstored = self._row(balance, pnl, game_knowledge or {}, at or now, recorded_at or now)
        await self._put_away(self._unstored)
        return self.trajectory_id

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._ended:
            return
        if self._unstored is not None:  # it has ended, but could not be stored
            await self._put_away(self._unstored)
        else:
            await self.end_trajectory()

    async def _put_away(self, row: TrajectoryRow) -> None:
        self._ended = True  # before waiting: of two concurrent calls only one stores
        try:
            await self._store(row)
        except BaseException:
            self._ended = False
            raise

    def _row(
        self,
        balance: float | None,
        pnl: float | None,
        game_knowledge: Mapping[str, Any],
        at: datetime,
        recorded_at: datetime,
    ) -> TrajectoryRow:
        kinds = [step["action"]["actionType"].upper() for step in self._steps]
        errors = sum(not step["action"]["success"] for step in self._steps)
        reward = float(sum(step["reward"] for step in self._steps))
        metrics = metrics_of(kinds, len(self._steps), errors, balance, pnl)
        scenario = self._scenario_id or self.window_id
        return TrajectoryRow(
            id=self._row_id,
            trajectory_id=self.trajectory_id,
            agent_id=self.agent_id,
            start_time=self._started_at,
            end_time=at,
            duration_ms=min(max(_milliseconds(at) - _milliseconds(self._started_at), 0), _MAX_MS),
            window_id=self.window_id,
            window_hours=self._window_hours,
            episode_id=f"{scenario}-{_milliseconds(at)}"[:100],
            scenario_id=scenario,
            steps_json=to_json(self._steps),
            reward_components_json=to_json({"environmentReward": reward}),
            metrics_json=to_json({name: figure for name, figure in metrics.items() if figure is not None}),
            metadata_json=to_json({"isTrainingData": self._is_training_data, "gameKnowledge": game_knowledge}),
            total_reward=reward,
            episode_length=len(self._steps),
            final_status=metrics["finalStatus"],
            final_balance=balance,
            final_pnl=pnl,
            trades_executed=metrics["tradesExecuted"],
            posts_created=metrics["postsCreated"],
            is_training_data=self._is_training_data,
            is_evaluation=self._is_evaluation,
            recorded_at=recorded_at,
            agent_name=self._agent_name,
        )


def _call_json(call: LLMCall) -> dict[str, Any]:
    """Keys that every reader of the game expects are always present; the others only when known."""
    system, user = call.system_prompt, call.user_prompt
    if call.messages and not (system or user):
        system, user = last_text(call.messages, "system"), last_text(call.messages, "user")
    always = {
        "model": call.model,
        "systemPrompt": system,
        "userPrompt": user,
        "response": call.response,
        "temperature": 1 if call.temperature is None else call.temperature,
        "maxTokens": call.max_tokens or 0,
        "purpose": call.purpose,
    }
    return {**_plain(call), **always}


def last_text(messages: Sequence[ChatMessage], role: str) -> str:
    """The last plain-text message of ``role``; empty if there is none."""
    texts = [message.content for message in messages if message.role == role and isinstance(message.content, str)]
    return texts[-1] if texts else ""


def _action_json(action: Action) -> dict[str, Any]:
    always = {"actionType": action.action_type, "parameters": action.parameters, "success": action.success}
    return {**always, **_plain(action)}


def _plain(value: LLMCall | Action) -> dict[str, Any]:
    """The value as JSON. TypeError if a field has the wrong type; a struct does not check that when it is created."""
    plain: dict[str, Any] = msgspec.to_builtins(value)
    try:
        msgspec.convert(plain, type(value))
    except msgspec.ValidationError as error:
        raise TypeError(f"This {type(value).__name__} cannot be recorded: {error}.") from error
    return plain


def _figure(value: object, name: str) -> float:
    """Any number as the column's float: agents also use Decimals and numpy's types."""
    if not isinstance(value, SupportsFloat):
        raise TypeError(f"{name} must be a number, not {value!r}.")
    return float(value)


def _known_figure(value: object, name: str) -> float | None:
    return None if value is None else _figure(value, name)


def _refuse_other_types(kind: type | UnionType, **given: object) -> None:
    for name, value in given.items():
        if not isinstance(value, kind):
            raise TypeError(f"{name} must be {getattr(kind, '__name__', kind)}, not {value!r}.")


def _milliseconds(moment: datetime) -> int:
    return round(in_utc(moment).timestamp() * 1000)
