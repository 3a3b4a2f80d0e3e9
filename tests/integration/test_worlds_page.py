"""The worlds of docs/worlds.md are run: the TOML one and the Python one, on rows in a real database."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from data_bridge.models import Action, Fact
from data_bridge.worlds.load import load_world
from tests.builders_worlds import AGENTS
from tests.integration.test_worlds import NOW, recorded
from trainer.cli import check_windows, judge_windows

PAGE = (Path(__file__).parents[2] / "docs" / "worlds.md").read_text()
BLOCKS = dict(re.findall(r"^```(toml|python)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))


def bakery(window: int, agent: int) -> tuple[str, str, Action, dict[str, object]]:
    said = ("BAKE", "WAIT", "BAKE", "DECLINE")[agent]
    action = Action(said, parameters={"order": f"O-{window}"}, success=True)
    return f"Order O-{window}", said, action, {"oven": "hot", "flour": 10 + agent, "queue": 3}


def farm(window: int, agent: int) -> tuple[str, str, Action, dict[str, object]]:
    action = Action("SOW", parameters={"field": f"{window}-{agent}"}, success=True)
    return "It is spring.", '{"do": "SOW", "field": "north"}', action, {"water": 5, "season": "spring"}


WORLDS: dict[str, tuple[str, Any, Callable[[int], list[Fact]]]] = {
    "toml": (
        "bakery.toml",
        bakery,
        lambda window: [Fact(f"{agent}/O-{window}", "sold", after=place) for place, agent in enumerate(AGENTS)],
    ),
    "python": ("farm.py", farm, lambda window: [Fact(f"{window}-{n}", "sacks", 1.0, 1.0 + n) for n in range(4)]),
}


@pytest.mark.parametrize("kind", ["toml", "python"])
def test_the_worlds_of_the_page_work_as_they_stand(
    kind: str,
    make_database: Callable[..., str],
    template_database: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, decide, facts = WORLDS[kind]
    file = tmp_path / name
    file.write_text(BLOCKS[kind])
    assert len(BLOCKS[kind].splitlines()) <= 36
    url = make_database(template_database)
    recorded(url, tmp_path, decide, facts, 4)
    flags = ["--database-url", url, "--home", str(tmp_path), "--until", NOW.isoformat(), "--world", str(file)]
    assert check_windows.main(flags) == 0
    assert load_world(str(file)).words.measure in capsys.readouterr().out
    assert judge_windows.main([*flags, "--json"]) == 0
    [group] = json.loads(capsys.readouterr().out)["windows"][0]["groups"]
    ranked = sorted(group["verdicts"], key=lambda one: one["score"])
    assert [one["agent"] for one in ranked] == list(AGENTS)


def test_replies_are_read_as_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "bakery.toml").write_text(BLOCKS["toml"])
    (tmp_path / "farm.py").write_text(BLOCKS["python"])
    plain, own = load_world(str(tmp_path / "bakery.toml")), load_world(str(tmp_path / "farm.py"))
    said = plain.parse("bake O-7")
    assert said is not None
    assert (said.kind, said.parameters) == ("BAKE", {"order": "O-7"})
    assert plain.parse("I would rather not") is None
    assert plain.can_value_replies
    assert own.parse("nonsense") is None
    assert own.parse('{"do": "REAP", "field": "east"}') is not None
    assert plain.version != load_world("desk").version
