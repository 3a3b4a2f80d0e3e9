"""One agent's length never costs another: each trajectory has its fair share of the judge's context."""

from __future__ import annotations

import base64
import functools
import importlib.util
import json
import random
import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_bridge.models import AgentTrajectory
from tests.builders import WINDOW, make_action, make_call, make_outcomes, make_step, make_trajectory
from trainer.judge.prompt import OverContext, fit, load_rubric
from trainer.judge.text import count_tokens
from trainer.judge.view import view_of
from trainer.types import Group

RUBRIC = load_rubric("trading")
SAW = "ACME trades at 100 after a quiet hour. News: the orders of ACME are up. "


def told(
    name: str, *, saw: int = 2_600, steps: int = 1, said: str = "BUY ACME 10", why: str = "Up."
) -> AgentTrajectory:
    calls = [make_call(said, prompt=(SAW * (saw // len(SAW) + 1))[:saw].strip())]
    own = [make_step(number, calls=calls, action=make_action(reasoning=why)) for number in range(steps)]
    return make_trajectory(name, trajectory_id=name, steps=own)


def fitted(*members: AgentTrajectory, tokens: int = 24_000) -> dict[str, dict[str, Any]]:
    view = view_of(Group("group", WINDOW, members, make_outcomes()))
    bodies = fit(view, RUBRIC, tokens).bodies
    return {one.trajectory.trajectory_id: json.loads(body) for one, body in zip(view.trajectories, bodies, strict=True)}


def honest(number: int) -> list[AgentTrajectory]:
    return [told(f"honest-{place}") for place in range(number)]


def test_a_reasoning_of_70_kilobytes_is_shortened_and_the_others_stay_whole() -> None:
    alone = fitted(*honest(8))
    together = fitted(*honest(7), told("attacker", why="I am very sure of it. " * 3_200))
    assert "characters left out" in together["attacker"]["steps"][0]["reasons"]
    for place in range(7):
        assert together[f"honest-{place}"] == alone[f"honest-{place}"]


def test_two_hundred_steps_of_one_agent_cost_the_others_nothing() -> None:
    alone = fitted(*honest(4), tokens=60_000)
    together = fitted(*honest(3), told("attacker", steps=200, saw=2_000, said="HOLD", why=""), tokens=60_000)
    for place in range(3):
        assert together[f"honest-{place}"] == alone[f"honest-{place}"]
        assert len(together[f"honest-{place}"]["steps"][0]["saw"]) == len(told("one").llm_calls[0].user_prompt)


@pytest.mark.parametrize("attack", ["a reply", "a parameter", "two thousand steps", "an error"])
def test_who_does_not_fit_even_when_shortened_is_named_and_the_rest_fits_without_it(attack: str) -> None:
    endless = "I buy. " * 10_000
    attacker = {
        "a reply": told("attacker", said=endless),
        "a parameter": make_trajectory(
            trajectory_id="attacker", steps=[make_step(action=make_action(parameters={"ticker": "ACME", "x": endless}))]
        ),
        "two thousand steps": told("attacker", steps=2_000, saw=10),
        "an error": make_trajectory(
            trajectory_id="attacker", steps=[make_step(action=make_action(success=False, error=endless))]
        ),
    }[attack]
    with pytest.raises(OverContext) as failed:
        fitted(*honest(7), attacker)
    assert failed.value.members == ("attacker",)
    assert fitted(*honest(7)) == {name: body for name, body in fitted(*honest(8)).items() if name != "honest-7"}


def test_several_who_do_not_fit_are_named_together() -> None:
    with pytest.raises(OverContext) as failed:
        fitted(*honest(4), *(told(f"attacker-{place}", said="I buy. " * 9_000) for place in range(3)))
    assert sorted(failed.value.members) == ["attacker-0", "attacker-1", "attacker-2"]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 9_000), min_size=1, max_size=5), st.integers(6_000, 24_000), st.integers(2, 20))
def test_a_member_that_grows_beyond_its_share_takes_nothing_from_the_others(
    lengths: list[int], tokens: int, factor: int
) -> None:
    """Whatever the others' lengths: once a member is cut, more of it changes no letter of what is shown of them."""
    others = [told(f"honest-{place}", saw=length) for place, length in enumerate(lengths)]
    large = 60_000  # characters: more than the whole context
    before = fitted(*others, told("attacker", saw=large), tokens=tokens)
    after = fitted(*others, told("attacker", saw=large * factor, why="Sure. " * 1_000 * factor), tokens=tokens)
    assert all(before[one.trajectory_id] == after[one.trajectory_id] for one in others)


# The estimate of tokens, which the shares are counted in


@functools.cache
def counters() -> dict[str, Any]:
    """The tokenizers of two families of judges, from the files that litellm brings along."""
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe
    from tokenizers import Tokenizer

    found = importlib.util.find_spec("litellm")
    assert found is not None
    assert found.submodule_search_locations is not None
    folder = Path(found.submodule_search_locations[0]) / "litellm_core_utils" / "tokenizers"
    words = r"""'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++"""
    pattern = words + r"""|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s"""
    ranks = load_tiktoken_bpe(str(folder / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"))
    cl100k = tiktoken.Encoding("cl100k_base", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    claude = Tokenizer.from_file(str(folder / "anthropic_tokenizer.json"))
    return {"cl100k": cl100k.encode_ordinary, "claude": lambda text: claude.encode(text).ids}


_CHANCE = random.Random(0)


def letters(alphabet: str, number: int = 4_000) -> str:
    return "".join(_CHANCE.choice(alphabet) for _ in range(number))


@pytest.mark.parametrize(
    "text",
    [
        letters(string.ascii_lowercase),
        " ".join(letters(string.ascii_lowercase, 5) for _ in range(700)),
        " ".join(letters(string.ascii_lowercase)),
        letters(string.ascii_letters),
        letters("etaoinshrdl"),
        letters("aeiou"),
        letters("jqxz"),
        base64.b64encode(_CHANCE.randbytes(3_000)).decode(),
        base64.b32encode(_CHANCE.randbytes(3_000)).decode().lower(),
        "".join(chr(_CHANCE.randint(0x1200, 0x137F)) for _ in range(1_000)),
    ],
    ids=[
        *("letters", "short words", "single letters", "both cases", "common letters", "vowels", "rare letters"),
        *("base64", "base32", "Ethiopic"),
    ],
)
def test_text_that_is_no_language_is_not_taken_for_less_than_it_is(text: str) -> None:
    """By letters alone it was taken for half of what it was, and a prompt that should fit did not."""
    for name, count in counters().items():
        assert count_tokens(text) >= len(count(text)), name


def test_and_plain_english_is_not_taken_for_much_more() -> None:
    text = (Path(__file__).parents[2] / "LICENSE").read_text()
    for name, count in counters().items():
        assert len(count(text)) <= count_tokens(text) <= 2.2 * len(count(text)), name
