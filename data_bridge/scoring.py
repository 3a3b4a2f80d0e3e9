"""What a scorer is asked and what it answers: the tokens of a logged reply, and how likely two policies say them.

Trained equals said: an agent writes its own log, so logged tokens are trained only if they say the logged reply
(``ScoreRequest.tokens``). Where they say something else, the text, which was judged, is tokenised and scored instead.

Two policies matter for a reply. The *behaviour* policy sampled it; the *proximal* one is where the next update starts.
While the policy has hardly moved they are the same, and the log-probabilities of the log serve for both. Afterwards the
behaviour's are kept, the proximal's are scored, and the step weights each token by their ratio (``packing``).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, Protocol

from data_bridge.authorship import RAW, Sampling
from data_bridge.models import ChatMessage

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_UNSAID = 4
"""Tokens that a reply may have beyond one for each of its bytes: its end, and whitespace that the log left out."""
MAX_STOP_TOKENS = 16
_TOOL_TAGS = re.compile(r"</?tool_call>|<\|python_tag\|>|\[TOOL_CALLS\]|[\s\[\],;]")


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """A logged reply, what the log says of its tokens, and how it was sampled."""

    messages: tuple[ChatMessage, ...]
    text: str
    tool_calls: tuple[dict[str, Any], ...] = ()
    token_ids: tuple[int, ...] = ()
    """What the log calls the sampled tokens. Where it has none, or they say something else, ``text`` is tokenised."""
    logprobs: tuple[float, ...] = ()
    """What the log says of ``token_ids``, kept with them. Empty where the scorer shall compute them."""
    is_complete: bool = True
    """Whether the model ended the reply itself, so that an end of sequence belongs to it."""
    limit: int = 0
    """The most tokens that the reply could have, where nothing says how it ended: as many is a cut. 0: not known."""
    is_stale: bool = False
    """The policy has moved on since: its own log-probabilities are wanted beside the log's."""
    logged_at: float = 1.0
    """The temperature at which ``logprobs`` were computed."""
    sampling: Sampling = RAW
    """The distribution that the reply was drawn from. Its step is None for other models and where it is not known."""

    @property
    def serves_both(self) -> bool:
        """Whether what the log says is also what the current policy says, or near enough."""
        return bool(self.logprobs) and not self.is_stale and self.logged_at == 1.0

    @property
    def is_off(self) -> bool:
        """Whether the log's log-probabilities are not those of the distribution that was sampled from."""
        at = self.logged_at if self.logprobs else 1.0
        return self.sampling.top_p < 1 or not math.isclose(self.sampling.temperature, at)

    def tokens(self, tokenizer: PreTrainedTokenizerBase, *, end: int | None, ends: Collection[int]) -> Scored | None:
        """The tokens of a reply: the log's if they say its text, else those of the text; None if it has none.

        ``end`` is appended to a text that the model ended itself; logged tokens may end with any one of ``ends``. The
        log's log-probabilities come with its tokens; there are none with others.
        """
        said = _tokens_said(tokenizer, self, ends) if self.token_ids else 0
        if said > 1 and not self.is_complete and not self.limit and self.token_ids[said - 1] in ends:
            said -= 1  # the log says that the reply was cut: its end is not the model's
        if said:
            return Scored(self.token_ids[:said], self.logprobs[:said], "log" if self.logprobs else "policy")
        if self.tool_calls:  # only the model that wrote it knows how it spelt its tool calls
            return Scored((), (), "text") if self.token_ids else None
        text = tuple(tokenizer.encode(self.text, add_special_tokens=False))
        is_complete = self.is_complete and not 0 < self.limit <= len(text)
        tokens = (*text, end) if is_complete and end is not None else text
        return Scored(tokens, (), "text" if self.token_ids else "policy") if tokens else None


@dataclass(frozen=True, slots=True)
class Scored:
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of the proximal policy."""
    source: Literal["log", "policy", "text"] = "policy"
    """Who gave them: the log the tokens and what its policy said of them, the policy the log-probabilities, or the
    policy both because the log's tokens said something else than its text. No tokens at all if the text cannot be
    tokenised either."""
    behaviour: tuple[float, ...] = ()
    """Of the policy that sampled the reply, if they differ from ``logprobs``; not a number where it is not known or
    another model's, so that the token enters no ratio. Empty: ``logprobs`` serve for both."""
    is_corrected: bool = False
    """``behaviour`` is of the temperature and top-p that were sampled with."""


class Scorer(Protocol):
    """The current policy, as far as the converter needs it."""

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scored | None]:
        """Tokens and log-probabilities (temperature 1) of each reply, the log's where they say the reply.

        None for one that does not fit the context.
        """
        ...


# What logged tokens say


def _tokens_said(tokenizer: PreTrainedTokenizerBase, request: ScoreRequest, ends: Collection[int]) -> int:
    """How many of the logged tokens say the reply; 0 if they say something else.

    All of them, but for a reply that was cut at a stop string: the log does not name it, so its tokens, which nobody
    judged, are left off. Special tokens are text here, so that none is trained that the reply does not show.
    """
    tokens = list(request.token_ids)
    if max(tokens) >= _size_of(tokenizer):
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
    lengths = range(len(tokens) - 1, max(len(tokens) - MAX_STOP_TOKENS, 1) - 1, -1)
    return next((length for length in lengths if reply.startswith(str(tokenizer.decode(tokens[:length])).strip())), 0)


@lru_cache(maxsize=4)
def _size_of(tokenizer: PreTrainedTokenizerBase) -> int:
    """Of its vocabulary. A tokenizer counts its words anew whenever it is asked, for 16 ms."""
    return len(tokenizer)


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
