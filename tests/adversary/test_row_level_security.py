"""Agents that write their own rows, authenticated by their role of Postgres.

``deploy/postgres/row_level_security.sql`` is run as written; each test logs in as an agent does and tries what an
agent might: another's id, another's rows, the judge's columns, second thoughts once the outcome is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from asyncpg import InsufficientPrivilegeError as Refused

from data_bridge.embedded import EmbeddedServer
from data_bridge.models import Action, LLMCall
from data_bridge.recorder import Recorder
from tests.builders import WINDOW, insert_agents, insert_rows, insert_window, trajectory_row
from tests.builders_roles import ROW_LEVEL_SECURITY, RolesServer, attack, connected, documented_roles, name_of


@pytest.fixture
def server(postgres: EmbeddedServer, database_url: str) -> Iterator[RolesServer]:
    with documented_roles(postgres, database_url) as server:
        yield server


BOOKS = {"agentBalance": 1000.0, "agentPnL": 0.0, "openPositions": 0}
CALL = LLMCall("hindsight", "You trade.", "ACME at 100.", "BUY ACME", temperature=1.0, max_tokens=8)


async def agent(server: RolesServer, agent_id: str) -> str:
    """The URL of a fresh role that may write for ``agent_id``, mapped as the file says."""
    url = server.login("hindsight_agent")
    async with server.owner() as owner:
        await insert_agents(owner, [agent_id])
        await owner.execute("INSERT INTO hindsight.agent_roles VALUES ($1, $2)", name_of(url), agent_id)
    return url


async def write(url: str, agent_id: str, **columns: Any) -> None:
    """A row as the recorder would write it, by a hand-made client: with any column the attacker likes."""
    async with connected(url) as connection:
        await insert_rows(connection, "trajectories", [_plain(agent_id) | columns])


async def test_an_agents_recorder_writes_its_own_rows_and_their_calls_and_the_trainer_reads_them(
    server: RolesServer, tmp_path: Path
) -> None:
    url = await agent(server, "agent-7")
    async with Recorder(url, tmp_path / "spool", log_calls=True) as recorder:
        async with recorder.start_trajectory("agent-7") as trajectory, trajectory.step(BOOKS) as step:
            step.log_llm_call(CALL)
            step.complete_step(Action("BUY", parameters={"ticker": "ACME"}, success=True))
        await recorder.flush()
        assert (recorder.delivered, recorder.rejected) == (1, 0)
    async with connected(server.login("hindsight_trainer")) as trainer:
        row = await trainer.fetchrow('SELECT * FROM trajectories WHERE "agentId" = $1', "agent-7")
        assert row is not None
        await trainer.execute('UPDATE trajectories SET "usedInTraining" = true')
    async with server.owner() as owner:
        assert await owner.fetchval('SELECT bool_and("usedInTraining") FROM trajectories')
        assert await owner.fetchval("SELECT count(*) FROM llm_call_logs") == 1


async def test_an_agent_cannot_write_under_anothers_id(server: RolesServer, tmp_path: Path) -> None:
    url = await agent(server, "mallory")
    await agent(server, "agent-1")
    with pytest.raises(Refused, match="row-level security"):
        await write(url, "agent-1")
    async with server.owner() as owner:
        assert await owner.fetchval("SELECT count(*) FROM trajectories") == 0


async def test_a_session_setting_does_not_make_an_agent_another(server: RolesServer) -> None:
    url = await agent(server, "mallory")
    victim = await agent(server, "agent-1")
    async with connected(url) as connection:
        for setting in ("hindsight.agent_id", "hindsight.role", "app.agent_id"):
            await connection.execute("SELECT set_config($1, $2, false)", setting, "agent-1")
        await connection.execute("SET search_path = pg_temp, public")
        await connection.execute(
            "CREATE TEMP TABLE agent_roles AS SELECT current_user AS role_name, 'agent-1' AS agent_id"
        )
        for become in (f"SET ROLE {name_of(victim)}", f"SET SESSION AUTHORIZATION {name_of(victim)}"):
            with pytest.raises(Refused):
                await connection.execute(become)
        await connection.execute("SET row_security = off")
        with pytest.raises(Refused, match="row-level security"):
            await insert_rows(connection, "trajectories", [_plain("agent-1")])
        await connection.execute("SET row_security = on")
        await connection.execute("SET ROLE hindsight_agent")  # its own group, which is mapped to nobody
        for agent_id in ("agent-1", "mallory"):
            with pytest.raises(Refused, match="row-level security"):
                await insert_rows(connection, "trajectories", [_plain(agent_id)])


def _plain(agent_id: str) -> dict[str, Any]:
    row = trajectory_row(agent_id, window_id=WINDOW)
    row.pop("usedInTraining")  # the judge's and the trainer's columns are named only by an attack
    return row


async def test_a_role_without_an_agent_writes_nothing(server: RolesServer) -> None:
    await agent(server, "agent-1")
    with pytest.raises(Refused, match="row-level security"):
        await write(server.login("hindsight_agent"), "agent-1")


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("aiJudgeReward", 1.0),
        ("aiJudgeReasoning", "the best decision of all"),
        ("judgedAt", trajectory_row()["createdAt"]),
        ("usedInTraining", True),
        ("usedInTraining", False),
        ("trainedInBatch", "batch-1"),
        ("isEvaluation", True),
    ],
)
async def test_an_agent_cannot_set_what_is_the_judges_or_the_trainers(
    server: RolesServer, column: str, value: object
) -> None:
    url = await agent(server, "agent-1")
    with pytest.raises(Refused):
        await write(url, "agent-1", **{column: value})
    await write(url, "agent-1")  # the same row without it goes through


@pytest.mark.parametrize("column", ["aiJudgeReward", "usedInTraining", "trainedInBatch", "isEvaluation"])
async def test_a_grant_too_many_does_not_open_those_columns(server: RolesServer, column: str) -> None:
    url = await agent(server, "agent-1")
    value = {"aiJudgeReward": 1.0, "trainedInBatch": "batch-1"}.get(column, True)
    async with server.owner() as owner:
        await owner.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON trajectories TO {name_of(url)}")
    with pytest.raises(Refused, match="row-level security"):
        await write(url, "agent-1", **{column: value})
    await write(url, "agent-1")
    with pytest.raises(Refused, match="row-level security"):
        await attack(url, f'UPDATE trajectories SET "{column}" = $1', value)


async def test_what_was_said_stays_said(server: RolesServer) -> None:
    """No row is changed or taken back once its outcome is known: neither an own one nor another's."""
    url, other = await agent(server, "agent-1"), await agent(server, "agent-2")
    await write(url, "agent-1", trajectoryId="mine")
    await write(other, "agent-2", trajectoryId="theirs")
    for statement in (
        """UPDATE trajectories SET "stepsJson" = '[]' WHERE "trajectoryId" = 'theirs'""",
        """UPDATE trajectories SET "isTrainingData" = false WHERE "trajectoryId" = 'mine'""",
        """UPDATE trajectories SET "agentId" = 'agent-1'""",
        """DELETE FROM trajectories WHERE "trajectoryId" = 'mine'""",
        "DELETE FROM llm_call_logs",
        "TRUNCATE trajectories CASCADE",
    ):
        with pytest.raises(Refused):
            await attack(url, statement)
    # Where an owner grants UPDATE after all, others' rows are still out of reach, and cannot be claimed.
    async with server.owner() as owner:
        await owner.execute(f"GRANT SELECT, UPDATE, DELETE ON trajectories TO {name_of(url)}")
    async with connected(url) as connection:
        assert await connection.execute("""UPDATE trajectories SET "stepsJson" = '[1]'""") == "UPDATE 1"
        assert await connection.execute("""DELETE FROM trajectories WHERE "agentId" = 'agent-2'""") == "DELETE 0"
        with pytest.raises(Refused, match="row-level security"):
            await connection.execute("""UPDATE trajectories SET "agentId" = 'agent-2'""")
    async with server.owner() as owner:
        kept = await owner.fetch('SELECT "trajectoryId", "stepsJson" = $1 AS changed FROM trajectories', "[1]")
        assert {row["trajectoryId"]: row["changed"] for row in kept} == {"mine": True, "theirs": False}


async def test_an_upsert_cannot_overwrite_anothers_row(server: RolesServer) -> None:
    url, other = await agent(server, "mallory"), await agent(server, "agent-1")
    await write(other, "agent-1", trajectoryId="theirs")
    async with connected(url) as connection:
        names = ", ".join(f'"{name}"' for name in _plain("mallory"))
        places = ", ".join(f"${place}" for place in range(1, len(_plain("mallory")) + 1))
        row = _plain("mallory") | {"trajectoryId": "theirs"}
        insert = f'INSERT INTO trajectories ({names}) VALUES ({places}) ON CONFLICT ("trajectoryId") DO '
        with pytest.raises(Refused):
            await connection.execute(insert + """UPDATE SET "stepsJson" = '[]'""", *row.values())
        assert await connection.execute(insert + "NOTHING", *row.values()) == "INSERT 0 0"
    async with server.owner() as owner:
        stored = await owner.fetchrow('SELECT "agentId", "stepsJson" FROM trajectories')
        assert stored is not None
        assert stored["agentId"] == "agent-1"
        assert stored["stepsJson"] != "[]"


async def test_an_agent_sees_no_row_of_another_and_no_private_column(server: RolesServer) -> None:
    url, other = await agent(server, "mallory"), await agent(server, "agent-1")
    await write(other, "agent-1")
    await write(url, "mallory")
    async with connected(url) as connection:
        assert await connection.fetchval('SELECT count("trajectoryId") FROM trajectories') == 1
        assert [row[0] for row in await connection.fetch("SELECT agent_id FROM hindsight.agent_roles")] == ["mallory"]
        for hidden in (
            'SELECT "stepsJson" FROM trajectories',
            "SELECT * FROM market_outcomes",
            "SELECT * FROM reward_judgments",
            'SELECT * FROM "User"',
            "SELECT * FROM hindsight.verdicts",
            "SELECT * FROM hindsight.canary_agents",
        ):
            with pytest.raises(Refused):
                await connection.fetch(hidden)


async def test_an_agent_cannot_add_calls_to_anothers_trajectory(server: RolesServer) -> None:
    url, other = await agent(server, "mallory"), await agent(server, "agent-1")
    await write(other, "agent-1", trajectoryId="theirs")
    await write(url, "mallory", trajectoryId="mine")
    add = (
        'INSERT INTO llm_call_logs ("id", "trajectoryId", "stepId", "callId", "timestamp", "model", "purpose",'
        ' "systemPrompt", "userPrompt", "response", "temperature", "maxTokens")'
        " VALUES ($1, $1, '', $1, now(), '', '', '', '', '', 1, 1)"
    )
    with pytest.raises(Refused, match="row-level security"):
        await attack(url, add, "theirs")
    await attack(url, add, "mine")


async def test_the_game_and_other_roles_work_as_before(server: RolesServer) -> None:
    """A role of the game's that does not own its tables is not asked for a policy."""
    game = server.login("pg_monitor")  # a member of nothing of ours
    async with server.owner() as owner:
        await owner.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON trajectories TO {name_of(game)}")
        ids = await insert_window(owner, agents=3)  # the owner itself
    await write(game, "agent-2")
    async with connected(game) as connection:
        assert await connection.fetchval("SELECT count(*) FROM trajectories") == 4
        assert await connection.execute('UPDATE trajectories SET "isEvaluation" = true') == "UPDATE 4"
        gone = await connection.execute('DELETE FROM trajectories WHERE "trajectoryId" = ANY($1)', ids)
        assert gone == "DELETE 3"


async def test_where_everybody_may_create_functions_the_file_takes_it_back_but_for_the_owner(
    server: RolesServer,
) -> None:
    """As in a database made before Postgres 15, where an agent could define what the trainer's queries call."""
    trap = "CREATE FUNCTION public.left(varchar, int) RETURNS text LANGUAGE sql AS $$SELECT 'trapped'$$"
    url = server.login("hindsight_agent")
    async with server.owner() as owner:
        await owner.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
    await attack(url, trap)
    async with server.owner() as owner:
        await owner.execute("DROP FUNCTION public.left(varchar, int)")
    await server.run(ROW_LEVEL_SECURITY)
    with pytest.raises(Refused):
        await attack(url, trap)
    async with server.owner() as owner:
        schema = "SELECT has_schema_privilege(tableowner, 'public', 'CREATE') FROM pg_tables WHERE tablename = $1"
        assert await owner.fetchval(schema, "trajectories")


async def test_the_page_on_trust_says_of_every_column_what_the_grants_say(server: RolesServer) -> None:
    page = (Path(__file__).parents[2] / "docs" / "trust.md").read_text()
    table = page.partition("`trajectories`:\n")[2].partition("No role of an agent")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| `")]
    async with server.owner() as owner:
        columns = await owner.fetch(
            "SELECT attname, has_column_privilege('hindsight_agent', attrelid, attnum, 'INSERT') AS may"
            " FROM pg_attribute WHERE attrelid = 'trajectories'::regclass AND attnum > 0"
        )
    granted = {row["attname"]: row["may"] for row in columns}
    said = {name: allowed != "no" for names, _, allowed in rows for name in re.findall(r"`(\w+)`", names)}
    assert said.pop("gameKnowledge"), "a part of a column"
    assert said == granted
