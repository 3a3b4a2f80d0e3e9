"""A policy that is killed in an update: ``python -m tests.fakes.dying_policy DATABASE_URL HOME WHERE``."""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import sys
from pathlib import Path
from typing import Any

from data_bridge.database import open_database
from tests.builders_lessons import WordEmbedder
from trainer.config.prompts import ConsolePrompts, PolicySettings
from trainer.ledger import policy as ledger
from trainer.prompts.policy import PromptPolicy
from trainer.run.policy_desk import PolicyDesk


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


async def main(url: str, home: Path, where: str) -> None:
    settings = PolicySettings(policy_hidden=(8,), policy_epochs=1, policy_buffer=16)
    async with open_database(url, home) as database:
        desk = PolicyDesk(database, settings, ConsolePrompts(), WordEmbedder, model="hindsight")
        embedding = struct.pack("<1536f", *[0.1] * 1536)
        for number in range(settings.policy_buffer):
            name = str(number)
            sent = ledger.SentExperience(name, 1, name, 0, embedding, (True,) * 6, number % 6, number / 10, True)
            await desk.store(sent)
        if where == "learning":
            PromptPolicy.update = die  # type: ignore[method-assign]
        elif where == "committing":
            ledger._forget_weights = die  # the last statement of the transaction
        await desk.update(wait=True)
        die()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3]))
