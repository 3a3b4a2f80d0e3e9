"""What judging costs: list prices, the price of a call, and the estimate before a run.

The list prices come from litellm. Prices change and proxies charge their own, so ``JUDGE_PRICE`` overrides them. A
model without a known price: its tokens are counted and its cost is reported as unknown, never guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import msgspec

from data_bridge.errors import ConfigurationError
from trainer.config.sections import JudgeCostSettings, JudgePriceSettings
from trainer.progress import counted

FIXED_TOKENS = 1_300
"""Tokens of a prompt apart from the agents' text: the rubric, the rules for the reply and the outcomes."""

SAMPLE_SHARE = 0.1
"""Share of the groups that are always judged in two orders, to measure how far scores move between them."""

REPLY_TOKENS = 600
"""Average tokens of one reply: eight explanations of two sentences."""

STEP_TOKENS = 14
"""Tokens of the score of one decision, with its number, where the judge is asked for them."""

_DATED = re.compile(r"-\d{4}-?\d{2}-?\d{2}$")  # a snapshot that is not listed has the price of its family
_TABLE = "model_prices_and_context_window_backup.json"
_WRONG_UNIT = 1_000  # dollars per million tokens: a higher list price is a mistake in the table


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars per million tokens."""

    prompt: float
    completion: float
    cached: float | None = None
    """Of a prompt token that the provider's prefix cache served; None: as any other, so that nothing is too cheap."""

    def cost(self, prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> float:
        cached = self.prompt if self.cached is None else self.cached
        read = (prompt_tokens - cached_tokens) * self.prompt + cached_tokens * cached
        return (read + completion_tokens * self.completion) / 1e6


class _Listed(msgspec.Struct):
    """The columns of litellm's table that we read: US dollars per token."""

    input_cost_per_token: float | None = None
    output_cost_per_token: float | None = None
    cache_read_input_token_cost: float | None = None


@dataclass(frozen=True, slots=True)
class CostEstimate:
    """What judging a run would cost, before anything is paid for. An upper estimate: cached verdicts are free."""

    calls: int
    prompt_tokens: int
    completion_tokens: int
    usd: float | None
    """None if the judge's price is not known."""
    is_llm: bool = True
    least: float = 1.0
    """The share of it that is paid if no group needs a further order but those that measure the judge."""

    def __str__(self) -> str:
        if not self.is_llm:
            return "offline judge: no calls, no cost"
        if self.calls == 0:
            return "nothing to judge: no calls, no cost"
        said = f"{counted(self.calls, 'call')}, {counted(self.prompt_tokens + self.completion_tokens, 'token')}"
        if self.least < 1:
            said = f"at most {said}"
        if self.usd is None:
            return f"{said}, price unknown (set JUDGE_PRICE)"
        said += f", about ${self.usd:.2f}"
        return f"{said} (${self.usd * self.least:.2f} if one order settles the ranking)" if self.least < 1 else said


def uses_llm(settings: JudgePriceSettings) -> bool:
    """Whether these settings select the LLM judge; ``auto`` selects it when a model is set."""
    if settings.judge not in ("auto", "llm", "outcome", "reward"):
        raise ConfigurationError(f"--judge must be outcome, reward, llm or auto, not {settings.judge!r}.")
    return settings.judge == "llm" or (settings.judge == "auto" and settings.judge_model is not None)


def uses_reward(settings: JudgePriceSettings) -> bool:
    """Whether these settings select the judge by results; in a world that is no market ``auto`` is this one."""
    return settings.judge == "reward"


def price_of(settings: JudgePriceSettings) -> Price | None:
    """The judge's price: from JUDGE_PRICE, else from the table, else None."""
    if settings.price is not None:
        return _parse_price(settings.price)
    model = settings.judge_model or ""
    listed = _list_prices().get(model) or _list_prices().get(_DATED.sub("", model))
    if listed is None:
        return None
    prompt, completion, cached = (
        round((usd or 0.0) * 1e6, 6)
        for usd in (listed.input_cost_per_token, listed.output_cost_per_token, listed.cache_read_input_token_cost)
    )
    if not (0 < prompt < _WRONG_UNIT and 0 < completion < _WRONG_UNIT):
        return None
    return Price(prompt, completion, cached if 0 < cached <= prompt else None)


@cache
def _list_prices() -> dict[str, _Listed]:
    """The table in litellm's folder, by model. Empty if litellm is not installed.

    Only the file is read: importing the package takes seconds and fetches the table from the network.
    """
    package = find_spec("litellm")
    folders = (package.submodule_search_locations if package else None) or []
    try:
        return msgspec.json.decode((Path(folders[0]) / _TABLE).read_bytes(), type=dict[str, _Listed])
    except (IndexError, OSError, msgspec.MsgspecError):
        return {}


def is_priced(settings: JudgePriceSettings) -> bool:
    """Whether the judge's cost is known in dollars; the offline judge costs nothing."""
    return not uses_llm(settings) or price_of(settings) is not None


def estimate(groups: int, judge_tokens: int, settings: JudgeCostSettings, *, scored_decisions: int = 0) -> CostEstimate:
    """The cost of judging ``groups`` groups whose agents' text has ``judge_tokens`` tokens in total.

    The text counts once for each pass and each order that may be asked for; a prompt is never longer than
    ``--judge-context``. ``scored_decisions`` are those that the judge scores by themselves, once in each order: of two
    passes only the first is asked for them.
    """
    if not uses_llm(settings):
        return CostEstimate(0, 0, 0, 0.0, is_llm=False)
    price = price_of(settings)
    if groups == 0:
        return CostEstimate(0, 0, 0, 0.0)
    times = settings.judge_orders * settings.judge_passes
    calls = groups * times
    shown = min(groups * FIXED_TOKENS + judge_tokens, groups * settings.judge_context)
    prompt = shown * times
    completion = calls * REPLY_TOKENS + scored_decisions * STEP_TOKENS * settings.judge_orders
    is_adaptive = settings.judge_order_rule == "adaptive" and settings.judge_orders > 1
    least = (1 + SAMPLE_SHARE) / settings.judge_orders if is_adaptive else 1.0
    return CostEstimate(
        calls, prompt, completion, None if price is None else price.cost(prompt, completion), least=least
    )


def _parse_price(text: str) -> Price:
    number = r"\s*(\d+(?:\.\d+)?)\s*"
    match = re.fullmatch(f"{number}/{number}(?:/{number})?", text)
    prices = [float(part) for part in match.groups() if part is not None] if match else []
    if not prices or (len(prices) == 3 and prices[2] > prices[0]):
        raise ConfigurationError(
            "JUDGE_PRICE must be INPUT/OUTPUT dollars per million tokens, e.g. 0.25/2, or INPUT/OUTPUT/CACHED "
            f"(got {text!r})."
        )
    return Price(*prices)
