"""Is the time of every stage in proportion to what an agent writes? Measured at two sizes, one four times the other.

    python benchmarks/linear.py [--quick]

Inputs are what an attacker would write: long text without a place to stop at, many steps, many rows, many names that
become equal, deep JSON. Printed is the CPU time at both sizes and the exponent between them; the command ends with 1
if a stage takes more than 1.3 times its share. What a model computes is not in it: attention takes the square of a
sequence by its nature, and the context bounds the sequence.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from data_bridge.art_converter import ConversionRules, RewardedTrajectory, convert_group
from data_bridge.decode import Undecodable, decode_steps, role_of
from data_bridge.models import AgentTrajectory, Window
from data_bridge.quality import CheckedWindow, Rules, check
from data_bridge.redaction import redact
from data_bridge.scoring import _says
from data_bridge.survey_types import summarise
from data_bridge.window_ids import end_of
from tests.builders import WINDOW, make_action, make_call, make_outcomes, make_step, make_trajectory
from trainer.config.sections import DropoutSettings, GroupingSettings, PlanSettings
from trainer.evaluate.decision_points import decision_points
from trainer.judge.outcome import assess
from trainer.judge.prompt import OverContext, fit, load_rubric
from trainer.judge.reply import BadReply, parse
from trainer.judge.text import clean, count_tokens, encode
from trainer.judge.view import view_of
from trainer.plan.dropout import Droppable, plan_dropout
from trainer.plan.grouping import partition
from trainer.plan.plan import make_plan
from trainer.train.backends.packing import best_clusters
from trainer.types import Group

TIMES = 4
MOST = 1.3
"""How much more than in proportion a stage may take; what sorts takes a little more."""
NOISE = 0.01  # seconds: shorter times say nothing
RULES = Rules(now=end_of(WINDOW, 1) + timedelta(hours=1))
RUBRIC = load_rubric("trading")

Case = Callable[[int], Callable[[], object]]
"""What makes an input of about n bytes, rows or steps, and gives the work to be timed."""


def text(unit: str, work: Callable[[str], object]) -> Case:
    def of(size: int) -> Callable[[], object]:
        made = unit * (size // len(unit))
        return lambda: work(made)

    return of


def refused(work: Callable[[], object], *reasons: type[Exception]) -> object:
    try:
        return work()
    except reasons as reason:
        return reason


def steps_of(size: int, **call: Any) -> AgentTrajectory:
    return make_trajectory("a", steps=[make_step(place, calls=[make_call(**call)]) for place in range(size)])


def window_of(rows: list[AgentTrajectory]) -> CheckedWindow:
    return CheckedWindow(Window(WINDOW, 1, tuple(rows), make_outcomes()), tuple(rows), ())


def rows_of(size: int, window: str = "", **fields: Any) -> list[AgentTrajectory]:
    row = make_trajectory("a", **fields)
    names = [f"agent-{place}" for place in range(size)]
    return [msgspec.structs.replace(row, agent_id=name, trajectory_id=f"{window}{name}") for name in names]


def decoding(made: Callable[[int], str]) -> Case:
    def of(size: int) -> Callable[[], object]:
        written = made(size).encode()
        return lambda: refused(lambda: decode_steps(written), Undecodable)

    return of


def viewing(made: Callable[[int], AgentTrajectory], context: int = 8_000) -> Case:
    """What the judge is shown of a group with such a row, shortened to its context."""

    def of(size: int) -> Callable[[], object]:
        group = Group("g", WINDOW, (made(size), make_trajectory("b")), make_outcomes())
        return lambda: refused(lambda: fit(view_of(group), RUBRIC, context), OverContext)

    return of


def names_that_become_equal(size: int) -> AgentTrajectory:
    """Half of them ``a`` with invisible characters, half of them what such an ``a`` is called instead."""
    unseen = str.maketrans("01", "\u200b\u200c")
    names = {f"a ({place})" if place % 2 else f"a{place:020b}".translate(unseen): 1 for place in range(size)}
    return make_trajectory("a", steps=[make_step(action=make_action(parameters=names))])


def checking(size: int) -> Callable[[], object]:
    window = window_of(rows_of(size)).window
    return lambda: summarise(check(window, RULES))


def assessing(size: int) -> Callable[[], object]:
    row, outcomes = steps_of(size), make_outcomes()
    return lambda: assess(row, outcomes)


def planned(grouping: str) -> Case:
    def of(size: int) -> Callable[[], object]:
        rows = rows_of(size, steps=[make_step(balance=None if grouping == "unknown" else 1000.0)])
        settings = GroupingSettings(grouping="window" if grouping == "window" else "matched")
        return lambda: partition(rows, settings, 0)

    return of


def one_agents_rows(size: int) -> Callable[[], object]:
    rows = [*rows_of(size // 2), *(replace_agent(one, "loud") for one in rows_of(size // 2))]
    return lambda: partition(rows, GroupingSettings(), 0)


def replace_agent(row: AgentTrajectory, agent: str) -> AgentTrajectory:
    return msgspec.structs.replace(row, agent_id=agent, trajectory_id=f"{agent}-{row.trajectory_id}")


def dropout(size: int) -> Callable[[], object]:
    """Groups of three, so that many lose too much, and agents that are in many of them."""
    members = [Droppable(f"t{place}", f"agent-{place % 50}", f"g{place // 3}") for place in range(size)]
    settings = DropoutSettings(dropout=0.33)
    return lambda: plan_dropout(members, settings, 0)


def plan_of_windows(size: int) -> Callable[[], object]:
    names = (f"w{place}" for place in range(size // 8))
    windows = [replace(summarise(window_of(rows_of(8, name))), window_id=name) for name in names]
    return lambda: make_plan(windows, PlanSettings(), 0)


def converting(**call: Any) -> Case:
    def of(size: int) -> Callable[[], object]:
        members = [RewardedTrajectory(steps_of(size, **call), 1.0, is_above_mean=True)]
        return lambda: asyncio.run(convert_group(members, ConversionRules("hindsight")))

    return of


def asking(size: int) -> Callable[[], object]:
    """Many agents, one of which took many steps, all with the same question."""
    window = window_of([*rows_of(size), steps_of(size)])
    return lambda: decision_points(window, purposes=("action",), max_points=8, seed=0)


def tool_calls(size: int) -> Callable[[], object]:
    call = {"function": {"name": "a", "arguments": "{}"}}
    spelt = '{"name":"a","arguments":{}}\n'
    number = size // len(spelt)
    return lambda: _says(spelt * number, "", [call] * number)


def clusters(size: int) -> Callable[[], object]:
    """As many replies in a group, the prompts of which share more and more."""
    sequences = sorted([1, 2, 3, place % 7, place, 5] for place in range(size))
    return lambda: best_clusters(sequences, [5] * size)


def replies(unit: str) -> Case:
    return text(unit, lambda made: refused(lambda: parse(made, ["a"]), BadReply))


CASES: dict[str, tuple[Case, int]] = {
    **{f"redact {unit!r}": (text(unit, redact), 1_000_000) for unit in ("a.", "a://:", "http://u:p", "@:/")},
    **{f"clean {unit!r}": (text(unit, clean), 400_000) for unit in ("a", "\u200b", "\uff41\u0301", "<>")},
    "estimate tokens": (text("aB\u4e00 ", count_tokens), 4_000_000),
    "escape": (text("\x00<\u202e", encode), 200_000),
    "decode many steps": (decoding(lambda n: json.dumps([{"llmCalls": [], "action": None}] * n)), 1_200),
    "decode long text": (decoding(lambda n: json.dumps([{"llmCalls": [{"response": 'a"\\' * n}]}])), 500_000),
    "decode leniently": (decoding(lambda n: json.dumps([{"stepNumber": "x", "llmCalls": [{"a": 1}]}] * n)), 1_000),
    "decode deep JSON": (decoding(lambda n: "[" * n), 500_000),
    "decode deep results": (decoding(lambda n: '[{"action":{"result":' + "[" * n + "]" * n + "}}]"), 200_000),
    "decode metadata": (text('{"a":', role_of), 500_000),
    "check many rows": (checking, 4_000),
    "view long prompts": (viewing(lambda n: steps_of(4, prompt="x y " * (n // 16))), 200_000),
    "view long prompts of signs": (viewing(lambda n: steps_of(1, prompt="<\u200b" * (n // 2))), 100_000),
    "view long reasons": (viewing(lambda n: steps_of(1, reasoning="x y " * (n // 4))), 1_000_000),
    "view many steps": (viewing(lambda n: steps_of(n, prompt="x" * 40)), 1_000),
    "view many names": (viewing(names_that_become_equal), 4_000),
    "assess many steps": (assessing, 5_000),
    **{f"parse {unit!r}": (replies(unit), 400_000) for unit in ("{", '{"a":1} ', '{"a', "[1,", "```json\n{")},
    "group by window": (planned("window"), 4_000),
    "group by balance": (planned("matched"), 4_000),
    "group unknown balances": (planned("unknown"), 4_000),
    "group one agent's rows": (one_agents_rows, 4_000),
    "drop out": (dropout, 24_000),
    "plan windows": (plan_of_windows, 8_000),
    "ask at decision points": (asking, 800),
    "convert many calls": (converting(completion_token_ids=[5, 2], completion_logprobs=[-1.0, -1.0]), 200),
    "compare tool calls": (tool_calls, 200_000),
    "share prompts": (clusters, 1_500),
}


def seconds(work: Callable[[], object], tries: int) -> float:
    best = math.inf
    for _ in range(tries):
        gc.collect()
        gc.disable()  # its passes over all that is alive are not the work's own time
        started = time.process_time()
        work()
        best = min(best, time.process_time() - started)
        gc.enable()
    return best


def measure(name: str, *, share: float = 1.0, tries: int = 3) -> tuple[float, float]:
    """CPU seconds of a case at its size and at four times its size; ``share`` makes both smaller."""
    case, size = CASES[name]
    size = max(int(size * share), 8)
    return seconds(case(size), tries), seconds(case(TIMES * size), tries)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller inputs")
    options = parser.parse_args()
    print(f"{'':<28} {'n':>10} {f'{TIMES} n':>10} {'exponent':>9}")
    slow = []
    for name in CASES:
        small, large = measure(name, share=0.3 if options.quick else 1.0)
        exponent = math.log(max(large, NOISE) / max(small, NOISE)) / math.log(TIMES)
        is_slow = large > MOST * TIMES * max(small, NOISE)
        slow += [name] * is_slow
        print(
            f"{name:<28} {small:>8.3f} s {large:>8.3f} s {exponent:>9.2f}{'  too slow' if is_slow else ''}", flush=True
        )
    if slow:
        print(f"not in proportion: {', '.join(slow)}")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
