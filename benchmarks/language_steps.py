"""Three decisions a window on a language model, credited as a whole and one by one: for ``step_credit.py --model``.

The hours, lines and questions are those of ``language_week.py``; a window is three hours of which every agent decides
each in its own prompt, from a market without luck. Prepare, credit, packing, ART's loss and Adam are the trainer's own,
once with ``--step-credit`` and once without; every step is played afresh, with as many replies for both.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from language_week import VERBS, LanguageWeek, Point, Reader, keep, kept
from off_policy import AGENTS, figure, make_step_on, step_settings

from tests.builders import WINDOW, make_action, make_outcomes, make_step, make_trajectory
from tests.builders_training import IDENTITY, make_trainee
from trainer.inference.base_model import model_directory
from trainer.inference.policy import CpuPolicy
from trainer.types import Group, JudgedGroup, Verdict
from trainer.world.questions import Question, questions

DECISIONS, ENOUGH = 3, 0.8
CREDITS = ("whole", "decisions")


def asked(number: int) -> tuple[Question, ...]:
    """Questions of one day's worked examples, so that their beginning is read once; as many of either direction."""
    found: dict[int, list[Question]] = {1: [], -1: []}
    drawn = questions(8 * number, "trained", "trained")
    for one in drawn:
        if one.messages[:-1] == drawn[0].messages[:-1] and len(found[one.direction]) < number // 2:
            found[one.direction].append(one)
    return (*found[1], *found[-1])


def window(week: LanguageWeek, points: list[Point], name: str, step: int) -> JudgedGroup:
    """Agents that decide at each point by themselves, and who of them was right where."""
    members, verdicts = [], []
    for agent in range(AGENTS):
        chosen = [week.chance.choices((0, 1), weights=point.chances)[0] for point in points]
        steps = [
            make_step(
                number,
                calls=[point.call(one, f"hindsight@step{step}", is_foreign=False)],
                action=make_action(VERBS[one]),
            )
            for number, (point, one) in enumerate(zip(points, chosen, strict=True))
        ]
        right = tuple(float(one == point.right) for point, one in zip(points, chosen, strict=True))
        members.append(make_trajectory(f"agent-{agent}", trajectory_id=f"{name}-{agent}", steps=steps))
        verdicts.append(Verdict(f"{name}-{agent}", sum(right) / DECISIONS, 0.0, "", steps=right))
    return JudgedGroup(Group(name, WINDOW, tuple(members), make_outcomes()), tuple(verdicts), IDENTITY, name)


async def train(policy: CpuPolicy, credit: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train until it reads, at most ``--most`` steps: the chance of the right line before each step."""
    started, reader = time.process_time(), Reader(asked(options.questions))
    trainee = make_trainee(min_spread=0.0, step_credit=credit == "decisions", step_discount=options.discount[0])
    settings, week = step_settings(trainee, options), LanguageWeek(policy, seed, luck=0.0)
    curve, areas = list[float](), list[float]()
    for step in range(options.most + 1):
        _, right, area = reader.read(policy)
        curve.append(right)
        areas.append(area)
        print(f"{credit}, seed {seed}, step {step}: right {right:.3f}", file=sys.stderr, flush=True)
        if right >= ENOUGH or step == options.most:
            break
        points = week.points(options.windows * DECISIONS)
        groups = [
            window(week, points[DECISIONS * place : DECISIONS * (place + 1)], f"{step}-{place}", step)
            for place in range(options.windows)
        ]
        await make_step_on(policy, trainee, groups, step, settings)
    cpu = time.process_time() - started
    return {"settings": settings_of(options), "right": curve, "area": areas, "cpu_seconds": cpu}


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    names = ("model", "windows", "most", "learning_rate", "max_importance", "questions")
    return {"agents": AGENTS, "discount": options.discount[0], **{name: getattr(options, name) for name in names}}


def run(options: argparse.Namespace) -> None:
    """Make the runs that are missing in ``--keep``, seed by seed, and print all that are there."""
    for seed in range(options.seeds):
        for credit in CREDITS:
            path = options.keep / f"{credit}-{seed}.json"
            if kept(path, settings_of(options)) is None:
                directory = model_directory(options.model, options.home)
                policy = CpuPolicy(directory, rank=16, learning_rate=options.learning_rate, seed=seed)
                keep(path, asyncio.run(train(policy, credit, seed, options)))
    found = {credit: [kept(options.keep / f"{credit}-{seed}.json", settings_of(options)) or {}
                      for seed in range(options.seeds)] for credit in CREDITS}  # fmt: skip
    print(f"steps until the right line has a chance of {ENOUGH} ({options.most} if never), {options.seeds} seeds")
    steps = {credit: [float(len(one["right"]) - 1) for one in runs] for credit, runs in found.items()}
    for credit, numbers in steps.items():
        never = sum(one["right"][-1] < ENOUGH for one in found[credit])
        print(
            f"{credit:>10} {figure(numbers):>18}   never: {never}   by seed: {', '.join(f'{n:.0f}' for n in numbers)}"
        )
    shares = [one / other for one, other in zip(steps["decisions"], steps["whole"], strict=True) if other]
    print(f"{'share':>10} {figure(shares):>18}")
