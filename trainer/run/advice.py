"""Advice in a console: the one advisor of a process, and what it learns from what came of its proposals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from data_bridge.database import Database
from data_bridge.worlds.market import MARKET
from data_bridge.worlds.world import World
from trainer.config.console import AdviceSettings, AdvisorSettings
from trainer.config.derived import window_rules
from trainer.config.sections import EndpointSecrets, WindowSettings
from trainer.config.training import AddressSettings
from trainer.ledger.clock import clock
from trainer.ledger.releases import serving

if TYPE_CHECKING:
    from trainer.advice.advisor import Advisor


@dataclass(slots=True)
class AdvisorOfConsole:
    """Opened with the first question, closed with the console."""

    database: Database
    model: str
    settings: AdvisorSettings
    addresses: AddressSettings
    secrets: EndpointSecrets
    world: World = MARKET
    _made: Advisor | None = field(default=None)

    def __call__(self) -> Advisor:
        from trainer.advice.advisor import Advisor
        from trainer.advice.endpoint import opener

        if self._made is None:
            open_model = opener(self.addresses, self.secrets)
            self._made = Advisor(self.database, self.model, self.settings, open_model, self.world)
        return self._made

    async def close(self) -> None:
        if self._made is not None:
            await self._made.close()


async def learn_from_outcomes(database: Database, model: str, windows: WindowSettings, settings: AdviceSettings) -> int:
    """Settle proposals by the game's facts, then fit the promoted release's calibration; returns how many settled."""
    from trainer.advice.recalibrate import recalibrate
    from trainer.advice.settle import settle_from_facts

    settled = await settle_from_facts(database, model, window_rules(windows, now=await clock(database, windows.until)))
    promotion = await serving(database, model)
    if promotion is not None:
        await recalibrate(database, model, promotion.release.name, settings)
    return settled
