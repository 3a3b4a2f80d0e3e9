"""Judged groups for another engine: a row for each call that would be trained, as ``docs/export.md`` describes it.

Of a trajectory only its calls, their tokens and its score leave: nothing that was known only afterwards, no
explanation of the judge. Messages are those that the agent's model received. A group whose rows, outcomes or members
are no longer those that were judged is left out: the key of its verdict would be another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter
from typing import Any

from data_bridge.art_converter import fault_of_tokens
from data_bridge.database import Database
from data_bridge.models import DECISIONS, AgentTrajectory, LLMCall, NotText, Window
from data_bridge.quality import Rules, check
from data_bridge.reader import WindowReader
from trainer.judge.view import view_of
from trainer.ledger.judged_groups import StoredGroup, stored_groups
from trainer.run.distilling import RUBRIC
from trainer.train.selection import advantages
from trainer.types import MIN_GROUP, WITH_STEPS, Group
from trainer.workers.judging import as_unused

SCHEMA = "hindsight.groups/1"


@dataclass(slots=True)
class ExportedGroups:
    """What was written, and why some was not."""

    groups: int = 0
    calls: int = 0
    windows: set[str] = field(default_factory=set)
    left_out: Counter[str] = field(default_factory=Counter)
    """Groups: ``changed`` since they were judged, ``counted_before`` with a member in another group. Calls:
    ``not_text``, with images or tools in them."""


async def exported_groups(
    database: Database, rules: Rules, first: str, end: str, exported: ExportedGroups
) -> AsyncGenerator[dict[str, Any], None]:
    """The rows of all judged groups of the windows from ``first`` to before ``end``, in their order."""
    reader = WindowReader(database, rules)
    records = await stored_groups(database, first, end, without=[RUBRIC])
    for window_id, of_window in groupby(records, key=attrgetter("window_id")):
        window = await reader.read(window_id)
        seen: set[str] = set()
        for record in of_window:
            group = None if window is None else _as_judged(record, window, rules)
            if group is None or not seen.isdisjoint(record.scores):
                exported.left_out["changed" if group is None else "counted_before"] += 1
                continue
            seen.update(record.scores)
            rows = _rows(record, group, exported.left_out)
            exported.groups += bool(rows)
            exported.calls += len(rows)
            if rows:
                exported.windows.add(window_id)
            for row in rows:
                yield row


def _as_judged(record: StoredGroup, window: Window, rules: Rules) -> Group | None:
    """The group with its rows, if they are those that the verdict is about."""
    checked = check(as_unused(window), replace(rules, min_agents=MIN_GROUP))
    rows = {one.trajectory_id: one for one in checked.usable}
    if len(record.scores) < MIN_GROUP or not record.scores.keys() <= rows.keys():
        return None
    members = tuple(rows[name] for name in sorted(record.scores))
    group = Group(record.group_id, record.window_id, members, window.outcomes)
    view = view_of(group, DECISIONS, numbered=WITH_STEPS in record.identity.prompt_version)
    return group if view.key(record.identity) == record.verdict_key else None


def _rows(record: StoredGroup, group: Group, left_out: Counter[str]) -> list[dict[str, Any]]:
    scores = [record.scores[one.trajectory_id].score for one in group.trajectories]
    rows = []
    for member, advantage in zip(group.trajectories, advantages(scores, scale=False), strict=True):
        calls = [call for call in member.llm_calls if call.purpose in DECISIONS]
        for number, call in enumerate(calls):
            row = _row(record, member, call, number, advantage)
            if row is None:
                left_out["not_text"] += 1
            else:
                rows.append(row)
    return rows


def _row(
    record: StoredGroup, member: AgentTrajectory, call: LLMCall, number: int, advantage: float
) -> dict[str, Any] | None:
    """One call; None if its messages or its reply are more than text."""
    seen = call.seen()
    if call.tool_calls or any(message.tool_calls or message.tool_call_id for message in seen):
        return None
    try:
        messages = [{"role": message.role, "content": message.text()} for message in seen]
    except NotText:
        return None
    tokens, logprobs = _tokens(call)
    score = record.scores[member.trajectory_id]
    return {
        "schema": SCHEMA,
        "group_id": record.group_id,
        "window_id": record.window_id,
        "trajectory_id": member.trajectory_id,
        "agent_id": member.agent_id,
        "call": number,
        "messages": messages,
        "completion": call.response,
        "token_ids": tokens,
        "logprobs": logprobs,
        "logprobs_temperature": call.logprobs_temperature,
        "model": call.model,
        "temperature": call.temperature,
        "top_p": call.top_p,
        "finish_reason": call.finish_reason,
        "reward": score.score,
        "uncertainty": score.uncertainty,
        "advantage": advantage,
        "judge": record.identity.judge,
        "rubric": f"{record.identity.rubric} {record.identity.rubric_version}",
        "orders": record.orders,
    }


def _tokens(call: LLMCall) -> tuple[Sequence[int] | None, Sequence[float] | None]:
    """The sampled tokens and their log-probabilities; None for what the log lacks or cannot be of this reply."""
    ids, logprobs = call.completion_token_ids, call.completion_logprobs
    if not ids or fault_of_tokens(call, ids):
        return None, None
    return ids, logprobs if logprobs and len(logprobs) == len(ids) and max(logprobs) <= 0 else None
