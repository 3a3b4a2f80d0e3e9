"""Compares candidate and incumbent, and other policies, on windows that came after everything trained.

    later windows → decision points → a reply of every policy → its result → anonymous groups → judge
    → differences at each point → one number per window → intervals

``blind_trial`` asks and judges, ``comparison`` computes, ``reading`` asks what needs no judge; this module reads the
windows and stores the result.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from data_bridge.database import Database
from data_bridge.errors import NotEnoughData
from data_bridge.quality import CheckedWindow, check
from data_bridge.reader import WindowReader
from data_bridge.window_ids import start_of
from trainer.config.derived import window_rules
from trainer.config.sections import EvaluatedWindows, ReadinessSettings
from trainer.config.training import EvaluationSettings
from trainer.evaluate.adapter_replay import AdapterReplay
from trainer.evaluate.blind_trial import (
    GreedyPolicy,
    LoggedPolicy,
    ModelPolicy,
    OthersPolicy,
    agents_temperature,
    compare_policies,
)
from trainer.evaluate.comparison import Contestant, TrialPlan, TrialResult, summarise
from trainer.evaluate.lessoned import LessonedPolicy, LessonSide, lessoned
from trainer.evaluate.prompted import PromptedPolicy, PromptSide, prompted
from trainer.evaluate.rare_states import rarest_states
from trainer.evaluate.reading import reading_test, unseen_names
from trainer.evaluate.simulated_replay import NewsScript, RandomScript, load_replay
from trainer.evidence import Evaluation, Role
from trainer.inference.divergence import MeasureKL, SampledReplies
from trainer.ledger.checkpoints import find_checkpoint
from trainer.ledger.evaluations import first_consulted, last_trained, save
from trainer.ledger.lesson_admissions import Admission
from trainer.ledger.prompts import learnt_until
from trainer.types import ChatModel, Checkpoint, Judge, Release

logger = logging.getLogger(__name__)


async def evaluate_release(
    database: Database,
    plan: TrialPlan,
    candidate: Release,
    incumbent: Release | None,
    models: Mapping[Role, ChatModel],
    judge: Judge,
    run_id: str | None,
    *,
    training_judge: str,
    windows: Sequence[CheckedWindow],
    measure_kl: MeasureKL | None,
    reading_base: ChatModel | None = None,
    lessons: LessonSide | None = None,
    prompts: PromptSide | None = None,
    say: Callable[[str], None] = logger.info,
) -> Evaluation:
    """Compare the ``models`` and their controls on ``windows`` (see ``evaluation_windows``); the result is stored.

    ``measure_kl`` is given if the candidate runs on this machine, ``reading_base`` if the base model's replies to the
    questions of the reading test, the same in every evaluation, may be known already. ``lessons`` are needed if
    either release has a lessons policy, ``prompts`` if either has a prompt version. ``say`` gets a line at a time while
    it works.
    """
    replay = await load_replay(database, [window.window.window_id for window in windows])
    policies: dict[Role, Contestant] = {role: ModelPolicy(model) for role, model in models.items()}
    if lessons is not None:
        barred = {window.window.window_id for window in windows}
        policies |= lessoned(models, policies, candidate, incumbent, lessons, database, barred, plan.seed)
    if prompts is not None:
        names = {Role.CANDIDATE: candidate.name, Role.INCUMBENT: incumbent.name if incumbent is not None else ""}
        policies |= prompted(policies, prompts, names, plan.seed)
    policies[Role.GREEDY] = GreedyPolicy(models.get(Role.BASE, models[Role.INCUMBENT]))
    others = OthersPolicy(windows, plan.purposes)
    policies[Role.RANDOM] = RandomScript(replay, others) if replay is not None else others
    policies[Role.BASELINE] = NewsScript(replay) if replay is not None else LoggedPolicy()
    result = await compare_policies(windows, policies, judge, plan, replay or _adapter_of(windows))
    reading = None
    if replay is not None and plan.questions:
        heat = agents_temperature(windows, plan)
        asked_again = reading_base or models.get(Role.BASE, models[Role.INCUMBENT])
        reading = await reading_test(
            models, asked_again, result.compared, replay, temperature=heat, number=plan.questions, say=say
        )
    base = Role.BASE if Role.BASE in models else Role.INCUMBENT
    evaluation = summarise(
        result,
        policies,
        plan,
        judge,
        candidate=candidate,
        incumbent=incumbent,
        run_id=run_id,
        training_judge=training_judge,
        kl_from_base=await measure_kl(_sampled(result, policies[Role.CANDIDATE])) if measure_kl is not None else None,
        reading=reading,
        narrowing=unseen_names(reading, replay.rules.unseen_names)
        if reading is not None and replay is not None
        else rarest_states(windows, result.compared, base, plan.purposes),
    )
    if replay is not None:
        evaluation = replace(evaluation, measure=replay.rules.measure)
    await save(database, evaluation)
    return evaluation


def _adapter_of(windows: Sequence[CheckedWindow]) -> AdapterReplay | None:
    """A replay by the world's adapter, where it can read replies."""
    world = next((window.world for window in windows), None)
    return AdapterReplay(world) if world is not None and world.can_parse else None


def _sampled(outcome: TrialResult, candidate: Contestant) -> list[SampledReplies]:
    """The candidate's replies as tokens, after what it was really shown."""
    assert isinstance(candidate, ModelPolicy | LessonedPolicy | PromptedPolicy)
    return [
        SampledReplies(candidate.messages_at(at.point), tuple(reply.token_ids for reply in at.replies[Role.CANDIDATE]))
        for at in outcome.compared
    ]


async def evaluation_windows(
    database: Database,
    settings: EvaluationSettings,
    windows: EvaluatedWindows | ReadinessSettings,
    candidate: Release,
    incumbent: Release | None,
    *,
    is_ruled_on: bool = True,
    now: datetime | None = None,
    admission: Admission | None = None,
) -> list[CheckedWindow]:
    """The newest usable windows that came after everything either release was trained on, oldest first.

    An embargo lies between, since an hour's outcome shows in the next. Windows that were consulted before are used
    only if there are no others, as the gate does not count them again; if the gate will not rule (``is_ruled_on``),
    the other way round. For an admission, windows that began when all of its lessons were known, and in which
    somebody decided whom they are for. With prompts of ours, windows after
    everything that any prompt was learnt on.
    """
    rules = window_rules(windows)
    rules = replace(rules, now=now or rules.now, lookback=max(windows.lookback, settings.eval_lookback))
    reader = WindowReader(database, rules)
    models = {candidate.model} if incumbent is None else {candidate.model, incumbent.model}
    trained = await last_trained(database.pool, models)
    if candidate.prompt_version and (learnt := await learnt_until(database.pool)) is not None:
        trained = learnt if trained is None else max(trained, learnt)
    consulted = await first_consulted(database.pool, candidate.model)
    later = [
        ref
        for ref in reversed(await reader.discover())
        if (trained is None or start_of(ref.window_id) >= trained + windows.embargo)
        and (admission is None or start_of(ref.window_id) >= admission.known_at)
    ]
    waiting = [ref for ref in later if (ref.window_id not in consulted) == is_ruled_on] or later
    found: list[CheckedWindow] = []
    while waiting and len(found) < windows.eval_windows:
        missing = windows.eval_windows - len(found)
        async for window in reader.stream(waiting[:missing]):
            checked = check(window, rules)
            agents = None if admission is None else admission.agents
            if any(agents is None or one.agent_id in agents for one in checked.usable):
                found.append(checked)
        waiting = waiting[missing:]
    if not found:
        since = "" if trained is None else f" since {trained + windows.embargo:%Y-%m-%d %H:%M} UTC"
        if admission is not None:
            raise NotEnoughData(
                f"There is no usable window{since} that began after {admission.known_at:%Y-%m-%d %H:%M} UTC, when the "
                "last of these lessons was stored, with a decision of those whom they are for: wait for new windows."
            )
        raise NotEnoughData(
            f"There is no usable window to evaluate on{since}, after everything trained and the embargo: wait for new "
            "windows; `check_windows.py` says why each is left out."
        )
    return sorted(found, key=lambda checked: checked.window.window_id)


async def models_to_ask(database: Database, candidate: Release, incumbent: Release | None) -> dict[Role, Checkpoint]:
    """The models to ask. The base model replaces a missing incumbent, and is still asked only once."""
    base = await find_checkpoint(database, candidate.model, 0)
    asked: dict[Role, Checkpoint] = {Role.CANDIDATE: candidate, Role.INCUMBENT: incumbent or base}
    return asked if incumbent is None else asked | {Role.BASE: base}
