"""lineage --rewards: how every verdict of a step became an advantage, shown and computed again."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from data_bridge.database import Database
from data_bridge.errors import BackendError
from trainer.cli.output import say, say_json
from trainer.cli.tables import Column, printable, show_heading, show_table
from trainer.ledger.rewards import StoredHistory, history_of_step
from trainer.progress import counted
from trainer.rewards import MemberReward
from trainer.train.reward_history import differences
from trainer.types import Checkpoint

_SHOWN = 5


async def show_rewards(database: Database, point: Checkpoint, *, as_json: bool) -> None:
    """Print the reward history of ``point``. BackendError if a trained advantage cannot be computed again."""
    found = await history_of_step(database, point.model, point.step)
    if found is None or found.history is None:
        why = "is the untrained base model" if point.step == 0 else "was trained without one"
        say_json({"checkpoint": point.name, "rewards": None}) if as_json else say(f"{point.name} {why}: no rewards.")
        return
    wrong = differences(found.history, found.scores)
    if as_json:
        say_json({"checkpoint": point.name, "rewards": found.history, "trained": found.trained, "differences": wrong})
    else:
        _show(point, found, found.history.members)
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise BackendError(
            f"{point.name}: its reward history does not rebuild ({'; '.join(wrong[:_SHOWN])}{more}): somebody changed "
            "the ledger, or credit is computed in another way than by the rule that the batch was stored with."
        )
    if not as_json:
        say(f"Rebuilt bit for bit: {counted(len(found.trained), 'trained advantage')} of {point.name}.")


def _show(point: Checkpoint, found: StoredHistory, members: Sequence[MemberReward]) -> None:
    rule = found.history.rule if found.history is not None else None
    show_heading(f"{point.name}, batch {found.batch_id}", sys.stdout)
    if rule is not None:
        say(
            f"  rule: validity {rule.validity:g}, an hour's weight at most {rule.most_weight:g}, advantages "
            f"{'divided by' if rule.scale else 'not divided by'} the group's deviation"
            + (f", groups with error patterns at most {rule.most_emphasis:g}" if rule.most_emphasis > 1 else "")
            + (f", decisions shaped by a potential at discount {rule.discount:g}" if _is_shaped(members) else "")
        )
    weighed = ("pattern_weight",) if any(one.graded.emphasis > 1 for one in members) else ()
    numbers = ("validity", "decision", "weight", *weighed, "credit", "advantage")
    show_table(
        [
            Column("group", [one.group_id for one in members], rank=2),
            Column("trajectory", [printable(one.graded.trajectory_id, 40) for one in members]),
            Column("answer", [one.graded.answer or "invalid" for one in members], rank=1),
            Column("verdict", [f"{one.graded.score:.3f}" for one in members], is_number=True),
            *(
                [Column("potential", [f"{one.graded.potential:+.4f}" for one in members], is_number=True)]
                if _is_shaped(members)
                else []
            ),
            *(
                Column(name.replace("_", " "), [f"{getattr(one, name):+.4f}" for one in members], is_number=True)
                for name in numbers
            ),
            Column("", ["" if one.graded.trajectory_id in found.trained else "mean only" for one in members]),
        ],
        sys.stdout,
        good=[one.graded.trajectory_id in found.trained for one in members],
    )


def _is_shaped(members: Sequence[MemberReward]) -> bool:
    return any(one.graded.ahead for one in members)
