"""Opens the judge that the settings select."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

from data_bridge.database import GONE_AFTER, Database
from data_bridge.errors import ConfigurationError
from data_bridge.quality import Measurable
from data_bridge.redaction import redact
from trainer.config.derived import judge_key
from trainer.config.sections import JudgePriceSettings, JudgeSecrets, JudgeSettings
from trainer.judge.adaptive import OrderNoise, OrderRule
from trainer.judge.calls import PaidCalls
from trainer.judge.client import Endpoint, Structure
from trainer.judge.cost import price_of, uses_llm, uses_reward
from trainer.judge.limits import Budget, Limiter, Retry, SharedBudget
from trainer.judge.outcome import IDENTITY, MEASURED_BY_OUTCOME, OutcomeJudge
from trainer.judge.prompt import PROMPT_VERSION, load_rubric
from trainer.judge.reward import IDENTITY_OF_REWARD, MEASURED, RewardJudge
from trainer.judge.ruler import LlmJudge
from trainer.judge.writing import PaidText
from trainer.ledger.order_decisions import MemoryDecisions, PostgresDecisions
from trainer.ledger.shared_budget import JobBudget
from trainer.ledger.verdicts import LEASE, MemoryVerdicts, VerdictStore, open_verdicts
from trainer.probed import HttpProbe, ProbedServer
from trainer.types import TWO_PASSES, WITH_STEPS, Judge, JudgeIdentity


@dataclass(frozen=True, slots=True)
class WorkerShare:
    """What one of several processes that judge for one run may use of what they have together."""

    holder: str
    """Its name in the claims on verdicts."""
    calls: int
    """Its part of ``--judge-concurrency``."""
    budget: JobBudget
    """The ceiling of cost, if there is one."""
    noise: OrderNoise
    """What is known of the judge, the same for all of them, so that it does not matter which one asks."""


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
    shares: WorkerShare | None = None,
) -> AsyncIterator[LlmJudge | OutcomeJudge | RewardJudge]:
    """The judge of ``settings``. Without a database its verdicts are kept for this process only.

    ``run_id`` is the run that pays: what its earlier attempts spent counts towards ``--max-cost``.
    ``purpose`` is part of the verdicts' key: the same group under another purpose is judged, and paid for, again.
    The new judge shares the limits on cost and on calls in flight with the judge given as ``beside``.
    ``with_steps``: an LLM scores each decision too (--step-credit); the offline judge always does.
    ``shares``: this is one of several processes that judge for the same run.
    """
    async with AsyncExitStack() as stack:
        store: VerdictStore = MemoryVerdicts()
        if database is not None:
            holder = None if shares is None else shares.holder
            store = await stack.enter_async_context(open_verdicts(database, run_id, lease, holder))
        if not uses_llm(settings):
            offline = RewardJudge if uses_reward(settings) else OutcomeJudge
            yield offline(store if database is not None else None, settings.purposes)
            return
        refuse_unusable(settings, secrets)
        identity = identity_of(settings, with_steps=with_steps)
        retry = retry or _retry(settings, database)
        calls = await _paid_calls(settings, secrets, store, stack, beside, retry, Structure.JSON_SCHEMA)
        shared = beside if isinstance(beside, LlmJudge) else None
        concurrency = settings.judge_concurrency if shares is None else shares.calls
        if shares is not None:
            calls.limiter = Limiter(concurrency)
            if settings.max_cost is not None:
                calls.budget = SharedBudget(settings.max_cost, shares.budget)
        decisions = MemoryDecisions() if database is None else PostgresDecisions(database, run_id)
        orders = OrderRule(settings.judge_orders, settings.judge_order_rule == "adaptive", decisions)
        if shares is None:
            await orders.remember(identity)
        else:
            orders.noise = shares.noise
        yield LlmJudge(
            identity=identity,
            rubric=load_rubric(settings.rubric),
            calls=calls,
            store=store,
            orders=orders,
            context_tokens=settings.judge_context,
            claims=shared.claims if shared else Limiter(2 * concurrency),
            purposes=settings.purposes,
            purpose=purpose,
            passes=settings.judge_passes,
            with_steps=with_steps,
            skips_equal=settings.judge_order_rule == "adaptive",
        )


@asynccontextmanager
async def open_writing(
    settings: JudgeSettings,
    secrets: JudgeSecrets,
    database: Database | None,
    run_id: str,
    *,
    retry: Retry | None = None,
    beside: Judge | None = None,
) -> AsyncIterator[PaidText | None]:
    """Free text from the judge's model, under the same limits as its verdicts; None with the offline judge."""
    if not uses_llm(settings):
        yield None
        return
    refuse_unusable(settings, secrets)
    async with AsyncExitStack() as stack:
        store: VerdictStore = MemoryVerdicts()
        if database is not None:
            store = await stack.enter_async_context(open_verdicts(database, run_id))
        retry = retry or _retry(settings, database)
        calls = await _paid_calls(settings, secrets, store, stack, beside, retry, Structure.TEXT)
        yield PaidText(calls, identity_of(settings))


def _retry(settings: JudgeSettings, database: Database | None) -> Retry:
    gone_after = GONE_AFTER if database is None else database.gone_after
    return Retry(settings.judge_attempts, gone_after=gone_after.total_seconds())


async def _paid_calls(
    settings: JudgeSettings,
    secrets: JudgeSecrets,
    store: VerdictStore,
    stack: AsyncExitStack,
    beside: Judge | None,
    retry: Retry,
    structure: Structure,
) -> PaidCalls:
    endpoint = Endpoint(
        model=identity_of(settings).judge,
        base_url=settings.judge_base_url,
        api_key=_key(settings, secrets),
        timeout=settings.judge_timeout,
        reply_tokens=settings.judge_reply_tokens,
        structure=structure,
    )
    stack.push_async_callback(endpoint.close)
    probe = HttpProbe(endpoint.base_url)
    stack.push_async_callback(probe.close)
    server = ProbedServer("The judge", probe, retry.gone_after, needs_proof=True)
    stack.push_async_callback(server.close)
    shared = beside if isinstance(beside, LlmJudge) else None
    return PaidCalls(
        endpoint=endpoint,
        store=store,
        reply_tokens=settings.judge_reply_tokens,
        price=price_of(settings),
        budget=shared.budget if shared else Budget(settings.max_cost, spent=await store.spent()),
        limiter=shared.limiter if shared else Limiter(settings.judge_concurrency),
        retry=retry,
        server=server,
    )


async def known_noise(
    settings: JudgeSettings, database: Database, run_id: str, *, with_steps: bool
) -> tuple[float, int]:
    """What earlier runs have measured of how far this judge's scores move between orders, for ``WorkerShare.noise``."""
    if not uses_llm(settings):
        return (0.0, 0)
    rule = OrderRule(settings.judge_orders, True, PostgresDecisions(database, run_id))
    await rule.remember(identity_of(settings, with_steps=with_steps))
    return rule.noise.measured


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
        return IDENTITY_OF_REWARD if uses_reward(settings) else IDENTITY
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


def measured_by(settings: JudgePriceSettings) -> Measurable | None:
    """Which trajectories the judge of ``settings`` can score; None if all, as an LLM reads them."""
    if uses_llm(settings):
        return None
    return MEASURED if uses_reward(settings) else MEASURED_BY_OUTCOME


def describe(identity: JudgeIdentity) -> str:
    """The sentence about the judge in every report."""
    if identity == IDENTITY_OF_REWARD:
        return "Judged by results, as the world measures success: a stand-in, not an LLM."
    if not identity.is_llm:
        return "Judged offline by profit at the game's prices, risk and valid actions: a stand-in, not an LLM."
    how = ", in two passes" if identity.has_two_passes else ""
    how += ", decision by decision" if identity.scores_steps else ""
    return f"Judged by {identity.judge} with the rubric {identity.rubric} (version {identity.rubric_version}){how}."
