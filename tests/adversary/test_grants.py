"""The documented roles, made by running the documented SQL: enough for each command, and not more.

``deploy/postgres/roles.sql`` is run as its reader would run it, on a real Postgres; every test logs in with a fresh
role that has nothing but what the file gives. The attacks are statements that such a role must not get through.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from asyncpg import InsufficientPrivilegeError as Refused

from data_bridge.database import open_database
from data_bridge.embedded import EmbeddedServer
from data_bridge.game_writes import NEEDED_COLUMNS, OfferedModel, archive, deploy, offer_to_canary
from data_bridge.window_ids import end_of, window_of, windows_from
from tests.builders import insert_window
from tests.builders_console import opened_console
from tests.builders_report_run import record_run
from tests.builders_roles import ROLES, ROW_LEVEL_SECURITY, RolesServer, attack, connected, documented_roles
from tests.fakes.trainer_process import start
from tests.tiny_model import shared_tiny_model

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def server(postgres: EmbeddedServer, database_url: str) -> Iterator[RolesServer]:
    with documented_roles(postgres, database_url) as server:
        yield server


# Enough


def command(name: str, *flags: str, url: str, folder: Path) -> tuple[int | None, str, str]:
    """Exit code, output and errors of a process that runs it."""
    output, errors = folder / "output", folder / "errors"
    for path in (output, errors):
        path.write_text("")
    process = start(flags, {"DATABASE_URL": url}, output, errors=errors, command=name)
    process.join(300)
    return process.exitcode, output.read_text(), errors.read_text()


WINDOWS = windows_from("2026-10-05T00:00", 40)
UNTIL = ("--until", f"{end_of(WINDOWS[-1], 2):%Y-%m-%dT%H:%M}")
ON_CPU = ("--backend", "cpu", "--threads", "1", "--lora-rank", "2", "--judge", "outcome", "--simulate", "off")


async def play(url: str, home: Path) -> None:
    """Forty simulated hours, written by the tables' owner as the game would."""
    from data_bridge.database import open_database
    from trainer.world.agents import scripted_cast
    from trainer.world.market import Market
    from trainer.world.play import play_windows

    async with open_database(url, home) as database:
        await play_windows(database, home / "spool", Market(7), scripted_cast(4, 7), WINDOWS, write_together=64)


@pytest.mark.model
async def test_every_command_works_with_the_role_that_is_documented_for_it_and_the_role_below_is_refused(
    server: RolesServer, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    await play(server.url, tmp_path / "played")
    home = ("--home", str(tmp_path / "home"))
    base = ("--base-model", str(shared_tiny_model(tmp_path_factory)))
    urls = {kind: server.login(f"hindsight_{kind}") for kind in ("reader", "judge", "judge_writer", "trainer")}

    async def run(role: str, name: str, *flags: str) -> tuple[int | None, str, str]:
        url = server.url if role == "owner" else urls[role]
        return await asyncio.to_thread(command, name, *flags, *home, url=url, folder=tmp_path)

    async def works(role: str, name: str, *flags: str, codes: tuple[int, ...] = (0,)) -> str:
        code, output, errors = await run(role, name, *flags)
        assert code in codes, f"{name} {' '.join(flags)} as {role}: exit {code}\n{errors}"
        return output

    async def is_refused(role: str, name: str, *flags: str) -> None:
        code, _, errors = await run(role, name, *flags)
        assert code == 2, f"{name} {' '.join(flags)} as {role}: exit {code}\n{errors}"
        sentence = errors.rstrip().splitlines()[-1]
        assert re.match("error: The role in DATABASE_URL (may not|lacks a privilege)", sentence), errors

    judging = ("--judge", "outcome", *UNTIL)
    few = ("--eval-samples", "1", "--eval-points", "1", "--eval-questions", "0")
    training = (*base, *ON_CPU, *UNTIL, "--groups-per-step", "3", "--max-steps", "1", *few)

    assert "Ready" in await works("reader", "check_windows", *UNTIL)
    await works("reader", "train_mmo", "--dry-run", *training)
    await is_refused("reader", "judge_windows", *judging)
    await works("judge", "judge_windows", *judging)
    await works("judge", "certify_judge", "--judge", "outcome", codes=(0, 4))
    await is_refused("judge", "judge_windows", *judging, "--write-back")
    await works("judge_writer", "judge_windows", *judging, "--write-back")
    await is_refused("judge_writer", "train_mmo", *training, "--no-promote")
    await works("trainer", "train_mmo", *training, codes=(0, 5))
    await works("trainer", "evaluate", *base, *judging, *few, "--threads", "1", codes=(0, 5))
    await works("trainer", "schedule_training", "--once", "--min-windows", "1", *UNTIL, "--command", "true")
    await works("trainer", "promote", "1", "--force", "--reason", "a rehearsal")
    await works("trainer", "promote", "--rollback", "0", "--reason", "a rehearsal")
    await works("trainer", "promote", "1", "--canary", "0.5", "--force", "--reason", "a rehearsal")
    await works("trainer", "promote", "--rollback", "--reason", "a rehearsal")
    await is_refused("reader", "promote", "1", "--force", "--reason", "a rehearsal")
    listed = json.loads(await works("reader", "promote", "--list", "--json"))["checkpoints"]
    assert 1 in {one["checkpoint"]["step"] for one in listed}
    assert "hindsight@step1" in await works("reader", "lineage", "hindsight@step1")
    await works("reader", "report", "--output", str(tmp_path / "report.html"))
    await works("reader", "traces", "export", str(tmp_path / "week.jsonl.gz"), *UNTIL)
    await works("owner", "run_migrations")
    async with server.owner() as owner:
        assert await owner.fetchval('SELECT count(*) FROM trajectories WHERE "usedInTraining"') > 0
        assert await owner.fetchval('SELECT count(*) FROM trajectories WHERE "aiJudgeReward" IS NOT NULL') > 0
        assert await owner.fetchval("SELECT count(*) FROM trained_models") > 0
        assert await owner.fetchval("SELECT count(*) FROM hindsight.certificates") == 1
        assert await owner.fetchval("SELECT count(*) FROM hindsight.canary_agents") > 0
        assert await owner.fetchval("SELECT count(*) FROM hindsight.periods WHERE state = 'done'") == 1


async def test_both_files_can_be_run_again_and_the_roles_work_without_row_level_security(
    server: RolesServer, make_database: Callable[..., str], template_database: str
) -> None:
    before = await privileges(server.url)
    await server.run(ROLES, ROW_LEVEL_SECURITY, ROLES)
    assert await privileges(server.url) == before

    other = make_database(template_database)
    await server.run(ROLES, url=other)
    async with connected(other) as owner:
        await insert_window(owner, agents=3)
    reader = server.login("hindsight_reader").replace(server.url.partition("@")[2], other.partition("@")[2])
    async with connected(reader) as connection:
        assert await connection.fetchval("SELECT count(*) FROM trajectories") == 3


# And not more

Grant = tuple[str, str, str, str]
"""Role, privilege, table, and a column or `*` for the whole table."""


@pytest.fixture
def console(server: RolesServer, tmp_path: Path) -> Callable[..., Any]:
    """A console on a login with the roles that are named."""

    @asynccontextmanager
    async def opened(*roles: str) -> AsyncIterator[httpx.AsyncClient]:
        url = server.login(", ".join(f"hindsight_{role}" for role in roles))
        async with (
            open_database(url, tmp_path) as database,
            opened_console(database, tmp_path) as console,
            console.client(timeout=60) as client,
        ):
            yield client

    return opened


async def test_the_console_works_with_the_role_that_is_documented_for_it(
    server: RolesServer, console: Callable[..., Any], tmp_path: Path
) -> None:
    async with open_database(server.url, tmp_path) as owned:
        recorded = await record_run(owned, tmp_path)
    async with console("console") as client:

        async def does(method: str, path: str, body: object = None, status: int = 200) -> Any:
            answer = await client.request(method, f"/api/v1{path}", json=body)
            assert answer.status_code == status, f"{method} {path}: {answer.text}"
            return answer.json()

        for page in ("/", "/runs", "/releases", "/rewards", "/judge", "/patterns", "/system", "/data"):
            assert (await client.get(page)).status_code == 200, page
        await does("POST", "/training/start", {}, 202)
        await does("POST", "/training/stop", {"reason": "a rehearsal"}, 202)
        await does("POST", "/releases/1/promote", {"reason": "a rehearsal", "force": True})
        await does("POST", "/releases/2/rollback", {"reason": "a rehearsal"})
        await does("POST", "/rewards/calculate", {"trajectory_id": recorded.trajectory_ids[0]})
        key = await does("POST", "/ingest/keys", {"kind": "agent", "owner": "agent-1"}, 201)
        await does("DELETE", f"/ingest/keys/{key['key_id']}")
        assert (await does("DELETE", "/agents/agent-2"))["rows"]["rewards"] > 0


async def test_rows_are_taken_with_the_role_for_ingest_and_without_it_in_no_way(
    server: RolesServer, console: Callable[..., Any]
) -> None:
    now = datetime.now(UTC)
    call = {"model": "m", "systemPrompt": "s", "userPrompt": "u", "response": "BUY", "purpose": "action"}
    action = {"actionType": "BUY", "parameters": {}, "success": True}
    steps = [{"stepNumber": 0, "timestamp": 1, "environmentState": {}, "llmCalls": [call], "action": action}]
    row = {"trajectoryId": "t-1", "agentId": "agent-1", "stepsJson": json.dumps(steps)}
    rows = {"trajectories": [row | {"startTime": now.isoformat(), "endTime": now.isoformat()}]}
    facts = {
        "windowId": window_of(now - timedelta(hours=2)),
        "stocks": [{"ticker": "A", "startPrice": 1, "endPrice": 2}],
        "facts": [{"subject": "T-1", "kind": "resolved", "after": 1}],
    }
    corrected = facts | {"stocks": [{"ticker": "A", "startPrice": 1, "endPrice": 3}]}
    async with console("console") as client:
        assert (await client.post("/api/v1/ingest/trajectories", json=rows)).status_code == 503
        assert (await client.post("/api/v1/ingest/facts", json=facts)).status_code == 503
    async with console("console", "ingest") as client:
        stored = (await client.post("/api/v1/ingest/trajectories", json=rows)).json()["results"][0]
        assert (stored["state"], stored["reason"]) == ("stored", "")
        for sent, written in ((facts, 2), (corrected, 1)):
            assert (await client.post("/api/v1/ingest/facts", json=sent)).json()["written"] == written
    ingest = {grant for grant in await privileges(server.url) if grant[0] == "ingest"}
    assert {(kind, table) for _, kind, table, _ in ingest} == {
        ("SELECT", "public.trajectories"), ("INSERT", "public.trajectories"), ("INSERT", "public.User"),
        ("SELECT", "public.market_outcomes"), ("INSERT", "public.market_outcomes"),
        ("UPDATE", "public.market_outcomes"), ("SELECT", "hindsight.window_facts"),
        ("INSERT", "hindsight.window_facts"), ("UPDATE", "hindsight.window_facts"),
    }  # fmt: skip
    columns = {column for _, kind, table, column in ingest if (kind, table) == ("INSERT", "public.trajectories")}
    assert columns.isdisjoint({"*", "usedInTraining", "aiJudgeReward", "trainedInBatch", "judgedAt"})


async def privileges(url: str) -> set[Grant]:
    """What the catalog says that our roles have, column by column where it was granted so."""
    async with connected(url) as owner:
        rows = await owner.fetch(
            """
            SELECT r.rolname AS role, x.privilege_type AS privilege, n.nspname || '.' || c.relname AS name,
                   '*' AS col
              FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace, aclexplode(c.relacl) x
              JOIN pg_roles r ON r.oid = x.grantee WHERE r.rolname LIKE 'hindsight\\_%'
            UNION ALL
            SELECT r.rolname, x.privilege_type, n.nspname || '.' || c.relname, a.attname
              FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid JOIN pg_namespace n ON n.oid = relnamespace,
                   aclexplode(a.attacl) x
              JOIN pg_roles r ON r.oid = x.grantee WHERE r.rolname LIKE 'hindsight\\_%'
            """
        )
    return {(row["role"].removeprefix("hindsight_"), row["privilege"], row["name"], row["col"]) for row in rows}


async def test_the_reading_role_has_nothing_but_select(server: RolesServer) -> None:
    granted = {grant for grant in await privileges(server.url) if grant[0] == "reader"}
    assert {privilege for _, privilege, _, _ in granted} == {"SELECT"}
    in_game = {(table, column) for _, _, table, column in granted if table.startswith("public.")}
    assert in_game == {("public.trajectories", "*"), ("public.market_outcomes", "*")} | {
        ("public.User", column) for column in ("id", "username", "displayName")
    }


async def test_what_training_may_write_of_the_game_is_what_its_books_need(server: RolesServer) -> None:
    """Another test shows that the books need every one of these."""
    granted = await privileges(server.url)
    for table, needed in NEEDED_COLUMNS.items():
        for privilege in ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"):
            given = {
                column
                for role, kind, name, column in granted
                if (kind, name) == (privilege, f"public.{table}") and role in ("reader", "judge_writer", "trainer")
            }
            assert given == set(needed.get(privilege, ())), f"{privilege} on {table}"
    judge = {grant for grant in granted if grant[0] == "judge" and grant[2].startswith("public.")}
    assert judge == set(), "judging without --write-back writes nothing of the game's"


async def test_promoting_needs_every_grant_on_the_games_models(server: RolesServer) -> None:
    first = OfferedModel("hindsight@step1", "1", "tiny", None, "/checkpoints/1", 0.5, 0.4, {"gain": 0.1})
    second = OfferedModel("hindsight@step2", "2", "tiny", None, "/checkpoints/2", None, None, {})

    async def offer(connection: Any) -> None:
        await offer_to_canary(connection, first)
        await deploy(connection, first)
        await deploy(connection, second)
        await archive(connection, second.model_id)

    needed = [grant for grant in await privileges(server.url) if grant[2] == "public.trained_models"]
    assert len(needed) == 25
    async with server.owner() as owner:

        async def with_only(grants: list[Grant]) -> None:
            transaction = owner.transaction()
            await transaction.start()
            try:
                await owner.execute("REVOKE ALL ON trained_models FROM hindsight_trainer")
                for _, privilege, table, column in grants:
                    await owner.execute(f'GRANT {privilege} ("{column}") ON {table} TO hindsight_trainer')
                await owner.execute("SET LOCAL ROLE hindsight_trainer")
                await offer(owner)
            finally:
                await transaction.rollback()

        await with_only(needed)
        for missing in needed:
            with pytest.raises(Refused):
                await with_only([grant for grant in needed if grant != missing])


def statements_of_the_ledger() -> set[tuple[str, str]]:
    """Privilege and table of every statement on our schema in the source, but for the simulated market's."""
    found: set[tuple[str, str]] = set()
    sources = [path for path in (ROOT / "trainer").rglob("*.py") if path.name != "simulation.py"]
    verbs = re.compile(r"\b(INSERT) INTO hindsight\.(\w+)|\b(UPDATE) hindsight\.(\w+)|\b(DELETE) FROM hindsight\.(\w+)")
    for path in sources:
        text = path.read_text()
        matches = list(verbs.finditer(text))
        for number, match in enumerate(matches):
            verb, table = (part for part in match.groups() if part)
            found.add((verb, f"hindsight.{table}"))
            end = matches[number + 1].start() if number + 1 < len(matches) else len(text)
            rest = re.split(r'"""|\n\n', text[match.start() : end])[0]
            if verb == "INSERT" and "DO UPDATE" in rest:
                found.add(("UPDATE", f"hindsight.{table}"))
    return found


async def test_what_the_roles_may_write_of_our_own_schema_is_what_the_source_writes(server: RolesServer) -> None:
    written = {
        (privilege, table)
        for role, privilege, table, _ in await privileges(server.url)
        if table.startswith("hindsight.") and privilege != "SELECT"
    }
    stated = statements_of_the_ledger()
    assert len(stated) > 20
    facts = {("INSERT", "hindsight.window_facts"), ("UPDATE", "hindsight.window_facts")}  # data_bridge writes them
    assert written == stated | facts


GAME_ATTACKS = {
    "rewrite what an agent did": """UPDATE trajectories SET "stepsJson" = '[]'""",
    "give an agent's row to another": """UPDATE trajectories SET "agentId" = 'agent-2'""",
    "change what an agent earned": """UPDATE trajectories SET "finalPnL" = 1e9""",
    "move a row into the evaluation": """UPDATE trajectories SET "isEvaluation" = true""",
    "take a row out of training": """UPDATE trajectories SET "isTrainingData" = false""",
    "delete trajectories": "DELETE FROM trajectories",
    "empty the log": "TRUNCATE trajectories CASCADE",
    "write a trajectory": """INSERT INTO trajectories ("id", "trajectoryId", "agentId") VALUES ('x', 'x', 'agent-1')""",
    "rewrite what happened": 'UPDATE market_outcomes SET "endPrice" = 1',
    "invent what happened": """INSERT INTO market_outcomes ("id", "windowId") VALUES ('x', '2026-11-02T10:00')""",
    "rename a user": """UPDATE "User" SET "displayName" = 'mallory'""",
    "add a user": """INSERT INTO "User" ("id") VALUES ('mallory')""",
    "delete a verdict of the game": "DELETE FROM reward_judgments",
    "delete a model of the game": "DELETE FROM trained_models",
    "read private columns of users": 'SELECT email FROM "User"',
    "change the game's schema": "ALTER TABLE trajectories ADD COLUMN x int",
    "create a function that others call": "CREATE FUNCTION public.left(varchar, int) RETURNS text LANGUAGE sql AS '1'",
    "forge the journal of migrations": "UPDATE hindsight.migrations SET skipped = true",
    "map itself to an agent": "INSERT INTO hindsight.agent_roles VALUES (current_user, 'agent-1')",
    "switch the policies off": "ALTER TABLE trajectories DISABLE ROW LEVEL SECURITY",
}


async def allowed_of(attacks: dict[str, str], url: str) -> set[str]:
    """What of ``attacks`` the role got through."""
    could = set()
    for meant, statement in attacks.items():
        try:
            await attack(url, statement)
        except Refused:
            continue
        except asyncpg.NotNullViolationError:
            pass  # the statement was allowed, the empty row was not
        could.add(meant)
    return could


@pytest.mark.parametrize("role", ["reader", "judge", "judge_writer", "trainer", "agent"])
async def test_no_role_can_touch_what_is_the_games_or_the_owners(server: RolesServer, role: str) -> None:
    async with server.owner() as owner:
        await insert_window(owner, agents=3)
        await owner.execute("""ALTER TABLE "User" ADD COLUMN email text DEFAULT 'private'""")
        before = await contents(owner)
    url = server.login(f"hindsight_{role}")
    assert await allowed_of(GAME_ATTACKS, url) == set()
    async with server.owner() as owner:
        assert await contents(owner) == before


async def contents(owner: Any) -> list[Any]:
    tables = ("trajectories", "market_outcomes", '"User"', "hindsight.migrations", "hindsight.agent_roles")
    return [await owner.fetch(f"SELECT * FROM {table} ORDER BY 1") for table in tables]


SCORE_ATTACKS = {
    "score a row": 'UPDATE trajectories SET "aiJudgeReward" = 1',
    "mark a row as used": 'UPDATE trajectories SET "usedInTraining" = true',
    "store a verdict": "INSERT INTO hindsight.verdicts DEFAULT VALUES",
    "certify a judge": "INSERT INTO hindsight.certificates DEFAULT VALUES",
    "promote": "INSERT INTO hindsight.promotions DEFAULT VALUES",
    "hold the model": "INSERT INTO hindsight.model_locks DEFAULT VALUES",
    "drop a run's memory": "DELETE FROM hindsight.exclusions",
}


@pytest.mark.parametrize(
    ("role", "allowed"),
    [
        ("reader", set()),
        ("agent", set()),
        ("judge", {"store a verdict", "certify a judge"}),
        ("judge_writer", {"store a verdict", "certify a judge", "score a row"}),
        ("trainer", set(SCORE_ATTACKS)),
    ],
)
async def test_a_role_can_do_what_is_written_beside_it_and_nothing_of_the_one_above(
    server: RolesServer, role: str, allowed: set[str]
) -> None:
    url = server.login(f"hindsight_{role}")
    assert await allowed_of(SCORE_ATTACKS, url) == allowed
