"""A judged group as ART trains it: each trained call in its own context, with the tokens that were sampled.

ART skips a turn without log-probabilities silently, so every turn here either becomes a ``Choice`` with
them or is left out with a reason. Nothing of what was known only afterwards is within reach of this module:
it reads the calls of a trajectory and the score, and no other field.

A member that cannot be trained on stays in its group as a plain turn: it was judged together with the
others, so its score belongs to the group's mean, and ART trains nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from data_bridge.models import DECISIONS, AgentTrajectory, Author, ChatMessage, LLMCall, NotText
from data_bridge.quality import Reason

if TYPE_CHECKING:
    import art


@dataclass(frozen=True, slots=True)
class ConversionRules:
    """Whose tokens are trained, and how old they may be."""

    trainee: str
    policy_step: int = 0
    purposes: tuple[str, ...] = DECISIONS
    foreign: Literal["positive", "all", "none"] = "positive"
    max_staleness: int = 4


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A reply whose log-probabilities the current policy shall compute."""

    messages: tuple[ChatMessage, ...]
    text: str
    tool_calls: tuple[dict[str, Any], ...] = ()
    token_ids: tuple[int, ...] = ()
    """The sampled tokens where the log has them; otherwise the scorer tokenises ``text``."""
    is_complete: bool = True
    """Whether the model ended the reply itself, so that an end of sequence belongs to it."""


@dataclass(frozen=True, slots=True)
class Scored:
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class Scorer(Protocol):
    """The current policy, as far as the converter needs it."""

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scored | None]:
        """Tokens and log-probabilities (temperature 1) of each reply; None for one that does not fit the context."""
        ...


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Of the tokens that will be trained: how many there are, and which of them need an asterisk."""

    trainable: int = 0
    foreign: int = 0
    rescored: int = 0
    off_temperature: int = 0
    """Sampled at another temperature than their log-probabilities were computed at: their ratio is off."""

    def __add__(self, other: TokenCounts) -> TokenCounts:
        return TokenCounts(*map(sum, zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, slots=True)
class RewardedTrajectory:
    """One trajectory of a group with its reward and its advantage's sign."""

    trajectory: AgentTrajectory
    reward: float
    is_above_mean: bool


@dataclass(frozen=True, slots=True)
class Converted:
    """A member for ART. ``reason`` is set when nothing of it can be trained."""

    trajectory: art.Trajectory
    counts: TokenCounts
    reason: Reason | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class _Skip:
    reason: Reason
    detail: str = ""


@dataclass(slots=True)
class _Call:
    """One call on its way: its tokens are known, to be scored, or there is a reason why not."""

    call: LLMCall
    author: Author
    messages: list[ChatMessage] = field(default_factory=list)
    tokens: Scored | None = None
    request: ScoreRequest | None = None
    skip: _Skip | None = None
    is_foreign: bool = False


async def convert_group(
    members: Sequence[RewardedTrajectory], rules: ConversionRules, scorer: Scorer | None = None
) -> list[Converted]:
    """``members`` in order. Log-probabilities are the log's; where it has none, the scorer's; else a reason."""
    planned = [[_plan(call, member, rules) for call in _trained_calls(member, rules)] for member in members]
    await _score([call for calls in planned for call in calls if call.request is not None], scorer)
    return [_converted(member, calls, rules) for member, calls in zip(members, planned, strict=True)]


def _trained_calls(member: RewardedTrajectory, rules: ConversionRules) -> list[LLMCall]:
    return [call for call in member.trajectory.llm_calls if call.purpose in rules.purposes]


def _plan(call: LLMCall, member: RewardedTrajectory, rules: ConversionRules) -> _Call:
    """Where the tokens of ``call`` come from. Pure."""
    author = call.author
    planned = _Call(call, author, is_foreign=author.model != rules.trainee)
    if planned.is_foreign and rules.foreign == "none":
        planned.skip = _Skip(Reason.FOREIGN, f"written by {author.model or 'an unnamed model'}")
    elif planned.is_foreign and rules.foreign == "positive" and not member.is_above_mean:
        planned.skip = _Skip(Reason.FOREIGN_NEGATIVE, f"written by {author.model or 'an unnamed model'}")
    elif not call.response and not call.tool_calls and not call.completion_token_ids:
        planned.skip = _Skip(Reason.NO_TRAINABLE_TOKENS, "the call has no reply")
    else:
        try:
            planned.messages = call.seen()
            [message.as_dict() for message in planned.messages]
        except NotText as error:
            planned.skip = _Skip(Reason.NO_TRAINABLE_TOKENS, str(error))
        else:
            _find_tokens(planned, rules)
    return planned


def _find_tokens(planned: _Call, rules: ConversionRules) -> None:
    call = planned.call
    # Another model's tokens may come from another vocabulary: only its text means something here.
    token_ids = () if planned.is_foreign else tuple(call.completion_token_ids or ())
    logprobs = () if planned.is_foreign else tuple(call.completion_logprobs or ())
    is_stale = planned.author.step is not None and rules.policy_step - planned.author.step > rules.max_staleness
    if token_ids and len(logprobs) == len(token_ids) and all(map(math.isfinite, logprobs)) and not is_stale:
        planned.tokens = Scored(token_ids, logprobs)
        return
    planned.skip = _Skip(Reason.STALE) if is_stale and not planned.is_foreign else _Skip(Reason.NO_LOGPROBS)
    planned.request = ScoreRequest(
        messages=tuple(planned.messages),
        text=call.response,
        tool_calls=tuple(call.tool_calls or ()),
        token_ids=token_ids,
        is_complete=not (call.completion_tokens and call.max_tokens and call.completion_tokens >= call.max_tokens),
    )


async def _score(calls: Sequence[_Call], scorer: Scorer | None) -> None:
    """Fill in what the scorer can; without one, or where it cannot, the reason stands."""
    if scorer is None or not calls:
        return
    scores = await scorer.score([call.request for call in calls if call.request is not None])
    for call, scored in zip(calls, scores, strict=True):
        if scored is None:
            call.skip = _Skip(Reason.TOO_LONG, "longer than the model's context, or not to be written as its tokens")
        else:
            call.tokens, call.skip = scored, None


def _converted(member: RewardedTrajectory, calls: Sequence[_Call], rules: ConversionRules) -> Converted:
    import art

    trained = [call for call in calls if call.tokens is not None]
    histories = [[*(message.as_dict() for message in call.messages), _choice(call)] for call in trained]
    counts = sum((_counts(call) for call in trained), TokenCounts())
    steps = [call.author.step for call in trained if call.author.step is not None]
    trajectory = art.Trajectory(
        messages_and_choices=histories[0] if histories else _untrained(member.trajectory),
        additional_histories=[art.trajectories.History(messages_and_choices=rest) for rest in histories[1:]],
        reward=member.reward,
        initial_policy_version=min(steps, default=None),
        metadata={
            "trajectory_id": member.trajectory.trajectory_id,
            "agent_id": member.trajectory.agent_id,
            "window_id": member.trajectory.window_id,
        },
    )
    if trained:
        return Converted(trajectory, counts)
    skip = next((call.skip for call in calls if call.skip is not None), None)
    if skip is None:
        skip = _Skip(Reason.NO_TRAINABLE_TOKENS, f"no call with purpose {', '.join(rules.purposes)}")
    return Converted(trajectory, counts, skip.reason, skip.detail)


def _counts(call: _Call) -> TokenCounts:
    assert call.tokens is not None
    number = len(call.tokens.token_ids)
    computed_at = 1.0 if call.request is not None else call.call.logprobs_temperature or 1.0
    sampled_at = 1.0 if call.call.temperature is None else call.call.temperature
    is_off = not call.is_foreign and not math.isclose(computed_at, sampled_at)
    return TokenCounts(
        trainable=number,
        foreign=number if call.is_foreign else 0,
        rescored=number if call.request is not None else 0,
        off_temperature=number if is_off else 0,
    )


def _choice(call: _Call) -> Any:
    """The reply as ART wants it: ``token_id:N`` with log-probabilities, end of sequence included, tool calls kept."""
    from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
    from openai.types.chat.chat_completion_message import ChatCompletionMessage
    from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob

    assert call.tokens is not None
    return Choice(
        index=0,
        finish_reason="tool_calls" if call.call.tool_calls else "stop",
        message=ChatCompletionMessage.model_validate(
            {"role": "assistant", "content": call.call.response, "tool_calls": call.call.tool_calls or None}
        ),
        logprobs=ChoiceLogprobs(
            content=[
                ChatCompletionTokenLogprob(token=f"token_id:{token}", logprob=logprob, top_logprobs=[])
                for token, logprob in zip(call.tokens.token_ids, call.tokens.logprobs, strict=True)
            ]
        ),
    )


def _untrained(trajectory: AgentTrajectory) -> list[Any]:
    """A member that only counts towards the mean: a plain turn, which ART does not train."""
    for call in trajectory.llm_calls:
        try:
            return [*(message.as_dict() for message in call.seen()), {"role": "assistant", "content": call.response}]
        except NotText:
            continue
    return [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
