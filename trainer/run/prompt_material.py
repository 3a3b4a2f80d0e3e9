"""What mutations may draw on, from what the ledger knows of the game: limits for errors that happen again and again.

In the simulated market also its format and worked examples. A real game's are the operator's to give.
"""

from __future__ import annotations

from collections.abc import Sequence

from data_bridge.database import Database
from trainer.ledger.observations import observed_since
from trainer.ledger.simulation import newest_simulated
from trainer.patterns.faults import FaultSource
from trainer.patterns.significance import ErrorPattern, patterns_of
from trainer.prompts.market import FAULTS, market_material
from trainer.prompts.material import PromptMaterial, rules_from


async def material_for(database: Database, model: str, reply: str | None = None) -> PromptMaterial:
    """``reply``: the regular expression of a whole valid reply, if the operator gives one."""
    codes = codes_of(patterns_of(await observed_since(database.pool, model, 0)))
    if reply is None and await newest_simulated(database) is not None:
        return market_material(codes or FAULTS)
    return PromptMaterial(reply=reply, rules=rules_from(codes))


def codes_of(patterns: Sequence[ErrorPattern]) -> list[str]:
    """The codes among the patterns, the most frequent first. Texts of errors are not taken: agents can write them."""
    coded = [one for one in patterns if one.source is FaultSource.CODE]
    return [one.template for one in sorted(coded, key=lambda one: -len(one.trajectories))]
