"""Mistakes in a team's world or view: one clear sentence, the documented exit code, and a bad row costs that row."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from data_bridge.errors import ConfigurationError
from data_bridge.models import Action, WindowOutcomes
from data_bridge.worlds.load import load_world
from tests.builders import make_trajectory
from tests.builders_worlds import desk, desk_facts
from tests.integration.test_worlds import NOW, recorded
from trainer.cli import check_windows, judge_windows

CLASS = """
from data_bridge.models import Action
from data_bridge.worlds.world import Known, Success, World

class Own(World):
    name = "own"
    subject_keys = ("ticket",)
    weights = {"resolved": 1.0}
"""
TOML = 'name = "own"\nsubjects = ["ticket"]\n'

FILES = {
    "unknown.toml": (TOML + 'stat = ["a"]\n', "unknown field `stat`"),
    "missing.toml": ('rubric = "quests"\n', "missing required field `name`"),
    "kind.toml": (TOML + 'state = "a"\n', "Expected `array`, got `str`"),
    "broken.toml": ("name = \n", "Invalid value"),
    "pattern.toml": (TOML + '[reply]\npattern = "("\n', "reply.pattern is not a regular expression"),
    "nameless.toml": (TOML + '[reply]\npattern = "(?P<foo>x)"\n', "reply says no action"),
    "keys.toml": (TOML + '[reply]\nkeys = ["what"]\n', "reply says no action"),
    "nan.toml": (TOML + "[success]\nfacts = { resolved = nan }\n", "Expected `float`"),
    "huge.toml": (TOML + "[success]\nfacts = { resolved = 1e308 }\n", "Expected `float`"),
    "empty.toml": (TOML + 'actions = [""]\n', "length >= 1"),
    "raises.py": (CLASS + "    def __init__(self):\n        raise ValueError('no')\n", "fails with ValueError: no"),
    "given.py": (CLASS + "    def __init__(self, more):\n        pass\n", "fails with TypeError"),
    "two.py": (CLASS + "class Two(World):\n    pass\n", "one class derived from World, not 2"),
    "none.py": ("", "one class derived from World, not 0"),
    "syntax.py": ("class (", "fails with SyntaxError"),
    "exits.py": ("import sys\nsys.exit(3)\n", "fails with SystemExit"),
    "objects.py": (CLASS + "    weights = {'resolved': object()}\n", "fails with TypeError"),
    "own.yaml": ("", "neither a world that ships"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_mistake_in_a_file_is_one_sentence(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, words = FILES[name]
    (tmp_path / name).write_text(text)
    assert check_windows.main(["--home", str(tmp_path), "--world", str(tmp_path / name)]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.startswith("error: --world")
    assert said.count("\n") == 1
    assert not said.endswith("..\n")


ONLY_BEN = "        if {row}.agent_id == 'ben':\n            {does}\n        return super().{method}({row}, facts)\n"


def of_ben(method: str, does: str) -> str:
    return CLASS + f"    def {method}(self, row, facts):\n" + ONLY_BEN.format(row="row", does=does, method=method)


COSTS_BEN = {
    "success raises": (of_ben("success", "raise KeyError(row.agent_id)"), "not_measured"),
    "success is a number": (of_ben("success", "return 7"), "not_measured"),
    "success is NaN": (of_ben("success", "return Success(float('nan'), '')"), "not_measured"),
    "success is huge": (of_ben("success", "return Success(1e308, '')"), "not_measured"),
    "valid_share raises": (of_ben("valid_share", "raise KeyError(row.agent_id)"), "row_fault"),
    "valid_share is 5": (of_ben("valid_share", "return 5"), "row_fault"),
    "result is no JSON": (of_ben("result", "return {'a': object()}"), "row_fault"),
    "contradiction raises": (of_ben("contradiction", "raise KeyError(row.agent_id)"), "books_contradict"),
}
STOPS = {
    "known raises": ("    def known(self, facts):\n        raise ValueError('no')\n", "known() of"),
    "known is True": ("    def known(self, facts):\n        return True\n", "must return a Known, not bool"),
    "no facts shown": ("    def shown_facts(self, *_):\n        raise KeyError('no')\n", "shown_facts() of"),
}


def test_a_class_that_fails_costs_the_row_or_stops_with_one_sentence(
    make_database: Callable[..., str], template_database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = make_database(template_database)
    recorded(url, tmp_path, desk, desk_facts, 1)
    flags = ["--database-url", url, "--home", str(tmp_path), "--until", NOW.isoformat()]
    for number, (name, (text, reason)) in enumerate(COSTS_BEN.items()):
        file = tmp_path / f"own_{number}.py"
        file.write_text(text)
        assert check_windows.main([*flags, "--world", str(file), "--min-windows", "1"]) == 0, name
        capsys.readouterr()
        assert judge_windows.main([*flags, "--world", str(file), "--json"]) == 0, name
        told = capsys.readouterr()
        [window] = json.loads(told.out)["windows"]
        [group] = window["groups"]
        assert {one["agent"] for one in group["verdicts"]} == {"ada", "cleo", "dan"}, name
        assert reason in told.out, name
    for number, (name, (text, words)) in enumerate(STOPS.items()):
        file = tmp_path / f"stops_{number}.py"
        file.write_text(CLASS + text)
        assert judge_windows.main([*flags, "--world", str(file)]) == 2, name
        assert words in capsys.readouterr().err, name


def test_what_a_class_returns_for_a_reply_is_an_action_or_nothing(tmp_path: Path) -> None:
    says = "    @property\n    def can_parse(self):\n        return True\n    def parse(self, reply, logged=None):\n"
    for body in ("return reply", "raise KeyError(reply)", "return {'action': 'GO'}", "return Action"):
        file = tmp_path / "own.py"
        file.write_text(CLASS + says + f"        {body}\n")
        assert load_world(str(file)).parse("GO") is None, body
    file.write_text(CLASS + says + "        return Action('GO', success=True)\n")
    assert load_world(str(file)).parse("GO") == Action("GO", success=True)


def test_words_about_a_success_are_kept_short(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(CLASS + "    def success(self, row, facts):\n        return Success(1.0, 'x' * 100_000)\n")
    found = load_world(str(file)).success(make_trajectory(), WindowOutcomes())
    assert found is not None
    assert len(found.told) == 300


VIEWS = {
    "no_subject": ("window_id, kind, value_after", "has no column subject"),
    "no_kind": ("window_id, subject, value_after", "has no column kind"),
    "no_window": ("subject, kind, value_after", "window_id does not exist"),
    "timestamps": ("(window_id || ':00')::timestamp AS window_id, subject, kind", "needs window_id, subject and kind"),
    "divides": ("window_id, subject, kind, 1 / (length(kind) - length(kind)) AS value_after", "division by zero"),
    "nothing": ("window_id, subject, kind, 'NaN'::float8 AS value_after", "have no value yet"),
    "endless": ("window_id, subject, kind, 1e400::numeric AS value_after", "have no value yet"),
}


def test_a_view_that_lacks_a_column_or_holds_nonsense_says_so(
    make_database: Callable[..., str], template_database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = make_database(template_database)
    recorded(url, tmp_path, desk, desk_facts, 1)

    async def make() -> None:
        connection = await asyncpg.connect(url)
        for name, (columns, _) in VIEWS.items():
            await connection.execute(f"CREATE VIEW {name} AS SELECT {columns} FROM hindsight.window_facts")
        await connection.close()

    asyncio.run(make())
    flags = ["--database-url", url, "--home", str(tmp_path), "--until", NOW.isoformat(), "--world", "desk"]
    for name, (_, words) in VIEWS.items():
        code = check_windows.main([*flags, "--facts-view", name])
        told = capsys.readouterr()
        assert code == (3 if "value yet" in words else 2), (name, told)
        assert words in told.out + told.err, (name, told)


def test_a_world_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load_world(str(tmp_path / "own.toml"))
