"""No row makes any stage raise anything but its own reasons, and none changes what its honest neighbours get.

Rows are those of the game's two writers with some of their values replaced by whatever JSON can hold. Each goes with
three honest rows from the text of its columns to packed tokens; the honest ones must come out as they do beside a
neutral fourth row.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from data_bridge.decode import trajectory_of
from data_bridge.models import AgentTrajectory, UnreadableRow, Window
from data_bridge.quality import CheckedWindow, Reason, Rules, check
from data_bridge.survey_types import summarise
from data_bridge.window_ids import end_of
from tests.adversary.test_tokens import OfPolicy
from tests.builders import WINDOW, make_outcomes, plugin_steps, recorder_steps, trajectory_row
from tests.builders_training import judged, make_batch, make_trainee
from tests.tiny_model import shared_tiny_model
from trainer.config.sections import GroupingSettings
from trainer.evaluate.decision_points import decision_points, with_reply
from trainer.inference.policy import CpuPolicy
from trainer.judge.outcome import OutcomeJudge
from trainer.judge.prompt import fit, load_rubric
from trainer.judge.reply import BadReply, parse
from trainer.judge.view import view_of
from trainer.plan.grouping import form_groups
from trainer.train.backends.packing import pack
from trainer.train.backends.prepare import prepare
from trainer.types import Group, JudgedGroup

HONEST = ("ada", "ben", "cem")
STAKE = {"ada": 10, "ben": 100, "cem": 300, "evil": 50}
"""In a stock that rose by a tenth: what each earned follows."""
REWARDS = {"ada": 0.1, "ben": 0.65, "cem": 0.9, "evil": 0.7}
RULES = Rules(now=end_of(WINDOW, 1) + timedelta(hours=1))
RUBRIC = load_rubric("trading")
MOST = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> CpuPolicy:
    return CpuPolicy(shared_tiny_model(tmp_path_factory), rank=4, learning_rate=1e-3, seed=0)


# Rows

VALUES = st.one_of(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | st.text(max_size=12),
    st.sampled_from(["", " ", "\x00", "\ud800", "\u202e\u200b", "9" * 5000, "x y " * 4000, "</trajectory>", "1e999"]),
    st.sampled_from(["BUY", "hindsight@step1", "action", "assistant", "hindsight@step" + "9" * 40, "null", "\ufffd"]),
    st.sampled_from(
        [[], {}, [[]], [{}], [None], {"function": 7}, [{"role": "user"}], [{"type": "image"}], [1e308] * 3]
    ),
    st.integers(1, 300).map(lambda depth: json.loads("[" * depth + "]" * depth)),
    st.lists(st.integers(-3, 2**40), max_size=6) | st.lists(st.floats(), max_size=6),
    st.dictionaries(st.text(max_size=4), st.integers() | st.text(max_size=4), max_size=3),
)
COLUMNS = st.fixed_dictionaries(
    {},
    optional={
        "finalBalance": st.floats(),
        "finalPnL": st.floats(),
        "finalStatus": st.sampled_from(["", "completed", "x" * 300]),
        "metadata": VALUES.map(lambda value: json.dumps({"gameKnowledge": value, "role": value})) | st.text(max_size=9),
    },
)


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return (
        [at, *(path for key, part in inner for path in paths(part, (*at, key)))]
        if at
        else [path for key, part in inner for path in paths(part, (key,))]
    )


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """``value`` with ``new`` at ``path``; as it is if an earlier change took the path away."""
    if not path:
        return new
    if isinstance(value, dict) and path[0] in value:
        return value | {path[0]: changed(value[path[0]], path[1:], new)}
    if isinstance(value, list) and isinstance(path[0], int) and path[0] < len(value):
        return [*value[: path[0]], changed(value[path[0]], path[1:], new), *value[path[0] + 1 :]]
    return value


def full_steps(writer: str) -> list[dict[str, Any]]:
    """Steps with everything that a writer can write, so that each of it can be replaced."""
    steps = recorder_steps() if writer == "recorder" else plugin_steps()
    for step in steps:
        step["llmCalls"][0] |= {"completionTokenIds": [6, 2], "completionLogprobs": [-1.0, -0.5], "reasoning": "since"}
        step["llmCalls"][0] |= {"promptTokens": 10, "completionTokens": 2, "toolCalls": None, "modelVersion": "1"}
        step["action"] |= {"reasoning": "because", "error": None, "result": {"price": 101.0}}
        step["reasoning"] = "all told"
    return steps


@st.composite
def evil_texts(draw: st.DrawFn) -> bytes:
    steps: Any = full_steps(draw(st.sampled_from(["recorder", "plugin"])))
    for _ in range(draw(st.integers(1, 4))):
        where = draw(st.sampled_from(paths(steps) or [()]))
        steps = changed(steps, where, draw(VALUES))
    text = json.dumps(steps)
    if draw(st.integers(0, 9)) == 0:
        text = text[: draw(st.integers(0, len(text)))]
    return text.encode()


def read(agent: str, text: bytes, **columns: Any) -> AgentTrajectory | UnreadableRow:
    """A row as the reader makes it of its columns."""
    row = trajectory_row(agent, trajectoryId=agent, pnl=STAKE[agent] / 10)
    made = {**row, "steps": text, "size": len(text), "metadata": row["metadataJson"]}
    return trajectory_of(made | columns, WINDOW, agent.title())


def honest_rows() -> list[AgentTrajectory]:
    return [row for row in map(sound, HONEST) if isinstance(row, AgentTrajectory)]


def sound(agent: str) -> AgentTrajectory | UnreadableRow:
    """A row whose agent bought once, and then waited."""
    steps = recorder_steps(pnl=STAKE[agent] / 10, response=f"BUY {agent}")
    steps[0]["action"]["parameters"]["amount"] = STAKE[agent]
    steps[1]["action"] |= {"actionType": "HOLD", "parameters": {}}
    return read(agent, json.dumps(steps).encode())


# The way of a window


@dataclass
class Came:
    """What became of the honest rows."""

    usable: list[str]
    group: list[str]
    shown: dict[str, str]
    ranking: list[str]
    tokens: dict[str, list[tuple[str, float]]]


def way(row: AgentTrajectory | UnreadableRow, policy: CpuPolicy) -> Came:
    rows = [one for one in (*honest_rows(), row) if isinstance(one, AgentTrajectory)]
    unreadable = (row,) if isinstance(row, UnreadableRow) else ()
    window = Window(WINDOW, 1, tuple(rows), make_outcomes(), unreadable)
    checked = check(window, RULES)
    accounted = [one.trajectory_id for one in checked.usable] + [one.trajectory_id for one in checked.excluded]
    assert sorted(accounted) == ["ada", "ben", "cem", "evil"]
    summarise(checked)
    [group] = form_groups(checked, GroupingSettings(), seed=0).groups
    members = [one.trajectory_id for one in group.trajectories]
    assert points_of(checked) >= 1
    return Came(
        usable=[one.trajectory_id for one in checked.usable if one.agent_id in HONEST],
        group=[name for name in members if name in HONEST],
        shown=shown_of(group),
        ranking=asyncio.run(ranking_of(group)),
        tokens=asyncio.run(tokens_of(group, policy)),
    )


def points_of(checked: CheckedWindow) -> int:
    """Every decision point can be asked and judged."""
    points = decision_points(checked, purposes=("action",), max_points=16, seed=0)
    for point in points:
        assert 1 <= point.max_tokens <= 2048
        asked = with_reply(point, "BUY ACME 1", None, alias="a")
        view_of(Group("g", WINDOW, (asked, with_reply(point, "SELL", None, alias="b")), make_outcomes()))
    return len(points)


def shown_of(group: Group) -> dict[str, str]:
    """What the judge reads of each honest row, where there is room for all; and its reply is read by name."""
    fitted = fit(view_of(group), RUBRIC, 200_000)
    asked = fitted.prompt(list(range(len(fitted.bodies))), b"0" * 16)
    reply = {"scores": [{"trajectory_id": name, "explanation": "", "score": 0.5} for name in asked.ids]}
    assert len(parse(json.dumps(reply), asked.ids)) == len(group.trajectories)
    names = [view.trajectory.trajectory_id for view in fitted.view.trajectories]
    return {name: body for name, body in zip(names, fitted.bodies, strict=True) if name in HONEST}


async def ranking_of(group: Group) -> list[str]:
    """The honest rows by the offline judge's score, the worst first."""
    verdict = await OutcomeJudge().judge(group)
    assert isinstance(verdict, JudgedGroup), verdict
    scores = {one.trajectory_id: one.score for one in verdict.verdicts}
    assert all(0 <= score <= 1 for score in scores.values())
    return sorted(HONEST, key=lambda name: (scores[name], name))


async def tokens_of(group: Group, policy: CpuPolicy) -> dict[str, list[tuple[str, float]]]:
    """The tokens and log-probabilities with which each honest row is trained."""
    batch = make_batch(judged(group.trajectories, [REWARDS[one.trajectory_id] for one in group.trajectories]))
    ready = await prepare(batch, make_trainee(min_spread=0.0, foreign="all"), OfPolicy(policy))
    assert {one.trajectory_id for one in ready.exclusions} <= {"evil"}
    assert all(one.reason in Reason for one in ready.exclusions)
    packed = pack(ready.groups, policy.tokenizer, scale_rewards=False, seed="0")
    assert sum(one.trainable_tokens for one in packed) == ready.trainable_tokens
    trained = {}
    for member in ready.groups[0].trajectories:
        parts = [member.messages_and_choices, *(more.messages_and_choices for more in member.additional_histories)]
        content = [one for part in parts if not isinstance(part[-1], dict) for one in part[-1].logprobs.content]
        trained[str(member.metadata["trajectory_id"])] = [(one.token, round(one.logprob, 4)) for one in content]
    return {name: trained[name] for name in HONEST}


@pytest.fixture(scope="module")
def usual(policy: CpuPolicy) -> Came:
    return way(sound("evil"), policy)


@MOST
@given(text=evil_texts(), columns=COLUMNS)
def test_no_row_raises_or_changes_what_its_neighbours_get(
    text: bytes, columns: Mapping[str, Any], policy: CpuPolicy, usual: Came
) -> None:
    assert way(read("evil", text, **columns), policy) == usual


@settings(MOST, max_examples=200)
@given(st.text() | VALUES.map(json.dumps) | VALUES.map(lambda value: json.dumps({"scores": value})))
def test_no_reply_of_a_judge_raises_anything_but_that_it_is_bad(text: str) -> None:
    with pytest.raises(BadReply):
        parse(text, ["a", "b"])


def test_the_honest_rows_are_what_they_should_be(usual: Came) -> None:
    """The properties would hold of nothing at all too."""
    assert usual.usable == usual.ranking == ["ada", "ben", "cem"]
    assert sorted(usual.group) == ["ada", "ben", "cem"]
    assert all(len(own) >= 4 for own in usual.tokens.values())
    assert all(name in body for name, body in usual.shown.items())
