"""The console's page of prompts, and every command of docs/prompts.md."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import sys
from html import escape
from pathlib import Path

import pytest

from data_bridge.database import Database
from tests.builders_console import FULL, READ, opened_console
from tests.builders_prompts import kept_prompt, record_prompts
from tests.builders_report_run import HOSTILE, record_run
from tests.integration.test_console_calls import API
from tests.integration.test_lessons_judged import WINDOWS
from tests.integration.test_prompts_released import Obeys, model, played
from trainer.cli.prompts import main as prompts_command
from trainer.ledger.releases import serving

__all__ = ["model", "played"]  # fixtures
ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"^```\n(.*?)^```$", (ROOT / "docs" / "prompts.md").read_text(), re.DOTALL | re.MULTILINE)
COMMANDS = [line for block in BLOCKS for line in block.strip().splitlines() if "scripts/prompts.py" in line]


async def test_the_page_shows_what_changed_escapes_it_and_releases_and_rolls_back_with_a_reason(
    database: Database, tmp_path: Path
) -> None:
    await record_run(database, tmp_path)
    first, second = await record_prompts(database, words=HOSTILE)
    before = await serving(database, "hindsight")
    assert before is not None
    async with opened_console(database, tmp_path) as console, console.client() as client:

        async def page() -> str:
            answer = await client.get("/prompts", headers={"accept": "text/html"})
            assert answer.status_code == 200
            return answer.text

        shown = await page()
        assert "<ins>" in shown
        assert escape(HOSTILE) in shown
        assert "<script>alert" not in shown
        assert shown.index(second.prompt_id) < shown.index(f'id="{first.prompt_id}"')
        assert "gain <b>0.25</b>" in shown
        assert 'id="actions"' in shown
        assert 'id="chances"' not in shown, "torch is loaded only for whoever asks"
        asked = f"/prompts?prompt={first.prompt_id}"
        assert f'href="{asked}#chances"' in shown
        chances = (await client.get(asked)).text
        told = (await client.post(f"{API}/prompts/policy/get_distribution", json={"prompt": first.text})).json()
        rows = dict(zip(told["names"], zip(told["probabilities"], told["action_mask"], strict=True), strict=True))
        for name, (chance, applies) in rows.items():
            said = f"</meter> {100 * chance:.1f}%" if applies else "does not apply"
            row = re.search(rf'<th scope="row" class="text">{name.replace("_", " ")}</th><td>(?!\d)(.*?)</td>', chances)
            assert row is not None
            assert said in row[1]
        assert {applies for _, applies in rows.values()} == {True, False}
        assert (await client.get("/prompts?prompt=p-nothing")).status_code == 422
        assert (await client.get(f"/prompts?prompt=p-{'0' * 16}")).status_code == 404

        async def post(path: str, **form: str) -> int:
            return (await client.post(path, data=form)).status_code

        named = {"prompt": second.prompt_id, "role": second.role}
        assert await post("/prompts/release", **named) == 422, "without a reason"
        assert await post("/prompts/release", **named, reason="better") == 409, "the gate has not seen it"
        looks = await client.post(
            "/prompts/release", data={**named, "reason": "x"}, headers={"authorization": f"Bearer {READ}"}
        )
        assert looks.status_code == 403
        assert await post("/prompts/release", **named, reason="better", force="yes") == 303
        now = await serving(database, "hindsight")
        assert now is not None
        assert (now.forced, now.reason) == (True, "better")
        assert now.prompt_version in await page()
        assert await post("/prompts/rollback", reason="it was a trial") == 303
        after = await serving(database, "hindsight")
        assert after is not None
        assert after.release.identity == before.release.identity
        deeds = await database.pool.fetch("SELECT deed, reason FROM hindsight.audit ORDER BY audit_id")
        assert ("promote a prompt by force", "better") in {tuple(row) for row in deeds}
    assert FULL not in shown


async def test_every_command_of_the_page_on_prompts_runs(
    played: Database,  # the fixture
    database_url: str,
    model: Obeys,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "maker.txt").write_text("Trade on the news.\n")
    few = {"EVAL_SAMPLES": "1", "EVAL_QUESTIONS": "0", "EVAL_WINDOWS": str(len(WINDOWS) // 2), "PROMPT_POINTS": "2"}
    few |= {"POLICY_HIDDEN": "8", "POLICY_BUFFER": "4", "POLICY_EPOCHS": "1", "MUTATIONS_PER_EPISODE": "2"}
    few |= {"HOME": str(tmp_path), "UNTIL": "2099-03-05T00:00"}
    for name, value in few.items():
        monkeypatch.setenv(f"HINDSIGHT_{name}", value)
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("WANDB_API_KEY", "a-key-for-tests")
    monkeypatch.setenv("WANDB_TRAINING_BASE_URL", model.base_url)
    other = await kept_prompt(played, "Trade on the news: follow it.\n", "market maker")
    ran = set[str]()
    for command in COMMANDS:
        words = shlex.split(command.replace(" ID ", f" {other.prompt_id} "))[2:]
        ran.add(words[0])
        if words[0] == "serve":
            await answers(words)
            continue
        few_decisions = ["--decisions", "4", "--policy-buffer", "4"]
        small = {"learn": few_decisions, "compare": [*few_decisions, "--gepa-budget", "2"]}
        code = await asyncio.to_thread(prompts_command, [*words, *small.get(words[0], [])])
        assert code in ((0, 5) if words[0] == "gate" else (0,)), command
    assert ran == {"add", "list", "learn", "compare", "gate", "release", "serve"}


async def answers(words: list[str]) -> None:
    """The service comes up, says where it is, and ends when it is asked to."""
    command = [sys.executable, str(ROOT / "scripts" / "prompts.py"), *words, "--json", "--port", "0"]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=dict(os.environ))
    assert process.stdout is not None
    ready = json.loads(await process.stdout.readline())
    assert (ready["event"], Path(ready["keys"]).name) == ("ready", "keys.json")
    process.terminate()
    assert await process.wait() == 0
