"""A prompt version is part of a release: gated beside a random mutation, given to agents, found in the log, and taken
back."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from time import process_time
from typing import Any

import pytest
from pydantic import SecretStr

from data_bridge.agent_loop import AgentPrompt, Seen
from data_bridge.agent_prompts import AgentTemplate, TemplateExample, prompt_in, prompts_used, values_in, with_prompt
from data_bridge.database import Database
from data_bridge.errors import ConfigurationError, NotEnoughData
from data_bridge.models import ChatMessage
from data_bridge.prompt_client import PromptsEndpoint, ReleasedPrompting
from data_bridge.window_ids import end_of
from tests.builders import make_trajectory
from tests.builders_console import opened_console
from tests.builders_lessons import WordEmbedder
from tests.builders_promotion import insert_checkpoint
from tests.builders_report_run import HOSTILE
from tests.fakes.checkpoint_server import CheckpointServer, against_the_news, follows_the_news
from tests.integration.test_console_calls import API, said
from tests.integration.test_lessons_judged import MARKET, TRAINED, WINDOWS
from trainer.cli.lineage import main as lineage
from trainer.cli.prompts import main as prompts_command
from trainer.config.prompt_commands import PromptsCommand
from trainer.config.settings import settings_from
from trainer.evidence import Role, Ruling
from trainer.ledger.checkpoints import find_checkpoint
from trainer.ledger.prompts import PromptRow, find_prompt, keep_prompt, prompts_of
from trainer.ledger.releases import serving
from trainer.promote.canary import was_prompted
from trainer.promote.publish import publish
from trainer.prompts.material import PromptMaterial
from trainer.prompts.structure import PromptExample, parse
from trainer.prompts.writer import MutationWriter
from trainer.run.promotion import go_back
from trainer.run.prompt_learning import LedgerStore, learn_policy
from trainer.run.prompt_release import gate_prompt, keep_mutation, new_prompt, release_prompt
from trainer.run.prompt_trials import training_windows
from trainer.world.agents import scripted_cast
from trainer.world.play import play_windows

RIGHT = parse("Trade on the news: follow it.\n")
PLAIN = parse("Trade on the news.\n")


class Obeys(CheckpointServer):
    """A model that follows the news if its system text says so, and opposes it otherwise."""

    def __init__(self) -> None:
        super().__init__({})
        self.systems: list[str] = []

    def answer(self, body: dict[str, Any], headers: Mapping[str, str]) -> tuple[int, dict[str, Any]]:
        system = next((one["content"] for one in body["messages"] if one["role"] == "system"), "")
        self.systems.append(system)
        self._checkpoints = {"": follows_the_news if "follow it" in system else against_the_news}
        return super().answer(body, headers)


@pytest.fixture
def model() -> Iterator[Obeys]:
    with Obeys() as server:
        yield server


@pytest.fixture
async def played(database: Database, model: Obeys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Database:
    """Agents use step 1 with the game's own prompt; hours after its training."""
    monkeypatch.setattr("trainer.inference.embedding.EmbeddedModel", WordEmbedder)
    await play_windows(database, tmp_path / "spool", MARKET, scripted_cast(3, 7), TRAINED + WINDOWS, write_together=50)
    await insert_checkpoint(database, 1, windows=TRAINED)
    point = await find_checkpoint(database, "hindsight", 1)
    at = point.served_at(settings_for(tmp_path, model).promotion)
    await publish(database, tmp_path, point.as_release(), at, reason="first")
    return database


def settings_for(home: Path, server: CheckpointServer, **values: Any) -> PromptsCommand:
    given: dict[str, Any] = {"action": "gate", "eval_samples": 1, "eval_questions": 0, "eval_windows": len(WINDOWS)}
    key = SecretStr("a-key-for-tests")
    return settings_from(
        PromptsCommand, home=home, wandb_api_key=key, wandb_base_url=server.base_url, **(given | values)
    )


async def kept(database: Database, settings: PromptsCommand, text: str, role: str = "") -> PromptRow:
    new = new_prompt(parse(text), role, settings.limits)
    await keep_prompt(database.pool, new)
    found = await find_prompt(database.pool, new.prompt_id, role)
    assert found is not None
    return found


async def test_a_prompt_that_helps_is_released_a_random_mutation_is_seen_not_to_and_one_command_goes_back(
    played: Database, model: Obeys, tmp_path: Path
) -> None:
    settings, home = settings_for(tmp_path, model), tmp_path
    await kept(played, settings, PLAIN.text)
    better = new_prompt(RIGHT, "", settings.limits, parent=PLAIN, mutation="expansion", evidence={"gain": 0.2})
    await keep_prompt(played.pool, better)
    prompt = await find_prompt(played.pool, better.prompt_id)
    assert prompt is not None
    with pytest.raises(NotEnoughData, match=r"prompts\.py gate p-"):
        await release_prompt(
            played, home, prompt, "hindsight", settings.gate, settings.promotion, reason=None, force=False
        )
    done = await gate_prompt(played, settings, prompt, PromptMaterial(), say=lambda line: None)

    assert done.decision.ruling is Ruling.PROMOTE, done.decision
    figures = {one.role: one for one in done.evaluation.figures}
    assert figures[Role.CANDIDATE].score.mean > figures[Role.RANDOM_MUTATION].score.mean + 0.1
    assert any("If something you need is missing" in one for one in model.systems), "a random mutation was asked"
    now = await serving(played, "hindsight")
    assert now is not None
    assert re.fullmatch(r"hindsight@step1\+prompts-[0-9a-f]{12}", now.release.name)
    assert {role: one.prompt_id for role, one in (await prompts_of(played.pool, now.prompt_version)).items()} == {
        "": prompt.prompt_id
    }
    offered = await played.pool.fetchval("SELECT \"evalMetrics\" FROM trained_models WHERE status = 'deployed'")
    assert now.prompt_version in offered
    with pytest.raises(ConfigurationError, match="already use"):
        await gate_prompt(played, settings, prompt, PromptMaterial(), say=lambda line: None)
    back = await go_back(played, home, None, "hindsight", settings.promotion, reason="a trial")
    assert back.release.name == "hindsight@step1"


async def test_agents_are_told_their_prompt_and_the_log_tells_which_they_used(
    played: Database, database_url: str, model: Obeys, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = settings_for(tmp_path, model)
    text = "You are {name}. Follow the news.\n\n## Examples\n### User\n$A up\n### Assistant\nBUY\n"
    first = await kept(played, settings, text, "trader")
    prompt, _ = await keep_mutation(played, first, "try_catch", PromptMaterial(), settings.limits)
    how = (tmp_path, prompt, "hindsight", settings.gate, settings.promotion)
    await release_prompt(played, *how, reason="a trial", force=True)
    async with opened_console(played, tmp_path) as console, console.client() as client:
        asked = f"{API}/prompts/current?agent_id=a-1"
        found = await said(await client.get(f"{asked}&role=trader"), 200)
        assert (found["prompt_id"], found["variables"]) == (prompt.prompt_id, ["name"])
        assert (await said(await client.get(asked), 200))["prompt_id"] == "", "another role keeps the game's own"
        key = (await said(await client.post(f"{API}/ingest/keys", json={"kind": "agent", "owner": "a-1"}), 201))["key"]
        listed = await said(await client.get(f"{API}/prompts"), 200)
        assert [one["parent"] for one in listed["entries"]] == [first.prompt_id, None]
        body = {"reason": "why not", "role": "trader"}
        refused = await client.post(f"{API}/prompts/{first.prompt_id}/promote", json=body)
        assert refused.status_code == 409, "the gate has not seen it"
        assert (await client.post(f"{API}/prompts/p-{'0' * 16}/promote", json=body)).status_code == 404

        class Own:
            async def prompt(self, agent_id: str, seen: Seen) -> AgentPrompt:
                return AgentPrompt([ChatMessage(role="user", content=seen.text)])

        async with PromptsEndpoint(console.url, key, timeout=30) as endpoint:
            prompting = ReleasedPrompting(endpoint, Own(), lambda seen: {"name": "Ann"})
            used = await prompting.prompt("a-1", Seen("$B down", {"role": "trader"}))
            assert used.version == found["prompt_version"]
            template = prompt.template
            assert values_in(used.messages, template) == {"name": "Ann"}
            own = await prompting.prompt("a-1", Seen("$B down", {}))
            assert (own.version, len(own.messages)) == ("", 1)
            assert (await endpoint.current("another")) is None
            assert endpoint.missed == 1, "an agent's key is for that agent"
    capsys.readouterr()
    flags = ["--home", str(tmp_path), "--database-url", database_url, "--json"]
    assert await asyncio.to_thread(lineage, ["hindsight@step1", *flags]) == 0
    (story,) = json.loads(capsys.readouterr().out)["prompts"]["released"]
    assert [one["prompt_id"] for one in story["ancestors"]] == [prompt.prompt_id, first.prompt_id]


async def test_a_canary_gives_its_prompt_to_its_agents_and_to_nobody_else_until_it_is_rolled_back(
    played: Database, model: Obeys, tmp_path: Path
) -> None:
    settings = settings_for(tmp_path, model)
    prompt = await kept(played, settings, RIGHT.text)
    how = (tmp_path, prompt, "hindsight", settings.gate, settings.promotion)
    await release_prompt(played, *how, reason="a trial", force=True, canary=0.34)
    rows = await played.pool.fetch("SELECT agent_id FROM hindsight.canary_agents")
    chosen = {row["agent_id"] for row in rows}
    agents = {row["agentId"] for row in await played.pool.fetch('SELECT DISTINCT "agentId" FROM trajectories')}
    assert 0 < len(chosen) < len(agents)
    async with opened_console(played, tmp_path) as console, console.client() as client:

        async def told() -> dict[str, str]:
            asked = {agent: await client.get(f"{API}/prompts/current?agent_id={agent}") for agent in sorted(agents)}
            return {agent: (await said(answer, 200))["prompt_id"] for agent, answer in asked.items()}

        assert await told() == {agent: prompt.prompt_id if agent in chosen else "" for agent in agents}
        await go_back(played, tmp_path, None, "hindsight", settings.promotion, reason="agents stopped trading")
        assert set((await told()).values()) == {""}


def template(system: str, *examples: tuple[str, str]) -> AgentTemplate:
    variables = tuple(re.findall(r"{(\w+)}", system))
    return AgentTemplate(f"p of {system}", system, tuple(TemplateExample(*one) for one in examples), variables)


def test_a_prompt_is_found_in_messages_and_not_in_what_an_agent_says() -> None:
    one = template("You are {name}, {name}. Trade {what}.", ("$A up", "BUY"))
    shorter = template("You are {name}, {name}. Trade {what}.")
    messages = [*one.messages({"name": "Ann", "what": "a\nlot"}), ChatMessage(role="user", content="$B down")]
    assert values_in(messages, one) == {"name": "Ann", "what": "a\nlot"}
    assert prompt_in(messages, [shorter, one]) is one, "the one that says most"
    other = [ChatMessage(role="system", content="You are Ann, Bob. Trade it."), *messages[1:]]
    assert values_in(other, one) is None, "one variable has one value"
    assert values_in(messages[:-1], one) is None, "nothing was asked"
    claims = [ChatMessage(role="user", content=messages[0].text()), *messages[1:]]
    assert values_in(claims, one) is None, "only the system text counts"
    assert with_prompt(messages, shorter, {"name": "Eve", "what": "tea"})[-1].text() == "$B down"


def test_values_are_found_wherever_they_end_and_a_hostile_log_takes_no_time() -> None:
    def found(system: str, text: str) -> dict[str, str] | None:
        messages = [ChatMessage(role="system", content=text), ChatMessage(role="user", content="$B down")]
        return values_in(messages, template(system))

    twice = "{title} {name}, trade. {name} must reply."
    assert found(twice, "Chief Executive Ann, trade. Ann must reply.") == {"title": "Chief Executive", "name": "Ann"}
    assert found(twice, "Chief Executive Ann, trade. Bob must reply.") is None
    assert found("{a}. {b}. End.", "1. 2. 3. End.") == {"a": "1", "b": "2. 3"}
    assert found("{a}{b}", "xy") == {"a": "", "b": "xy"}
    assert found("{a}.", "x") is None
    started = process_time()
    assert found("You are {a}. {b}. {c}. {d}. End.", "You are " + ". " * 50_000) is None
    assert found("{a} {b} {a} {b}!", " " * 100_000) is None
    assert process_time() - started < 30, "a regular expression would take days"


def test_a_canary_counts_only_where_its_prompt_was_used() -> None:
    row = make_trajectory()
    assert prompts_used(row, [template("never said")]) == {None}
    assert was_prompted(row, [])
    assert not was_prompted(row, [template("never said")])


async def test_learning_goes_on_where_it_was_and_the_gate_never_sees_its_windows(
    played: Database, model: Obeys, tmp_path: Path
) -> None:
    few: dict[str, Any] = {"policy_hidden": (8,), "policy_buffer": 4, "policy_epochs": 1, "prompt_points": 2}
    few |= {"eval_windows": 8, "decisions": 4, "action": "learn", "mutations_per_episode": 2}
    settings = settings_for(tmp_path, model, **few)
    starts, material = [PLAIN], PromptMaterial(rules=("follow it",), examples=(PromptExample("$A up", "BUY $A 20%"),))
    windows = await training_windows(played, settings, end_of(WINDOWS[-1], 2))
    assert max(one.window.window_id for one in windows) < WINDOWS[-8]
    done = await learn_policy(played, settings, starts=starts, material=material, say=lambda line: None)
    assert done.decisions >= 4
    store = LedgerStore(played, settings)
    assert await store.checkpoint() is not None
    again = await learn_policy(played, settings, starts=starts, material=material, say=lambda line: None)
    assert (again.decisions, again.episodes) == (done.decisions, 0), "what was learnt is not learnt again"
    more = settings_for(tmp_path, model, **(few | {"decisions": done.decisions + 1}))
    assert (await learn_policy(played, more, starts=starts, material=material, say=lambda line: None)).episodes > 0
    mixed = await played.pool.fetchval(
        "SELECT count(*) FROM (SELECT trained_in FROM hindsight.policy_experience WHERE trained_in IS NOT NULL"
        " GROUP BY 1 HAVING count(DISTINCT version) > 1) t"
    )
    assert mixed == 0
    prompt = await kept(played, settings, RIGHT.text)
    gated = settings_for(tmp_path, model, eval_windows=len(WINDOWS))
    evaluation = (await gate_prompt(played, gated, prompt, PromptMaterial(), say=lambda line: None)).evaluation
    learnt = max(one.window.window_id for one in windows)
    assert min(one.window_id for one in evaluation.windows) > learnt


class Writes:
    """A model that writes the same whatever it is asked."""

    name = "a-model"

    def __init__(self, reply: str) -> None:
        self._reply = reply

    async def ask(self, system: str, user: str) -> str | None:
        return self._reply


async def test_a_mutation_is_written_by_the_model_unless_it_breaks_a_promise(
    database: Database, model: Obeys, tmp_path: Path
) -> None:
    settings = settings_for(tmp_path, model)
    first = await kept(database, settings, "You are {name}.\n\n## Format\nReply BUY or SELL.\n")

    async def made(mutation: str, reply: str) -> PromptRow:
        writer = MutationWriter(Writes(f"<prompt>\n{reply}\n</prompt>"))
        return (await keep_mutation(database, first, mutation, PromptMaterial(), settings.limits, writer))[0]

    written = await made("expansion", f"{first.text}\n## Context\nIt rains.\n")
    assert (written.made_by, written.parent) == ("a-model", first.prompt_id)
    assert "It rains." in written.text
    for broken in ("## Format\nReply BUY or SELL.", "You are {name}.", f"{first.text}\n{{secret}}"):
        assert (await made("try_catch", broken)).made_by == "operator", "a variable or the format changed"
    with pytest.raises(ConfigurationError, match="no mutation 'rhyme'"):
        await made("rhyme", written.text)
    assert (await made("keep", written.text)).prompt_id == first.prompt_id


def test_the_command_adds_lists_shows_mutates_compares_texts_and_releases(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "trader.txt"
    file.write_text(f"Trade on the news.\n{HOSTILE}\n")
    flags = ["--home", str(tmp_path), "--database-url", database_url, "--json"]

    def prompts(*words: str, code: int = 0) -> Any:
        assert prompts_command([*words, *flags]) == code, capsys.readouterr()
        out = capsys.readouterr().out
        return json.loads(out) if out.strip() else None

    added = prompts("add", str(file), "--role", "trader")
    assert prompts("add", str(file), "--role", "trader")["new"] is False
    made = prompts("mutate", added["prompt_id"], "--mutation", "try_catch")
    assert (made["parent"], made["role"]) == (added["prompt_id"], "trader")
    assert [one["prompt_id"] for one in prompts("list")] == [made["prompt_id"], added["prompt_id"]]
    assert prompts("show", made["prompt_id"])["versions"] == []
    parts = prompts("diff", made["prompt_id"])["parts"]
    assert "".join(one["text"] for one in parts if one["change"] != "added") == added_text(file)
    assert {one["change"] for one in parts} >= {"same", "added"}
    prompts("mutate", added["prompt_id"], "--mutation", "rhyme", code=2)
    prompts("show", "p-nothing", code=2)
    prompts("diff", added["prompt_id"], code=2)
    prompts("gate", code=2)
    for wrong in (["--reply", "("], ["--role", "a\nb"], ["--role", "x" * 101]):
        prompts("mutate", added["prompt_id"], "--mutation", "try_catch", *wrong, code=2)
    prompts("serve", "--policy-input", "384", code=2)
    assert prompts_command(["learn", *flags[:-1]]) == 2
    assert "no prompt without a role to begin with" in capsys.readouterr().err
    assert prompts_command(["show", made["prompt_id"], *flags[:-1]]) == 0
    assert capsys.readouterr().out.endswith(made["text"]), "line by line"
    assert prompts_command(["diff", made["prompt_id"], *flags[:-1]]) == 0
    assert "Trade on the news.\n" in capsys.readouterr().out
    prompts("release", made["prompt_id"], "--force", code=2)
    (tmp_path / "empty.txt").write_text("\n")
    prompts("add", str(tmp_path / "empty.txt"), code=2)


def added_text(file: Path) -> str:
    return file.read_text()
