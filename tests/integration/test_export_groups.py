"""Judged groups for other engines: what is in the file, what is not, and what TRL and verl make of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from data_bridge.database import Database
from examples import groups_for_trl, groups_for_verl
from tests.builders import NOW, hours_before, insert_window
from tests.builders_judge import API_KEY
from tests.fakes.judge_server import JudgeServer
from tests.tiny_model import shared_tiny_model
from trainer.cli.group_files import opened_group_file
from trainer.cli.judge_windows import main as judge_windows
from trainer.cli.traces import main as traces

Run = Callable[..., Awaitable[int]]
TOKENS = [81, 46, 7, 2]
LOGPROBS = [-0.5, -0.25, -0.125, -0.0625]


@pytest.fixture
def run(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setenv("DATABASE_URL", database_url)
    monkeypatch.setenv("JUDGE_API_KEY", API_KEY)
    monkeypatch.setenv("JUDGE_PRICE", "1/10")

    async def call(main: Callable[[list[str]], int], *flags: str) -> int:
        return await asyncio.to_thread(main, [*flags, "--until", NOW.isoformat(), "--home", str(tmp_path)])

    return call


async def log(database: Database, number: int = 2) -> list[str]:
    """Windows of three agents, the first call of each with the tokens that were sampled."""
    sampled = {"completionTokenIds": TOKENS, "completionLogprobs": LOGPROBS, "logprobsTemperature": 1.0}
    windows = hours_before(number=number)
    for window_id in windows:
        await insert_window(database.pool, window_id)
    await database.pool.execute(
        """UPDATE trajectories SET "stepsJson" = jsonb_set(
             "stepsJson"::jsonb, '{0,llmCalls,0}', ("stepsJson"::jsonb #> '{0,llmCalls,0}') || $1::jsonb)::text""",
        json.dumps(sampled),
    )
    return windows


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_a_group_leaves_with_its_rewards_and_without_what_was_known_afterwards(
    database: Database, run: Run, tmp_path: Path
) -> None:
    windows = await log(database)
    with JudgeServer() as server:
        asked = ("--judge-model", "judge", "--judge-base-url", server.base_url, "--held-out-share", "0")
        assert await run(judge_windows, *asked) == 0
        paid = len(server.requests)
        file = tmp_path / "groups.jsonl"
        assert await run(traces, "export", str(file), "--groups") == 0
        assert len(server.requests) == paid  # exporting asks nobody
    rows = rows_of(file)
    assert sorted({row["window_id"] for row in rows}) == sorted(windows)
    stored = await database.pool.fetch('SELECT "trajectoryId" AS id, "stepsJson"::jsonb AS steps FROM trajectories')
    logged = {row["id"]: [call for step in json.loads(row["steps"]) for call in step["llmCalls"]] for row in stored}
    assert {row["trajectory_id"] for row in rows} == logged.keys()
    for row in rows:
        call = [one for one in logged[row["trajectory_id"]] if one.get("purpose", "action") == "action"][row["call"]]
        said = [call.get("systemPrompt"), call.get("userPrompt")]
        assert [message["content"] for message in row["messages"]] == [text for text in said if text]
        assert (row["completion"], row["model"]) == (call["response"], call["model"])
        assert row["token_ids"] == call.get("completionTokenIds")
        assert row["logprobs"] == call.get("completionLogprobs")
    assert [row["token_ids"] for row in rows if row["call"] == 0] == [TOKENS] * 6
    text = file.read_text()
    for afterwards in ("ACME wins a large order", "trueProbabilities", "It earned", "endPrice", "finalPnL"):
        assert afterwards not in text
    for window_id in windows:
        members = {row["trajectory_id"]: row for row in rows if row["window_id"] == window_id}.values()
        mean = sum(row["reward"] for row in members) / len(members)
        assert all(row["advantage"] == pytest.approx(row["reward"] - mean) for row in members)
        assert {row["orders"] for row in members} == {2}


async def test_a_row_that_changed_since_it_was_judged_costs_its_group(
    database: Database, run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    windows = await log(database)
    assert await run(judge_windows, "--judge", "outcome", "--held-out-share", "0") == 0
    change = """UPDATE trajectories SET "stepsJson" = replace("stepsJson", 'You', 'Thou') WHERE "windowId" = $1"""
    await database.pool.execute(change, windows[0])
    capsys.readouterr()
    file = tmp_path / "groups.jsonl.gz"
    assert await run(traces, "export", str(file), "--groups", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["groups"], told["windows"], told["left_out"]) == (1, 1, {"changed": 1})


async def test_without_a_judged_group_there_is_no_file(database: Database, run: Run, tmp_path: Path) -> None:
    await log(database)
    file = tmp_path / "groups.jsonl"
    assert await run(traces, "export", str(file), "--groups") == 3
    assert not file.exists()
    assert await run(traces, "import", str(file), "--groups") == 2


def made_rows() -> list[dict[str, Any]]:
    usual = {"schema": "hindsight.groups/1", "window_id": "w", "agent_id": "a", "call": 0, "reward": 0.5, "orders": 1}
    messages = [{"role": "system", "content": "You trade."}, {"role": "user", "content": "ACME is at 100."}]
    longer = [*messages[:1], {"role": "user", "content": "ACME is at 100, and it has been at 99."}]
    return [
        usual | {"group_id": "1", "messages": messages, "token_ids": TOKENS, "logprobs": LOGPROBS, "advantage": 0.5},
        usual | {"group_id": "1", "messages": longer, "token_ids": [5, 2], "logprobs": [-1.0, -2.0], "advantage": -0.5},
        usual | {"group_id": "2", "messages": messages, "token_ids": None, "logprobs": None, "advantage": 0.0},
    ]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(shared_tiny_model(tmp_path_factory))


def prompt_of(row: dict[str, Any], tokenizer: Any) -> list[int]:
    encoded = tokenizer.apply_chat_template(row["messages"], add_generation_prompt=True, return_dict=True)
    return list(encoded["input_ids"])


def test_the_example_for_trl_gives_what_grpo_takes(tmp_path: Path, tokenizer: Any) -> None:
    """The loss of GRPO, written down here as TRL has it, learns from the tensors: 0 where nothing has moved."""
    file = tmp_path / "groups.jsonl"
    with opened_group_file(file) as write:
        for row in made_rows():
            write(row)
    rows = groups_for_trl.rows_of(file)
    batch = groups_for_trl.batch_of(rows, tokenizer)
    prompts = [prompt_of(row, tokenizer) for row in rows]
    assert len(rows) == 2
    for place, prompt in enumerate(prompts):
        assert batch["prompt_ids"][place, -len(prompt) :].tolist() == prompt  # padded on the left
        assert batch["prompt_mask"][place].sum() == len(prompt)
    assert batch["completion_ids"][1, :2].tolist() == [5, 2]
    assert batch["completion_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert batch["num_items_in_batch"] == 6
    now = batch["old_per_token_logps"].clone().requires_grad_()
    ratio, advantages = (now - batch["old_per_token_logps"]).exp(), batch["advantages"][:, None]
    losses = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages) * batch["completion_mask"]
    (losses.sum() / batch["num_items_in_batch"]).backward()  # type: ignore[no-untyped-call]  # torch gives it no types
    assert now.grad is not None
    assert now.grad.sign().tolist() == [[-1, -1, -1, -1], [1, 1, 0, 0]]  # more of the first, less of the second


def test_the_example_for_verl_gives_the_columns_of_its_actor(tmp_path: Path, tokenizer: Any) -> None:
    file = tmp_path / "groups.parquet"
    with opened_group_file(file) as write:
        for row in made_rows():
            write(row)
    assert pl.read_parquet(file)["messages"].to_list() == [row["messages"] for row in made_rows()]
    rows = groups_for_verl.rows_of(file)
    data = groups_for_verl.data_of(rows, tokenizer)
    before = data["prompts"].shape[1]
    assert torch.equal(torch.cat([data["prompts"], data["responses"]], dim=1), data["input_ids"])
    assert data["response_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert data["token_level_rewards"].tolist() == [[0, 0, 0, 0.5], [0, 0.5, 0, 0]]
    assert data["advantages"].tolist() == [[0.5, 0.5, 0.5, 0.5], [-0.5, -0.5, 0, 0]]
    assert data["uid"].tolist() == ["1", "1"]
    for place, row in enumerate(rows):
        prompt = prompt_of(row, tokenizer)
        own = data["attention_mask"][place].bool()
        assert data["input_ids"][place][own].tolist() == prompt + row["token_ids"]
        assert data["position_ids"][place][own].tolist() == list(range(len(prompt) + len(row["token_ids"])))
        assert data["position_ids"][place, before] == len(prompt)


@pytest.mark.parametrize(("example", "name"), [(groups_for_trl, "groups.jsonl"), (groups_for_verl, "groups.parquet")])
def test_the_examples_are_run_as_they_say(
    example: Any,
    name: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with opened_group_file(tmp_path / name) as write:
        for row in made_rows():
            write(row)
    arguments = [str(tmp_path / name), "--tokenizer", str(shared_tiny_model(tmp_path_factory))]
    monkeypatch.setattr("sys.argv", ["example", *arguments])
    example.main()
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 ")
