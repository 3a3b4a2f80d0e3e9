"""A judged group as ART trains it: each trained call in its own context, with the tokens that were sampled.

ART skips a turn without log-probabilities silently, so every turn here either becomes a ``Choice`` with them or is left
out with a reason. Of a trajectory only its calls and its score are read: nothing that was known only afterwards.

Log-probabilities of the policy that sampled a reply are always kept (``scoring``); a token of another model has none.

A member that cannot be trained stays in its group as a plain turn, since its score belongs to the group's mean.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from data_bridge.authorship import Lineage, Served, is_cut, plain_names, sampling_of
from data_bridge.models import DECISIONS, AgentTrajectory, Author, ChatMessage, LLMCall, NotText
from data_bridge.quality import Reason
from data_bridge.scoring import MAX_STOP_TOKENS, Scored, Scorer, ScoreRequest

if TYPE_CHECKING:
    import art

MAX_TOKENS = 32_768
"""Tokens of a prompt with its reply: what ART's trainers take by default, and W&B's smallest model."""
_LARGEST_ID, _LEAST_LOGPROB = 2**24, -30.0
"""No vocabulary is as large; and a token less likely is never sampled."""
_ROUNDING = 1e-3
_HOPELESS = math.log(10)
"""A reply each of whose tokens is as many times more or less likely now has nothing to say to this policy."""
BEHAVIOUR = "behaviour"
"""The name under which a token carries what the policy that sampled it said, in ART's ``extra_logprobs``."""


@dataclass(frozen=True, slots=True)
class ConversionRules:
    """Whose tokens are trained, and how old they may be."""

    trainee: str
    policy_step: int = 0
    purposes: tuple[str, ...] = DECISIONS
    foreign: Literal["positive", "all", "none"] = "positive"
    drawn: Collection[str] = ()
    """Names under which our exploration answers, each offer as often: its bad replies teach as well as its good."""
    max_staleness: int = 4
    base_names: Collection[str] = ()
    """Names of the base model, which is step 0 of the trainee."""
    served: tuple[Served, ...] | None = None
    """What the trainee's plain name meant when; None: not known."""

    @property
    def lineage(self) -> Lineage:
        return Lineage(self.trainee, plain_names(self.base_names), self.served)


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Of the tokens that will be trained: how many there are, and which of them need an asterisk."""

    trainable: int = 0
    foreign: int = 0
    rescored: int = 0
    retokenised: int = 0
    """Rescored because the logged tokens were not those of the logged reply."""
    stale: int = 0
    """Sampled by a policy so old that the current one is asked as well; the log's log-probabilities are kept."""
    corrected: int = 0
    """Their log-probabilities were computed again as those of the temperature and top-p that were sampled with."""
    off_temperature: int = 0
    """Sampled at another temperature than their log-probabilities were computed at: their ratio is off."""
    off_top_p: int = 0
    """Sampled from a part of the distribution only, and their log-probabilities are those of the whole."""

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
    fault: str = ""
    """Why the logged tokens cannot be those of the reply."""


async def convert_group(
    members: Sequence[RewardedTrajectory], rules: ConversionRules, scorer: Scorer | None = None
) -> list[Converted]:
    """``members`` in order. Log-probabilities are the log's; where it has none, the scorer's; else a reason."""
    lineage = rules.lineage
    planned = [[_plan(call, member, rules, lineage) for call in _trained_calls(member, rules)] for member in members]
    await _score([call for calls in planned for call in calls if call.request is not None], scorer)
    return [_converted(member, calls, rules) for member, calls in zip(members, planned, strict=True)]


def _trained_calls(member: RewardedTrajectory, rules: ConversionRules) -> list[LLMCall]:
    return [call for call in member.trajectory.llm_calls if call.purpose in rules.purposes]


def _plan(call: LLMCall, member: RewardedTrajectory, rules: ConversionRules, lineage: Lineage) -> _Call:
    """Where the tokens of ``call`` come from. Pure."""
    author = lineage.author(call, member.trajectory)
    planned = _Call(call, author, is_foreign=author.model != rules.trainee)
    only_good = rules.foreign == "positive" and author.model not in rules.drawn
    if planned.is_foreign and rules.foreign == "none":
        planned.skip = _Skip(Reason.FOREIGN, f"written by {author.model or 'an unnamed model'}")
    elif planned.is_foreign and only_good and not member.is_above_mean:
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
            if planned.messages:
                _find_tokens(planned, rules)
            else:
                planned.skip = _Skip(Reason.NO_TRAINABLE_TOKENS, "the call has no prompt")
    return planned


def _find_tokens(planned: _Call, rules: ConversionRules) -> None:
    call = planned.call
    # Another model's tokens may come from another vocabulary: only its text means something here.
    token_ids = () if planned.is_foreign else tuple(call.completion_token_ids or ())
    planned.fault = fault_of_tokens(call, token_ids)
    if planned.fault:
        token_ids = ()
    logprobs = tuple(call.completion_logprobs or ()) if token_ids else ()
    if len(logprobs) != len(token_ids) or not all(_LEAST_LOGPROB <= one <= _ROUNDING for one in logprobs):
        logprobs = ()
    if logprobs:
        planned.tokens = Scored(token_ids, logprobs, "log")
    else:
        planned.skip = _Skip(Reason.TOKENS_DIFFER if planned.fault else Reason.NO_LOGPROBS, planned.fault)
    author = Author(planned.author.model, None) if planned.is_foreign else planned.author
    planned.request = ScoreRequest(
        messages=tuple(planned.messages),
        text=call.response,
        tool_calls=tuple(call.tool_calls or ()),
        token_ids=token_ids,
        logprobs=logprobs,
        is_complete=not is_cut(call, len(token_ids)),
        limit=0 if call.finish_reason else int(call.max_tokens or 0),
        is_stale=author.step is not None and rules.policy_step - author.step > rules.max_staleness,
        logged_at=call.logprobs_temperature or 1.0,
        sampling=sampling_of(call, author, policy_step=rules.policy_step),
    )


def fault_of_tokens(call: LLMCall, token_ids: Sequence[int]) -> str:
    """What no tokenizer is needed to see: ids that no vocabulary has, or more of them than the reply has bytes."""
    if not token_ids:
        return ""
    if min(token_ids) < 0 or max(token_ids) >= _LARGEST_ID:
        return "a logged token id is in no vocabulary"
    room = len(call.response.encode(errors="replace")) + len((call.reasoning or "").encode(errors="replace"))
    if call.tool_calls:
        room += len(json.dumps(call.tool_calls))
    if len(token_ids) > min(room + MAX_STOP_TOKENS, MAX_TOKENS):
        return f"{len(token_ids)} logged token ids for a reply of {len(call.response)} characters"
    return ""


# Scoring and building


async def _score(calls: Sequence[_Call], scorer: Scorer | None) -> None:
    """Fill in what the scorer can; without one, what the log says stands, or the reason why it says nothing."""
    if scorer is None or not calls:
        return
    scores = await scorer.score([call.request for call in calls if call.request is not None])
    for call, scored in zip(calls, scores, strict=True):
        if scored is None and call.fault:
            call.skip = _Skip(Reason.TOKENS_DIFFER, call.fault)
        elif scored is None:
            call.skip = _Skip(Reason.TOO_LONG, "longer than the model's context, or not to be written as its tokens")
        elif not scored.token_ids:
            call.skip = _Skip(Reason.TOKENS_DIFFER, "its token ids say something else than its text and tool calls")
        elif not scored.logprobs:
            call.skip = _Skip(Reason.NO_LOGPROBS, "scoring it would lose what the log says of stale replies beside it")
        elif not all(map(math.isfinite, scored.logprobs)):
            call.skip = _Skip(Reason.ROW_FAULT, "the policy gives its reply a log-probability that is no number")
        elif _is_hopeless(scored):
            call.skip = _Skip(Reason.STALE, "the policy has moved too far from the one that wrote it")
        else:
            call.skip = None
        call.tokens = scored if call.skip is None else None


def _is_hopeless(scored: Scored) -> bool:
    return bool(scored.behaviour) and all(
        abs(now - then) > _HOPELESS for now, then in zip(scored.logprobs, scored.behaviour, strict=True)
    )


def untrained(member: RewardedTrajectory, reason: Reason, detail: str = "") -> Converted:
    """``member`` as one that only counts towards the group's mean."""
    return _built(member, [], [], _Skip(reason, detail))


def _converted(member: RewardedTrajectory, calls: Sequence[_Call], rules: ConversionRules) -> Converted:
    turns = [(call, history) for call in calls if call.tokens is not None and (history := _history(call)) is not None]
    trained, histories = [call for call, _ in turns], [history for _, history in turns]
    skip = next((call.skip for call in calls if call.skip is not None), None)
    if skip is None:
        skip = _Skip(Reason.NO_TRAINABLE_TOKENS, f"no call with purpose {', '.join(rules.purposes)}")
    return _built(member, trained, histories, skip)


def _built(
    member: RewardedTrajectory, trained: Sequence[_Call], histories: list[art.trajectories.History], skip: _Skip
) -> Converted:
    """``member`` for ART; ``skip`` is the reason if nothing of it is trained."""
    import art

    counts = sum((_counts(call) for call in trained), TokenCounts())
    steps = [call.author.step for call in trained if call.author.step is not None]
    trajectory = art.Trajectory(
        messages_and_choices=histories[0].messages_and_choices if histories else list(UNTRAINED),
        additional_histories=histories[1:],
        reward=member.reward,
        initial_policy_version=min(steps, default=None),
        metadata={
            "trajectory_id": member.trajectory.trajectory_id,
            "agent_id": member.trajectory.agent_id,
            "window_id": member.trajectory.window_id,
        },
    )
    return Converted(trajectory, counts) if trained else Converted(trajectory, counts, skip.reason, skip.detail)


def _history(call: _Call) -> art.trajectories.History | None:
    """The call with its context; None, with the reason, if ART's types do not take what the log says of it."""
    import art
    from pydantic import ValidationError

    try:
        messages = [*(message.as_dict() for message in call.messages), _choice(call)]
        return art.trajectories.History(messages_and_choices=messages)
    except ValidationError:
        call.skip = _Skip(Reason.NO_TRAINABLE_TOKENS, "a message or a tool call is not one")
        return None


def _counts(call: _Call) -> TokenCounts:
    assert call.tokens is not None
    assert call.request is not None
    number, request = len(call.tokens.token_ids), call.request
    is_logged = call.tokens.source == "log"
    is_off = not call.is_foreign and not call.tokens.is_corrected
    computed_at = request.logged_at if is_logged else 1.0
    off_temperature = is_off and not math.isclose(request.sampling.temperature, computed_at)
    return TokenCounts(
        trainable=number,
        foreign=number if call.is_foreign else 0,
        rescored=0 if is_logged else number,
        retokenised=number if call.fault or call.tokens.source == "text" else 0,
        stale=number if is_logged and request.is_stale else 0,
        corrected=number if call.tokens.is_corrected else 0,
        off_temperature=number if off_temperature else 0,
        off_top_p=number if is_off and request.sampling.top_p < 1 else 0,
    )


def _choice(call: _Call) -> Any:
    """The reply as ART wants it: ``token_id:N`` with log-probabilities, end of sequence included, tool calls kept."""
    from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
    from openai.types.chat.chat_completion_message import ChatCompletionMessage
    from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob

    assert call.tokens is not None
    tokens = call.tokens
    then: list[dict[str, Any]] = [{}] * len(tokens.token_ids)
    if tokens.behaviour:
        then = [{"extra_logprobs": {BEHAVIOUR: None if math.isnan(one) else one}} for one in tokens.behaviour]
    return Choice(
        index=0,
        finish_reason="tool_calls" if call.call.tool_calls else "stop",
        message=ChatCompletionMessage.model_validate(
            {"role": "assistant", "content": call.call.response, "tool_calls": call.call.tool_calls or None}
        ),
        logprobs=ChoiceLogprobs(
            content=[
                ChatCompletionTokenLogprob(token=f"token_id:{token}", logprob=logprob, top_logprobs=[], **extra)
                for token, logprob, extra in zip(tokens.token_ids, tokens.logprobs, then, strict=True)
            ]
        ),
    )


UNTRAINED = ({"role": "user", "content": ""}, {"role": "assistant", "content": ""})
"""A member that only counts towards the mean: a plain turn, which ART does not train, and nothing of its log."""
