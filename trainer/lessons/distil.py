"""Lessons from verdicts, by template: what was seen in brief, what was decided, what came of it.

Facts come from the game's tables: headlines and moves, or what the world knows of the decision's subject. Of what an
agent's row says only the decision itself is used, and, where the game's tables have no news, the beginning of what the
agent saw, as a quotation. What an agent says of itself is not. Text of lessons that the agent was shown is left out, so
that no lesson is learnt from itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from statistics import fmean
from typing import Literal

from data_bridge.models import Action, AgentTrajectory, NotText, Step, StockOutcome, WindowOutcomes
from data_bridge.window_ids import end_of
from data_bridge.worlds.world import World
from trainer.lesson import LessonKind, LessonSource, NewLesson, Scope, Trust
from trainer.lessons.wording import content_of, cut, safe, title_of, without_recalled, words_of
from trainer.patterns.faults import FaultSource
from trainer.patterns.significance import ErrorPattern
from trainer.types import Group, JudgedGroup, Verdict

ScopeRule = Literal["game", "role", "agent"]

TELLING = 0.1
"""Difference from the group's mean from which a decision teaches something."""
_LONGEST_SEEN, _LONGEST_WHY, _MOST_NEWS = 240, 300, 3
_LONGEST_DECISION = 120
_MOVED = 0.05
"""Per cent below which a price has not moved."""


def scope_of(trajectory: AgentTrajectory, game: str, rule: ScopeRule) -> Scope:
    if rule == "game":
        return Scope(game)
    role = trajectory.role or next((step.state.role for step in trajectory.steps if step.state.role), None)
    return Scope(game, role, trajectory.agent_id if rule == "agent" else None)


def source_of(trajectory: AgentTrajectory, verdict_key: str, outcomes: WindowOutcomes) -> LessonSource:
    """Known when the window has ended, and the last of its facts has happened: some happen days later."""
    happened = [fact.at for fact in outcomes.facts if fact.at is not None]
    known_at = max([end_of(trajectory.window_id, trajectory.window_hours), *happened])
    return LessonSource(trajectory.trajectory_id, trajectory.agent_id, trajectory.window_id, known_at, verdict_key)


def episodes(judged: JudgedGroup, game: str, rule: ScopeRule, recalled: Mapping[str, Sequence[str]]) -> list[NewLesson]:
    """One lesson for each decision of a judged group that was clearly better or worse than its group."""
    mean = fmean(judged.scores)
    found = []
    for member, verdict in zip(judged.group.trajectories, judged.verdicts, strict=True):
        shown = recalled.get(member.trajectory_id, ())
        for step, score in _telling(member, verdict, mean):
            lesson = _episode(judged, member, step, score - mean, verdict, game, rule, shown)
            if lesson is not None:
                found.append(lesson)
    return found


def _telling(member: AgentTrajectory, verdict: Verdict, mean: float) -> list[tuple[Step, float]]:
    """The decisions with their scores: by step where the judge scored steps, else the only or the last decision."""
    decided = [step for step in member.steps if step.action is not None and not step.action.is_pending]
    if not decided:
        return []
    scores = verdict.steps if len(verdict.steps) == len(decided) else (None,) * (len(decided) - 1) + (verdict.score,)
    scored = zip(decided, scores, strict=True)
    return [(step, score) for step, score in scored if score is not None and abs(score - mean) >= TELLING]


def _episode(
    judged: JudgedGroup,
    member: AgentTrajectory,
    step: Step,
    above: float,
    verdict: Verdict,
    game: str,
    rule: ScopeRule,
    recalled: Sequence[str],
) -> NewLesson | None:
    assert step.action is not None
    stock = _stock_of(step.action, judged.group.outcomes)
    seen = without_recalled(_seen(step, stock, judged.group.outcomes), recalled)
    if not seen.strip(" ."):
        return None
    decided, worked = _decision(step.action, judged.group.world), above > 0
    came = _came_of_it(step.action, stock, member, judged.group)
    why = cut(safe(without_recalled(verdict.explanation, recalled)), _LONGEST_WHY) if judged.identity.is_llm else ""
    told = f"{seen} {decided} {'worked' if worked else 'failed'}{f': {came}' if came else ''}. {why}"
    source = source_of(member, judged.verdict_key, judged.group.outcomes)
    return NewLesson(
        kind=LessonKind.EPISODIC,
        scope=scope_of(member, game, rule),
        title=title_of(f"{decided} {'was right' if worked else 'was wrong'}"),
        content=content_of(told),
        known_at=source.known_at,
        trust=Trust.VERDICT,
        importance=min(1.0, 0.2 + 1.6 * abs(above)),
        about=title_of(step.action.kind),
        stance=1 if worked else -1,
        sources=(source,),
    )


def _seen(step: Step, stock: StockOutcome | None, outcomes: WindowOutcomes) -> str:
    """The headlines of the game's tables up to the decision; without any, the beginning of what the agent saw."""
    at = None if step.timestamp is None else datetime.fromtimestamp(step.timestamp / 1000, UTC)
    prompt = _prompt_of(step)
    about = [stock] if stock is not None else list(outcomes.stocks)
    news = [
        one.headline
        for each in about
        for one in each.news
        if (one.timestamp is not None and at is not None and one.timestamp <= at) or one.headline in prompt
    ]
    if news:
        return f"News: {'; '.join(safe(one) for one in news[-_MOST_NEWS:])}."
    told = cut(safe(prompt), _LONGEST_SEEN)
    return f'Seen: "{told}".' if told else ""


def _prompt_of(step: Step) -> str:
    """The last message before the decision."""
    for call in reversed(step.llm_calls):
        messages = call.seen()
        try:
            if messages:
                return messages[-1].text()
        except NotText:
            continue
    return ""


_NAMED = ("ticker", "symbol", "marketId", "market", "side", "percent")


def _decision(action: Action, world: World) -> str:
    if not world.reads_markets:
        return safe(cut(world.choice_of(action) or action.kind, _LONGEST_DECISION))
    given = [str(action.parameters[name]) for name in _NAMED if _is_short(action.parameters.get(name))]
    words = [action.kind, *(word for word in given if word.upper() != action.kind)]
    return safe(" ".join(words))


def _is_short(value: object) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool) and 0 < len(str(value)) <= 40


def _stock_of(action: Action, outcomes: WindowOutcomes) -> StockOutcome | None:
    named = action.parameters.get("ticker") or action.parameters.get("symbol")
    wanted = named.removeprefix("$").upper() if isinstance(named, str) else None
    return next((one for one in outcomes.stocks if one.ticker.removeprefix("$").upper() == wanted), None)


def _came_of_it(action: Action, stock: StockOutcome | None, member: AgentTrajectory, group: Group) -> str:
    """By the game's tables alone; the action's own failure is what its row says, and costs only itself."""
    outcomes = group.outcomes
    if action.failure is not None:
        return "it was not carried out"
    if not group.world.reads_markets:
        return _by_facts(action, member, group)
    if stock is not None and stock.change_percent is not None:
        moved = stock.change_percent
        way = "did not move" if abs(moved) < _MOVED else f"{'rose' if moved > 0 else 'fell'} {abs(moved):.1f} %"
        return f"{safe(stock.ticker)} {way}"
    market = action.parameters.get("marketId") or action.parameters.get("market")
    found = next((one for one in outcomes.predictions if one.market_id == market and one.outcome), None)
    return "" if found is None else safe(f"it resolved {found.outcome}")


def _by_facts(action: Action, member: AgentTrajectory, group: Group) -> str:
    """What is known of the action's subject; of an hour with one decision also what it achieved."""
    success = group.world.success(member, group.outcomes) if len(member.actions) == 1 else None
    parts = [group.world.result_of(action, member, group.outcomes), None if success is None else success.told]
    return safe("; ".join(part for part in parts if part))


_FEWEST_WORDS = 4
"""A shorter text, such as the dash for nothing learnt, is no lesson."""


def worded(
    judged: JudgedGroup, told: JudgedGroup, game: str, rule: ScopeRule, recalled: Mapping[str, Sequence[str]]
) -> list[NewLesson]:
    """Lessons in the judge's own words: ``told`` is the same group under the rubric that asks for lessons."""
    own = {verdict.trajectory_id: verdict for verdict in judged.verdicts}
    mean = fmean(judged.scores)
    found = []
    for member, said in zip(told.group.trajectories, told.verdicts, strict=True):
        verdict = own.get(member.trajectory_id)
        text = without_recalled(safe(said.explanation), recalled.get(member.trajectory_id, ()))
        if verdict is None or len(words_of(text)) < _FEWEST_WORDS or abs(verdict.score - mean) < TELLING:
            continue
        source = source_of(member, judged.verdict_key, judged.group.outcomes)
        found.append(
            NewLesson(
                kind=LessonKind.EPISODIC,
                scope=scope_of(member, game, rule),
                title=title_of(cut(text.partition(". ")[0], 120)),
                content=content_of(text),
                known_at=source.known_at,
                trust=Trust.JUDGE,
                importance=min(1.0, max(0.0, said.score)),
                about=title_of(member.actions[-1].kind) if member.actions else "",
                stance=1 if verdict.score > mean else -1,
                sources=(source,),
            )
        )
    return found


_ADVICE = {
    "empty_reply": "Always answer: an empty reply does nothing.",
    "not_one_line": "Answer with exactly one line that names one action.",
    "unreadable": "Write the action exactly in the form that is offered, and nothing around it.",
    "not_offered": "Choose only among the actions that are offered now.",
    "unknown_market": "Name only a market that is in the list.",
    "order_limit": "Keep the order within the limit for one order.",
    "no_balance": "Do not stake when there is no balance left.",
    "loss_limit": "Stop staking in this hour once the loss limit is reached.",
    "position_limit": "Close a position before a further one is opened.",
    "over_balance": "Stake no more than the balance.",
    "unknown_errand": "Name only an errand that is on the board.",
    "no_coins": "Hire a guard only with the coins to pay for it.",
    "no_action": "End every step with one action.",
    "failed": "Check that the action is possible before it is chosen: it failed without a word.",
}


def procedures(patterns: Sequence[ErrorPattern], game: str, sources: Mapping[str, LessonSource]) -> list[NewLesson]:
    """What to do about each error that is more than chance; ``sources`` by trajectory. Known with its last window."""
    found = []
    for pattern in patterns:
        own = [sources[name] for name in pattern.trajectories if name in sources]
        if not pattern.significant or not own:
            continue
        is_code = pattern.source is FaultSource.CODE
        told = safe(pattern.template)
        advice = _ADVICE.get(pattern.template, "") if is_code else f'Avoid what led to: "{told}".'
        if not advice:
            continue
        found.append(
            NewLesson(
                kind=LessonKind.PROCEDURAL,
                scope=Scope(game),
                title=title_of(f"Error {told}" if is_code else "A fault that comes again"),
                content=content_of(advice),
                known_at=max(one.known_at for one in own),
                trust=Trust.VERDICT if pattern.source is not FaultSource.JUDGE else Trust.JUDGE,
                importance=0.8,
                about=title_of(pattern.template) if is_code else "",
                stance=-1,
                sources=tuple(own),
            )
        )
    return found
