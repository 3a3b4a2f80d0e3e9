"""Whose policy wrote a reply: the base model under its names, a plain name by what was promoted, and how it ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from data_bridge.authorship import Lineage, Sampling, Served, is_cut, plain_names, sampling_of
from data_bridge.models import AgentTrajectory, Author
from data_bridge.window_ids import start_of
from tests.builders import WINDOW, make_call, make_step, make_trajectory

START = start_of(WINDOW)
HOUR = timedelta(hours=1)


def playing(agent: str = "agent-1", **call: Any) -> AgentTrajectory:
    return make_trajectory(agent, steps=[make_step(calls=[make_call(**call)])])


def author(lineage: Lineage, agent: str = "agent-1", **call: Any) -> Author:
    trajectory = playing(agent, **call)
    return lineage.author(trajectory.llm_calls[0], trajectory)


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen2.5-7B-Instruct",
        "Qwen2.5-7B-Instruct",
        "qwen2.5-7b-instruct",
        "models/Qwen2.5-7B-Instruct.gguf",
        "tiny",
    ],
)
def test_the_base_model_under_any_of_its_names_is_step_0_of_the_trained_one(name: str) -> None:
    lineage = Lineage("hindsight", plain_names(["Qwen/Qwen2.5-7B-Instruct", "tiny"]))
    assert author(lineage, model=name) == Author("hindsight", 0)
    assert author(lineage, model="gpt-9") == Author("gpt-9", None)
    assert author(lineage, model="") == Author("", None)  # no name is no name of the base model
    assert author(lineage, model="hindsight@step3") == Author("hindsight", 3)


def test_a_name_without_a_step_is_what_was_promoted_when_the_reply_was_written() -> None:
    promoted = (Served(3, START - 9 * HOUR, START - 5 * HOUR), Served(7, START - 5 * HOUR, START + HOUR / 2))
    later = Served(8, START + HOUR / 2)
    lineage = Lineage("hindsight", served=(*promoted, later))
    assert author(lineage, model="hindsight").step == 7
    late = 1000 * (START + 0.75 * HOUR).timestamp()
    assert author(lineage, model="hindsight", timestamp=late).step == 8
    # a row that says it was written in another hour is taken for its own
    assert author(lineage, model="hindsight", timestamp=1000 * (START - 6 * HOUR).timestamp()).step == 7
    assert author(lineage, model="hindsight", timestamp=1e300).step == 7


def test_before_the_first_promotion_it_is_the_base_model_and_without_a_ledger_nobody_knows() -> None:
    assert author(Lineage("hindsight", served=()), model="hindsight").step == 0
    assert author(Lineage("hindsight", served=(Served(3, START + 2 * HOUR),)), model="hindsight").step == 0
    assert author(Lineage("hindsight"), model="hindsight").step is None


def test_a_canarys_agents_had_the_canary_and_all_others_what_was_serving() -> None:
    serving = Served(3, START - 9 * HOUR)
    canary = Served(5, START - HOUR, START + 9 * HOUR, frozenset({"agent-1"}))
    lineage = Lineage("hindsight", served=(serving, canary))
    assert author(lineage, "agent-1", model="hindsight").step == 5
    assert author(lineage, "agent-2", model="hindsight").step == 3


@pytest.mark.parametrize(
    ("call", "cut"),
    [
        ({"finish_reason": "length"}, True),
        ({"finish_reason": "stop", "completion_tokens": 64}, False),
        ({"completion_tokens": 64}, True),
        ({"completion_tokens": 63}, False),
        ({"max_tokens": 0, "completion_tokens": 64}, False),  # no limit was logged
        ({}, False),
    ],
)
def test_a_reply_is_cut_if_its_finish_reason_or_its_length_says_so(call: dict[str, Any], cut: bool) -> None:
    assert is_cut(make_call(**call)) is cut


def test_logged_tokens_tell_a_cut_as_well() -> None:
    assert is_cut(make_call(), tokens=64)
    assert not is_cut(make_call(), tokens=63)


def test_nonsense_about_sampling_is_taken_as_not_said_and_a_step_to_come_as_unknown() -> None:
    strange = make_call(temperature=float("inf"), top_p=-1.0)
    assert sampling_of(strange, Author("hindsight", 9), policy_step=3) == Sampling(None, 1.0, 1.0)
    assert sampling_of(make_call(temperature=0.7, top_p=0.9), Author("h", 3), policy_step=3) == Sampling(3, 0.7, 0.9)
