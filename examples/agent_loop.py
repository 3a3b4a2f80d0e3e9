"""An agent that learns by being used: the whole loop in one class, with a game of its own.

    python examples/agent_loop.py [--home DIR]

Eight agents guess each hour whether it will rain, from a forecast that is wrong in a storm, and it storms. They share
one `AgentLoop`: it looks lessons up, puts them into the prompt, asks the model (here a stand-in that obeys what it
reads), explores now and then, lets the guard check the reply, records everything, and writes what really happened.
After three hours somebody notes what was learnt, as distillation does after each judged batch; the hours after it are
better. Every part is a class of a few lines: replace any of them by your own.
"""

import asyncio
import random
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from data_bridge.agent_loop import AgentLoop, AgentPrompt, Seen
from data_bridge.database import Database
from data_bridge.lesson_client import Decider, ShownLesson
from data_bridge.models import Action, ChatMessage, LLMCall, PredictionOutcome, WindowOutcomes
from data_bridge.recorder import Recorder
from data_bridge.window_ids import end_of, last_closed_windows, start_of
from trainer.cli.frame import database_of, run_command
from trainer.config.data_commands import CheckSettings
from trainer.config.sections import moment_of
from trainer.world.play import refuse_a_live_game

AGENTS = [f"agent-{number}" for number in range(1, 9)]
HOURS, LEARNT_AFTER = 6, 3


class Rules:
    """The prompt. A version of it could come from a prompt store."""

    async def prompt(self, agent_id: str, seen: Seen) -> AgentPrompt:
        system = ChatMessage(role="system", content="Bet on rain: answer YES or NO.")
        return AgentPrompt([system, ChatMessage(role="user", content=seen.text)], "rain-1")


class Obedient:
    """A stand-in for a model: believes the forecast, unless its notes say otherwise. See also `OpenAIActing`."""

    async def act(self, agent_id: str, messages: Sequence[ChatMessage]) -> LLMCall:
        said, notes = messages[-1].text(), messages[0].text()
        rain = "likely" in said and "unlikely" not in said
        if "Storm" in said and "In a storm the forecast is wrong" in notes:
            rain = not rain
        return LLMCall(model="stand-in", response="YES" if rain else "NO", temperature=0.0, max_tokens=4)


class Notes:
    """Lessons from a list. A team uses `LessonsEndpoint`; this one keeps its promise: nothing before it was known."""

    def __init__(self) -> None:
        self.known: list[tuple[datetime, ShownLesson]] = []

    async def look_up(self, context: str, decider: Decider) -> Sequence[ShownLesson]:
        return [lesson for known_at, lesson in self.known if known_at <= decider.as_of][:1]


class Curious:
    """Every tenth decision by chance."""

    def explore(self, agent_id: str, seen: Seen) -> str | None:
        dice = random.Random(f"{agent_id} {seen.at}")
        return dice.choice(["YES", "NO"]) if dice.random() < 0.1 else None


class OnlyBets:
    """Lets nothing through but a bet."""

    async def guard(self, agent_id: str, seen: Seen, reply: str) -> Action:
        if reply not in ("YES", "NO"):
            return Action(action_type="BET", success=False, error="not_a_bet")
        return Action(action_type="BET", parameters={"marketId": seen.data, "side": reply, "amount": 10}, success=True)


async def play_hour(loop: AgentLoop, database: Database, window_id: str, now: datetime) -> float:
    """All agents at once. Returns the share that was right."""
    rain = random.Random(window_id).random() < 0.5
    text = f"Storm from the west. Rain is {'unlikely' if rain else 'likely'}."
    market, start = f"rain-{window_id}", start_of(window_id)
    truth = "YES" if rain else "NO"

    async def one(agent: str) -> bool:
        seen = Seen(text, {"agentBalance": 100.0, "agentPnL": 0.0}, at=start + timedelta(minutes=5), data=market)
        async with loop.window(agent, started_at=start) as hour:
            decided = await hour.decide(seen)
            won = 10.0 if decided.reply == truth else -10.0
            await hour.end(final_balance=100 + won, final_pnl=won, at=end_of(window_id, 1))
        return decided.reply == truth

    right = await asyncio.gather(*map(one, AGENTS))
    outcome = PredictionOutcome(market, "Did it rain?", truth, 0.9 if rain else 0.1)
    await loop.outcome(database, window_id, WindowOutcomes(predictions=(outcome,)), now=now)
    return sum(right) / len(right)


async def play(settings: CheckSettings) -> int:
    now, notes = moment_of(settings.windows.until), Notes()
    windows = last_closed_windows(HOURS, now)
    async with database_of(settings, migrate=True) as database:
        await refuse_a_live_game(database)
        async with Recorder(database, Path(settings.common.home) / "spool") as recorder:
            loop = AgentLoop(
                recorder, prompt=Rules(), act=Obedient(), guard=OnlyBets(), lessons=notes, explore=Curious()
            )
            for number, window_id in enumerate(windows):
                if number == LEARNT_AFTER:
                    learnt = ShownLesson("storm", "Storms: In a storm the forecast is wrong.")
                    notes.known.append((end_of(windows[number - 1], 1), learnt))
                print(f"{window_id}: {await play_hour(loop, database, window_id, now):.0%} right")
    print(f"{recorder.delivered} trajectories recorded.", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(run_command(play, CheckSettings, None, prog="agent_loop.py", description=__doc__))
