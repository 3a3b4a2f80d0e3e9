"""Agents of a game of your own: recorded while they play, then what `check_windows.py` says of the result.

    export OPENAI_BASE_URL=http://127.0.0.1:8808/v1 OPENAI_API_KEY=none OPENAI_MODEL=hindsight
    python examples/own_game.py

Any chat endpoint will do; this one is `scripts/serve.py`. Each hour three agents bet on rain. A game does three things:
it wraps the chat client with `record_openai`, records each agent's hour with a `Recorder`, and writes what really
happened when the hour is over. Past hours are played here, so that they can be checked at once; a live game leaves
the times out. The database is DATABASE_URL (a new one, after `scripts/run_migrations.py`) or the embedded one.
"""

import os
import random
import sys

from openai import AsyncOpenAI, OpenAIError

from data_bridge.errors import ConfigurationError
from data_bridge.models import Action, PredictionOutcome, WindowOutcomes
from data_bridge.outcomes import record_outcomes
from data_bridge.record_openai import record_openai
from data_bridge.recorder import Recorder
from data_bridge.window_ids import end_of, last_closed_windows, start_of
from trainer.cli.check_windows import main as check_windows
from trainer.cli.frame import database_of, run_command
from trainer.config.data_commands import CheckSettings
from trainer.config.sections import moment_of
from trainer.world.play import refuse_a_live_game

AGENTS = {"ada": "You are cautious.", "ben": "You trust every forecast.", "cleo": "You mistrust every forecast."}


async def bet(recorder: Recorder, client: AsyncOpenAI, agent: str, window_id: str, task: str, truth: str) -> None:
    """One agent's hour: what it knew and had, what it said and did, and what it had in the end."""
    start, end = start_of(window_id), end_of(window_id, 1)
    async with recorder.start_trajectory(agent, started_at=start) as trajectory:
        async with trajectory.step({"agentBalance": 100.0, "agentPnL": 0.0, "openPositions": 0}, at=start) as step:
            reply = await client.chat.completions.create(
                model=os.environ.get("OPENAI_MODEL", "hindsight"),
                messages=[{"role": "system", "content": AGENTS[agent]}, {"role": "user", "content": task}],
                max_tokens=8,
                user=agent,  # serve.py knows a canary's agents by it
            )
            said = (reply.choices[0].message.content or "").strip(" .\n").upper()
            is_valid = said in ("YES", "NO")
            stake = {"marketId": f"rain-{window_id}", "side": said, "amount": 10}
            step.complete_step(Action(action_type="BET", parameters=stake, success=is_valid))
        won = (10.0 if said == truth else -10.0) if is_valid else 0.0
        await trajectory.end_trajectory(final_balance=100 + won, final_pnl=won, at=end)


async def play_hour(recorder: Recorder, client: AsyncOpenAI, window_id: str) -> WindowOutcomes:
    """All agents face the same forecast, so they can be compared. Returns what really happened."""
    dice = random.Random(window_id)
    percent = dice.randrange(10, 100, 20)
    truth = "YES" if dice.randrange(100) < percent else "NO"
    for agent in AGENTS:
        task = f"Forecast: {percent} % rain in the next hour. Bet 10 coins on rain: answer YES or NO."
        await bet(recorder, client, agent, window_id, task, truth)
    return WindowOutcomes(predictions=(PredictionOutcome(f"rain-{window_id}", "Did it rain?", truth, percent / 100),))


async def play(settings: CheckSettings) -> int:
    now = moment_of(settings.windows.until)
    async with database_of(settings) as database:
        await refuse_a_live_game(database)
        try:
            async with AsyncOpenAI() as plain, Recorder(database, settings.common.home / "spool") as recorder:
                client = record_openai(plain)  # with ask_for_tokens=True where vLLM or serve.py answers
                for window_id in last_closed_windows(6, now):
                    await record_outcomes(database, window_id, await play_hour(recorder, client, window_id), now=now)
        except OpenAIError as error:
            raise ConfigurationError(
                f"No chat endpoint ({error}): set OPENAI_BASE_URL, OPENAI_API_KEY and OPENAI_MODEL."
            ) from error
    print(f"{recorder.delivered} trajectories recorded.", file=sys.stderr)
    return 0


if __name__ == "__main__":  # the same flags for both: --home, --until, --window, --json
    sys.exit(run_command(play, CheckSettings, None, prog="own_game.py", description=__doc__) or check_windows())
