"""Opening the database: what works, and the sentence for what does not."""

from __future__ import annotations

from data_bridge.database import Database


async def test_a_fresh_database_has_the_games_tables_and_ours(database: Database) -> None:
    tables = await database.pool.fetch(
        "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema IN ('public', 'hindsight')"
    )
    names = {f"{row['table_schema']}.{row['table_name']}" for row in tables}
    game = {"trajectories", "market_outcomes", "llm_call_logs", "training_batches", "trained_models"}
    assert {f"public.{name}" for name in game | {"reward_judgments", "User"}} <= names
    assert "hindsight.migrations" in names
