"""What the routes work with: opened by the command, handed to every request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from starlette.requests import Request

from data_bridge.database import Database
from trainer.config.settings import Command
from trainer.config.training import AddressSettings, GateSettings
from trainer.console.door import address_of
from trainer.console.keys import Caller
from trainer.console.live import Hub
from trainer.console.log_check import LogCheck
from trainer.console.problems import Refused, refusal_of
from trainer.ledger.audit import note_deed, note_outcome

if TYPE_CHECKING:
    from trainer.advice.advisor import Advisor
    from trainer.run.lesson_desk import LessonDesk
    from trainer.run.policy_desk import PolicyDesk
    from trainer.run.score import RewardScorer


@dataclass(frozen=True, slots=True)
class Services:
    """``command`` are the settings that a training on this host starts from; nothing here reads them by name."""

    database: Database
    hub: Hub
    home: Path
    model: str
    command: Command
    gate: GateSettings
    addresses: AddressSettings
    check: LogCheck
    scorer: Callable[[], RewardScorer]
    """Made when it is first needed: it brings the judge with it."""
    advisor: Callable[[], Advisor]
    """The one advisor, made when it is first needed."""
    close_advisor: Callable[[], Awaitable[None]]
    wanted_precision: float
    lessons: LessonDesk
    policy: PolicyDesk
    """The prompt policy, loaded when it is first asked."""


class HasDatabase(Protocol):
    @property
    def database(self) -> Database: ...


@asynccontextmanager
async def audited(
    services: HasDatabase, caller: Caller, request: Request, deed: str, target: str, reason: str = ""
) -> AsyncIterator[None]:
    """A row before the deed, and what came of it after."""
    audit_id = await note_deed(
        services.database, who=caller.name, address=address_of(request), deed=deed, target=target, reason=reason
    )
    try:
        yield
    except Exception as error:
        refused = refusal_of(error)
        await note_outcome(services.database, audit_id, f"refused ({refused.status}): {refused.message}")
        raise refused from error if not isinstance(error, Refused) else None
    await note_outcome(services.database, audit_id, "done")
