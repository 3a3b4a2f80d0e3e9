"""Opens the judge that the settings select."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from urllib.parse import urlsplit

from data_bridge.database import Database
from data_bridge.errors import ConfigurationError
from data_bridge.quality import Measured
from data_bridge.redaction import redact
from trainer.config.derived import judge_key
from trainer.config.sections import JudgePriceSettings, JudgeSecrets, JudgeSettings
from trainer.judge.adaptive import OrderRule
from trainer.judge.calls import PaidCalls
from trainer.judge.client import Endpoint
from trainer.judge.cost import price_of, uses_llm
from trainer.judge.limits import Budget, Limiter, Retry
from trainer.judge.outcome import IDENTITY, OutcomeJudge, assess
from trainer.judge.prompt import PROMPT_VERSION, load_rubric
from trainer.judge.ruler import LlmJudge
from trainer.ledger.order_decisions import MemoryDecisions, PostgresDecisions
from trainer.ledger.verdicts import LEASE, MemoryVerdicts, VerdictStore, open_verdicts
from trainer.types import TWO_PASSES, WITH_STEPS, Judge, JudgeIdentity


@asynccontextmanager
async def open_judge(
    settings: JudgeSettings,
    secrets: JudgeSecrets,
    database: Database | None,
    run_id: str,
    *,
    purpose: str = "",
    retry: Retry | None = None,
    lease: timedelta = LEASE,
    beside: Judge | None = None,
    with_steps: bool = False,
) -> AsyncIterator[LlmJudge | OutcomeJudge]:
    """The judge of ``settings``. Without a database its verdicts are kept for this process only.

    ``run_id`` is the run that pays: what its earlier attempts spent counts towards ``--max-cost``.
    ``purpose`` is part of the verdicts' key: the same group under another purpose is judged, and paid for, again.
    The new judge shares the limits on cost and on calls in flight with the judge given as ``beside``.
    ``with_steps``: an LLM scores each decision too (--step-credit); the offline judge always does.
    """
    async with AsyncExitStack() as stack:
        store: VerdictStore = MemoryVerdicts()
        if database is not None:
            store = await stack.enter_async_context(open_verdicts(database, run_id, lease))
        if not uses_llm(settings):
            yield OutcomeJudge(store if database is not None else None, settings.purposes)
            return
        refuse_unusable(settings, secrets)
        identity = identity_of(settings, with_steps=with_steps)
        endpoint = Endpoint(
            model=identity.judge,
            base_url=settings.judge_base_url,
            api_key=_key(settings, secrets),
            timeout=settings.judge_timeout,
            reply_tokens=settings.judge_reply_tokens,
        )
        stack.push_async_callback(endpoint.close)
        shared = beside if isinstance(beside, LlmJudge) else None
        calls = PaidCalls(
            endpoint=endpoint,
            store=store,
            reply_tokens=settings.judge_reply_tokens,
            price=price_of(settings),
            budget=shared.budget if shared else Budget(settings.max_cost, spent=await store.spent()),
            limiter=shared.limiter if shared else Limiter(settings.judge_concurrency),
            retry=retry or Retry(attempts=settings.judge_attempts),
        )
        decisions = MemoryDecisions() if database is None else PostgresDecisions(database, run_id)
        orders = OrderRule(settings.judge_orders, settings.judge_order_rule == "adaptive", decisions)
        await orders.remember(identity)
        yield LlmJudge(
            identity=identity,
            rubric=load_rubric(settings.rubric),
            calls=calls,
            store=store,
            orders=orders,
            context_tokens=settings.judge_context,
            claims=shared.claims if shared else Limiter(2 * settings.judge_concurrency),
            purposes=settings.purposes,
            purpose=purpose,
            passes=settings.judge_passes,
            with_steps=with_steps,
            skips_equal=settings.judge_order_rule == "adaptive",
        )


def refuse_unusable(settings: JudgeSettings, secrets: JudgeSecrets) -> None:
    """ConfigurationError for settings that are certain to fail, before anything is opened, played or paid for."""
    if not uses_llm(settings):
        if settings.judge_passes == 2:
            raise ConfigurationError(
                "--judge-passes 2 needs an LLM: the offline judge knows nothing but the outcome; set JUDGE_MODEL."
            )
        return
    identity_of(settings)
    _key(settings, secrets)
    if settings.judge_base_url is not None and not _is_address(settings.judge_base_url):
        raise ConfigurationError(
            "JUDGE_BASE_URL must be the address of an endpoint, such as http://127.0.0.1:8000/v1 "
            f"(got {redact(repr(settings.judge_base_url))})."
        )
    if price_of(settings) is None and settings.max_cost is not None:
        raise ConfigurationError(
            f"--max-cost needs the price of {settings.judge_model}: set JUDGE_PRICE to INPUT/OUTPUT dollars "
            "per million tokens."
        )


def _key(settings: JudgeSettings, secrets: JudgeSecrets) -> str:
    """The judge's key without the line break at the end of many secret files."""
    key = judge_key(secrets, settings.judge_base_url).strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigurationError("The judge's key contains an invalid character: check JUDGE_API_KEY.")
    return key


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # also raised for an invalid port
        return False


def identity_of(settings: JudgeSettings, *, with_steps: bool = False) -> JudgeIdentity:
    """Which judge and rubric these settings select, without opening anything."""
    if not uses_llm(settings):
        return IDENTITY
    if not settings.judge_model:
        raise ConfigurationError("--judge llm needs JUDGE_MODEL: name the model that judges.")
    rubric = load_rubric(settings.rubric)
    asked = (WITH_STEPS if with_steps else "") + (TWO_PASSES if settings.judge_passes == 2 else "")
    return JudgeIdentity(
        judge=settings.judge_model,
        rubric=rubric.name,
        rubric_version=rubric.version,
        prompt_version=f"{PROMPT_VERSION}{asked}",
        is_llm=True,
    )


def measured_by(settings: JudgePriceSettings) -> Measured | None:
    """Which trajectories the judge of ``settings`` can score; None if all, as an LLM reads them."""
    if uses_llm(settings):
        return None
    return lambda trajectory, outcomes: assess(trajectory, outcomes) is not None


def describe(identity: JudgeIdentity) -> str:
    """The sentence about the judge in every report."""
    if not identity.is_llm:
        return "Judged offline by profit at the game's prices, risk and valid actions: a stand-in, not an LLM."
    how = ", in two passes" if identity.has_two_passes else ""
    how += ", decision by decision" if identity.scores_steps else ""
    return f"Judged by {identity.judge} with the rubric {identity.rubric} (version {identity.rubric_version}){how}."
