"""lineage: from a checkpoint back to what made it, from a window forward to what it made."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from trainer.cli.frame import database_of, run_command
from trainer.cli.output import say, say_json
from trainer.config.commands import LineageSettings
from trainer.progress import counted

if TYPE_CHECKING:
    from trainer.ledger.lineage import Ancestor, TrainedGroup, WindowStory
    from trainer.run.prompt_lineage import PromptStory

_METRICS = ("reward", "reward_std", "loss", "kl", "entropy", "ratio", "clip_share", "grad_norm", "staleness")
"""The metrics to print; ``--json`` has all of them."""


def main(argv: Sequence[str] | None = None) -> int:
    return run_command(
        _work,
        LineageSettings,
        argv,
        prog="lineage.py",
        description="Walks from a checkpoint back to batches, windows, verdicts, rubric, configuration and code;\n"
        "with --window from a window forward to the checkpoints it trained; with --rewards from each verdict\n"
        "to the advantage that was trained, computed again.",
    )


async def _work(settings: LineageSettings) -> int:
    from trainer.cli.lineage_rewards import show_rewards
    from trainer.ledger.checkpoints import named_checkpoint
    from trainer.ledger.lineage import walk_back, walk_forward
    from trainer.run.prompt_lineage import prompt_story

    async with database_of(settings, existing=True) as database:
        if settings.lineage.window is not None:
            story = await walk_forward(database, settings.lineage.window)
            if settings.output.json_output:
                say_json(story)
            else:
                _show_story(story)
            return 0
        asked = await named_checkpoint(database, settings.lineage.checkpoint, settings.model.model)
        if settings.lineage.rewards:
            await show_rewards(database, asked, as_json=settings.output.json_output)
            return 0
        ancestors = await walk_back(database, asked.model, asked.step, depth=settings.lineage.depth)
        members = [member.trajectory_id for one in ancestors for group in one.groups for member in group.trajectories]
        prompts = await prompt_story(database, asked, members)
    if settings.output.json_output:
        say_json({"checkpoint": asked.name, "lineage": ancestors, "prompts": prompts})
        return 0
    for ancestor in ancestors:
        _show_ancestor(ancestor)
    if not ancestors:
        say(f"{asked.name} is the untrained base model: it has no training history.")
    else:
        _show_parent(ancestors[-1], is_whole=settings.lineage.depth == 0)
    _show_prompts(prompts)
    return 0


def _show_prompts(story: PromptStory) -> None:
    """What agents were prompted with, by releases of the checkpoint and by the messages of its training data."""
    for one in story.released:
        made = " ◀ ".join(f"{each.prompt_id}{f' ({each.mutation})' if each.mutation else ''}" for each in one.ancestors)
        say(f"Prompts {one.prompt_version}, {one.role or 'all roles'}: {made}")
    if story.used:
        used = ", ".join(f"{name} {number}" for name, number in sorted(story.used.items()))
        say(f"Trajectories by the prompt that their messages begin with: {used}.")


def _show_parent(oldest: Ancestor, *, is_whole: bool) -> None:
    """What comes before the last checkpoint that was shown."""
    parent = f"{oldest.checkpoint.model}@step{oldest.parent_step}" if oldest.parent_step > 0 else oldest.begun_from
    if parent is not None:
        more = "this ledger has nothing of it" if is_whole else "--depth 0 shows the whole history"
        say(f"Parent: {parent} ({more}).")


def _show_ancestor(ancestor: Ancestor) -> None:
    from trainer.cli.tables import show_heading

    point = ancestor.checkpoint
    if ancestor.begun_from is not None:
        show_heading(f"{point.name}, begun {ancestor.trained_at:%Y-%m-%d %H:%M} UTC", sys.stdout)
        say(f"  {'base model:':<12} {point.base_model} ({point.backend})", f"  {'files:':<12} {point.location}")
        say(f"  {'from:':<12} {ancestor.begun_from}, whose adapter it is (--init-from); nothing was trained for it")
        return
    show_heading(f"{point.name}, trained {ancestor.trained_at:%Y-%m-%d %H:%M} UTC", sys.stdout)
    windows, metrics = ancestor.window_ids, ancestor.metrics
    facts = {
        "base model": f"{point.base_model} ({point.backend})",
        "files": point.location,
        "from": f"step {ancestor.parent_step} by batch {ancestor.batch_id} of run {ancestor.run_id}",
        "code": ancestor.code_version or "not recorded",
        "data": f"{counted(len(windows), 'window')}, {windows[0]} to {windows[-1]}" if windows else "none recorded",
        "tokens": f"{ancestor.trainable_tokens:,} trained",
        "metrics": ", ".join(f"{name} {metrics[name]:.4g}" for name in _METRICS if metrics.get(name) is not None),
        "settings": _unusual(ancestor.settings) or "all defaults",
    }
    for name, text in facts.items():
        say(f"  {name + ':':<12} {text}")
    for group in ancestor.groups:
        _show_group(group)


def _unusual(settings: dict[str, Any]) -> str:
    """The run's settings that differ from today's defaults; ``--json`` has all of them."""
    from trainer.config.commands import TrainSettings
    from trainer.config.settings import public_values, settings_from

    defaults = public_values(settings_from(TrainSettings))
    unusual = {name: value for name, value in settings.items() if value != defaults.get(name)}
    return ", ".join(f"{name}={value}" for name, value in sorted(unusual.items()))


def _show_group(group: TrainedGroup) -> None:
    from trainer.cli.tables import printable

    again = f", replayed (use {group.use})" if group.use > 1 else ""
    say(
        f"  window {group.window_id}, group {group.group_id}{again}: judged by {group.judge}, "
        f"rubric {group.rubric} {group.rubric_version}, verdict {group.verdict_key[:12]}"
    )
    for one in group.trajectories:
        only_mean = "" if one.has_tokens else ", used for the mean only"
        data = f", data {one.content_hash[:12]}" if one.content_hash else ""
        say(
            f"    {one.score:.2f} {printable(one.agent_id, 60)} ({printable(one.trajectory_id, 60)}{data}{only_mean}): "
            f"{printable(one.explanation)}"
        )


def _show_story(story: WindowStory) -> None:
    say(f"Window {story.window_id}")
    for one in story.trained:
        became = f", {counted(one.later_steps, 'later step')} built on it" if one.later_steps else ""
        used = f"; agents: {one.state}" if one.state else "; not promoted"
        say(
            f"  trained {one.checkpoint.name}: {counted(one.trajectories, 'trajectory')}, "
            f"mean score {one.mean_score:.2f}, batch {one.batch_id} of run {one.run_id}{became}{used}"
        )
    for reason, number in story.excluded.items():
        say(f"  left out: {counted(number, 'trajectory')}, {reason}")
    if story.evaluated:
        say(f"  evaluated on it: {', '.join(story.evaluated)}")
