"""A judged group as ART trains it: each trained call in its own context, with the tokens that were sampled.

ART skips a turn without log-probabilities silently, so every turn here either becomes a ``Choice`` with them or is left
out with a reason. Of a trajectory only its calls and its score are read: nothing that was known only afterwards.

Trained equals said: an agent writes its own log, so logged tokens are trained only if they say the logged reply
(``ScoreRequest.tokens``). Where they say something else, the text, which was judged, is tokenised and scored instead.

A member that cannot be trained stays in its group as a plain turn, since its score belongs to the group's mean.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from data_bridge.models import DECISIONS, AgentTrajectory, Author, ChatMessage, LLMCall, NotText
from data_bridge.quality import Reason

if TYPE_CHECKING:
    import art
    from transformers import PreTrainedTokenizerBase

MAX_TOKENS = 32_768
"""Tokens of a prompt with its reply: what ART's trainers take by default, and W&B's smallest model."""
_LARGEST_ID, _LEAST_LOGPROB = 2**24, -30.0
"""No vocabulary is as large; and a token less likely is never sampled."""
_ROUNDING = 1e-3
_UNSAID = 4
"""Tokens that a reply may have beyond one for each of its bytes: its end, and whitespace that the log left out."""
_MAX_STOP_TOKENS = 16  # tokens
_TOOL_TAGS = re.compile(r"</?tool_call>|<\|python_tag\|>|\[TOOL_CALLS\]|[\s\[\],;]")


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


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A reply whose log-probabilities the current policy shall compute."""

    messages: tuple[ChatMessage, ...]
    text: str
    tool_calls: tuple[dict[str, Any], ...] = ()
    token_ids: tuple[int, ...] = ()
    """What the log calls the sampled tokens. Where it has none, or they say something else, ``text`` is tokenised."""
    logprobs: tuple[float, ...] = ()
    """What the log says of ``token_ids``, kept with them. Empty where the scorer shall compute them."""
    is_complete: bool = True
    """Whether the model ended the reply itself, so that an end of sequence belongs to it."""

    def tokens(self, tokenizer: PreTrainedTokenizerBase, *, end: int | None, ends: Collection[int]) -> Scored | None:
        """The tokens of a reply: the log's if they say its text, else those of the text; None if it has none.

        ``end`` is appended to a text that the model ended itself; logged tokens may end with any one of ``ends``. The
        log's log-probabilities come with its tokens; there are none with others.
        """
        said = _tokens_said(tokenizer, self, ends) if self.token_ids else 0
        if said:
            return Scored(self.token_ids[:said], self.logprobs[:said], "log" if self.logprobs else "policy")
        if self.tool_calls:  # only the model that wrote it knows how it spelt its tool calls
            return Scored((), (), "text") if self.token_ids else None
        text = tuple(tokenizer.encode(self.text, add_special_tokens=False))
        tokens = (*text, end) if self.is_complete and end is not None else text
        return Scored(tokens, (), "text" if self.token_ids else "policy") if tokens else None


@dataclass(frozen=True, slots=True)
class Scored:
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    source: Literal["log", "policy", "text"] = "policy"
    """Who gave them: the log both, the policy the log-probabilities, or the policy both because the log's tokens
    said something else than its text. No tokens at all if the text cannot be tokenised either."""


class Scorer(Protocol):
    """The current policy, as far as the converter needs it."""

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scored | None]:
        """Tokens and log-probabilities (temperature 1) of each reply, the log's where they say the reply.

        None for one that does not fit the context.
        """
        ...


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """Of the tokens that will be trained: how many there are, and which of them need an asterisk."""

    trainable: int = 0
    foreign: int = 0
    rescored: int = 0
    retokenised: int = 0
    """Rescored because the logged tokens were not those of the logged reply."""
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
    fault: str = ""
    """Why the logged tokens cannot be those of the reply."""


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
    planned.fault = _fault_of_tokens(call, token_ids)
    if planned.fault:
        token_ids = ()
    is_stale = planned.author.step is not None and rules.policy_step - planned.author.step > rules.max_staleness
    logprobs = tuple(call.completion_logprobs or ()) if token_ids and not is_stale else ()
    if len(logprobs) != len(token_ids) or not all(_LEAST_LOGPROB <= one <= _ROUNDING for one in logprobs):
        logprobs = ()
    if logprobs:
        planned.tokens = Scored(token_ids, logprobs, "log")
    elif is_stale and not planned.is_foreign:
        planned.skip = _Skip(Reason.STALE)
    else:
        planned.skip = _Skip(Reason.TOKENS_DIFFER if planned.fault else Reason.NO_LOGPROBS, planned.fault)
    planned.request = ScoreRequest(
        messages=tuple(planned.messages),
        text=call.response,
        tool_calls=tuple(call.tool_calls or ()),
        token_ids=token_ids,
        logprobs=logprobs,
        is_complete=not (call.completion_tokens and call.max_tokens and call.completion_tokens >= call.max_tokens),
    )


def _fault_of_tokens(call: LLMCall, token_ids: Sequence[int]) -> str:
    """What no tokenizer is needed to see: ids that no vocabulary has, or more of them than the reply has bytes."""
    if not token_ids:
        return ""
    if min(token_ids) < 0 or max(token_ids) >= _LARGEST_ID:
        return "a logged token id is in no vocabulary"
    room = len(call.response.encode(errors="replace")) + len((call.reasoning or "").encode(errors="replace"))
    if call.tool_calls:
        room += len(json.dumps(call.tool_calls))
    if len(token_ids) > min(room + _MAX_STOP_TOKENS, MAX_TOKENS):
        return f"{len(token_ids)} logged token ids for a reply of {len(call.response)} characters"
    return ""


# What logged tokens say


def _tokens_said(tokenizer: PreTrainedTokenizerBase, request: ScoreRequest, ends: Collection[int]) -> int:
    """How many of the logged tokens say the reply; 0 if they say something else.

    All of them, but for a reply that was cut at a stop string: the log does not name it, so its tokens, which nobody
    judged, are left off. Special tokens are text here, so that none is trained that the reply does not show.
    """
    tokens = list(request.token_ids)
    if max(tokens) >= len(tokenizer):
        return 0
    is_ended = tokens[-1] in ends
    body = tokens[:-1] if is_ended else tokens
    reply = request.text.strip()
    texts = {str(tokenizer.decode(body)), str(tokenizer.decode(body, clean_up_tokenization_spaces=False))}
    has_room = bool(request.tool_calls) or len(tokens) <= len(request.text.encode(errors="replace")) + _UNSAID
    if has_room and any(_says(text.strip(), reply, request.tool_calls) for text in texts):
        return len(tokens)
    if is_ended or request.tool_calls or not any(text.lstrip().startswith(reply) for text in texts):
        return 0
    lengths = range(len(tokens) - 1, max(len(tokens) - _MAX_STOP_TOKENS, 1) - 1, -1)
    return next((length for length in lengths if reply.startswith(str(tokenizer.decode(tokens[:length])).strip())), 0)


def _says(text: str, reply: str, tool_calls: Sequence[dict[str, Any]]) -> bool:
    """Whether ``text`` is the reply followed by the tool calls as JSON, in the tags of common models, and no more."""
    if not tool_calls:
        return text == reply
    if not text.startswith(reply):
        return False
    end, between, found = len(reply), "", []
    decoder = json.JSONDecoder(object_pairs_hook=_without_doubles)
    try:
        wanted = [(call["function"]["name"], decoder.decode(call["function"]["arguments"])) for call in tool_calls]
        while (start := text.find("{", end)) >= 0:
            between += text[end:start]
            call, end = decoder.raw_decode(text, start)
            found.append((call.pop("name", None), call.pop("arguments", call.pop("parameters", None))))
            if call:
                return False
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
        return False
    return found == wanted and not _TOOL_TAGS.sub("", between + text[end:])


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A name that is given twice would hide the first value from whoever reads the second."""
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name is given twice")
    return dict(pairs)


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
        elif not all(map(math.isfinite, scored.logprobs)):
            call.skip = _Skip(Reason.ROW_FAULT, "the policy gives its reply a log-probability that is no number")
        else:
            call.skip = None
        call.tokens = scored if call.skip is None else None


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
    number = len(call.tokens.token_ids)
    is_rescored = call.tokens.source != "log"
    computed_at = 1.0 if is_rescored else call.call.logprobs_temperature or 1.0
    sampled_at = 1.0 if call.call.temperature is None else call.call.temperature
    is_off = not call.is_foreign and not math.isclose(computed_at, sampled_at)
    return TokenCounts(
        trainable=number,
        foreign=number if call.is_foreign else 0,
        rescored=number if is_rescored else 0,
        retokenised=number if call.fault or call.tokens.source == "text" else 0,
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


UNTRAINED = ({"role": "user", "content": ""}, {"role": "assistant", "content": ""})
"""A member that only counts towards the mean: a plain turn, which ART does not train, and nothing of its log."""
