"""The serverless backend, on the unmodified ART client, against a server that keeps the wire contract.

For every fault of the table: never two jobs for one batch, and never a batch lost.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr
from transformers import AutoTokenizer

from data_bridge.errors import BackendError, ConfigurationError
from data_bridge.quality import Reason
from tests.builders_art import judged_batch, prepared_batch
from tests.fakes.wandb_server import DROP, DROP_AFTER, Fault, WandbServer, wandb_server
from tests.tiny_model import shared_tiny_model
from trainer.config.commands import TrainSettings
from trainer.config.settings import settings_from
from trainer.run.train import trainee_of
from trainer.train.backends.art_interface import import_art
from trainer.train.backends.remote_job import Pace, Receipt
from trainer.train.backends.serverless import ServerlessBackend

PACE = Pace(first_pause=0.02, max_pause=0.1, request=5, patience=2, opening=1, checkpoint_grace=0.3)


class Ledger:
    """What the pipeline's ledger keeps of a batch: the newest receipt. Can die at its nth write."""

    def __init__(self, dies_at: int | None = None) -> None:
        self.receipt: str | None = None
        self.written: list[str] = []
        self._dies_at = dies_at

    async def __call__(self, receipt: str) -> None:
        if self._dies_at == len(self.written) + 1:
            raise Killed
        self.written.append(receipt)
        self.receipt = receipt


class Killed(BaseException):
    """Stands for kill -9: nothing of ours may catch it."""


@pytest.fixture
def server() -> Iterator[WandbServer]:
    with wandb_server() as running:
        yield running


def backend_for(server: WandbServer, pace: Pace | None = PACE, **changes: object) -> ServerlessBackend:
    values: dict[str, object] = {
        "wandb_api_key": SecretStr(server.key),
        "wandb_base_url": server.url,
        "wandb_project": "game",
        "backend": "serverless",
        "remote_deadline": timedelta(seconds=60),
    }
    settings = settings_from(TrainSettings, **(values | changes))
    address, key = settings.promotion.wandb_base_url, settings.secrets.wandb_api_key
    entity, deadline = settings.backend.wandb_entity, settings.backend.remote_deadline
    return ServerlessBackend(trainee_of(settings), entity, deadline, address, key, pace)


@asynccontextmanager
async def opened(server: WandbServer, pace: Pace = PACE, **changes: object) -> AsyncIterator[ServerlessBackend]:
    backend = backend_for(server, pace, **changes)
    await backend.open()
    try:
        yield backend
    finally:
        await backend.close()


async def settled_by_next_run(server: WandbServer, ledger: Ledger, **changes: object) -> int | None:
    """What a new process, knowing only the ledger, finds out about the batch: its step."""
    async with opened(server, PACE, **changes) as backend:
        result = await backend.settle("batch-1", ledger.receipt, policy_step=0)
        return None if result is None else result.checkpoint.step


async def test_batches_are_trained_one_after_the_other_each_by_one_job(server: WandbServer) -> None:
    async with opened(server) as backend:
        assert await backend.open() == 0
        for number in (1, 2, 3):
            ledger = Ledger()
            result = await backend.train(prepared_batch(f"batch-{number}"), on_submitted=ledger)
            assert result.checkpoint.step == number
            assert result.checkpoint.location == f"wandb-artifact:///default-entity/game/hindsight:step{number}"
            assert result.checkpoint.base_model == "OpenPipe/Qwen3-14B-Instruct"
            assert result.trainable_tokens == 6
            assert result.metrics["loss"] == pytest.approx(0.4)
            assert ledger.written[-1].startswith(f"job-{number} ")
        assert await backend.current_step() == 3
    assert list(server.jobs_per_batch().values()) == [1, 1, 1]


async def test_a_job_is_sent_exactly_as_art_itself_would_send_it(server: WandbServer) -> None:
    art = import_art()
    theirs = art.ServerlessBackend(api_key=server.key, base_url=server.url)
    model = art.TrainableModel(name="hindsight", project="game", base_model="OpenPipe/Qwen3-14B-Instruct")
    await model.register(theirs)
    arguments = {"learning_rate": 1e-5, "ppo": True, "epsilon": 0.2, "scale_rewards": False}
    arguments["max_negative_advantage_importance_sampling_weight"] = 3.0
    result = await theirs.train(model, prepared_batch().groups, **arguments)
    await theirs.close()
    async with opened(server, learning_rate=1e-5) as ours:
        await ours.train(prepared_batch(), on_submitted=Ledger())
    assert result.step == 1
    assert server.jobs[0].body == server.jobs[1].body


async def test_the_ledger_knows_of_a_batch_before_it_is_sent_and_of_its_job_before_it_is_followed(
    server: WandbServer,
) -> None:
    seen: list[tuple[int, int]] = []

    async def on_submitted(receipt: str) -> None:
        seen.append((len(server.jobs), server.count("GET", "events")))

    async with opened(server) as backend:
        await backend.train(prepared_batch(), on_submitted=on_submitted)
    assert seen == [(0, 0), (1, 0)]


# -- what is sent


async def test_logged_tokens_and_log_probabilities_are_sent_as_they_are(server: WandbServer) -> None:
    async with opened(server) as backend:
        prepared = await backend.prepare(judged_batch(logged_tokens=True))
        assert (prepared.trainable_tokens, prepared.metrics["share_rescored"]) == (6, 0)
        result = await backend.train(prepared, on_submitted=Ledger())
    assert result.metrics["reward"] == pytest.approx(0.5)
    assert server.jobs[0].body["experimental_config"]["precalculate_logprobs"] is False
    turn = server.jobs[0].body["trajectory_groups"][0]["trajectories"][0]["messages_and_choices"][-1]
    assert [(entry["token"], entry["logprob"]) for entry in turn["logprobs"]["content"]] == [
        ("token_id:3", -0.5),
        ("token_id:4", -0.5),
        ("token_id:2", -0.5),
    ]


async def test_a_log_of_mere_text_is_tokenised_here_and_scored_by_the_server(
    server: WandbServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    base_model = str(shared_tiny_model(tmp_path_factory))
    async with opened(server, base_model=base_model) as backend:
        prepared = await backend.prepare(judged_batch(logged_tokens=False))
        assert prepared.exclusions == ()
        await backend.train(prepared, on_submitted=Ledger())
    assert server.jobs[0].body["experimental_config"]["precalculate_logprobs"] is True
    turn = server.jobs[0].body["trajectory_groups"][0]["trajectories"][0]["messages_and_choices"][-1]
    tokens = [int(entry["token"].removeprefix("token_id:")) for entry in turn["logprobs"]["content"]]
    assert AutoTokenizer.from_pretrained(base_model).decode(tokens) == "BUY ACME 0<|im_end|>"


async def test_without_a_tokenizer_mere_text_is_left_out_with_its_reason(server: WandbServer, tmp_path: Path) -> None:
    async with opened(server, base_model=str(tmp_path)) as backend:
        prepared = await backend.prepare(judged_batch(logged_tokens=False))
        assert {exclusion.reason for exclusion in prepared.exclusions} == {Reason.NO_LOGPROBS}
        with pytest.raises(BackendError, match="no trainable tokens"):
            await backend.train(prepared, on_submitted=Ledger())
    assert server.jobs == []


# -- the submission


async def test_a_refused_key_is_one_sentence_without_the_key(server: WandbServer) -> None:
    wrong = backend_for(server, wandb_api_key=SecretStr("wrong-key-1234"))
    with pytest.raises(ConfigurationError, match="W&B refused WANDB_API_KEY") as refused:
        await wrong.open()
    assert "wrong-key-1234" not in str(refused.value)


@pytest.mark.parametrize("status", [400, 401, 422])
async def test_a_refused_batch_is_no_job_and_the_next_run_may_send_it(server: WandbServer, status: int) -> None:
    ledger = Ledger()
    server.break_next("jobs", Fault(status))
    async with opened(server) as backend:
        with pytest.raises(BackendError, match="refused batch batch-1"):
            await backend.train(prepared_batch(), on_submitted=ledger)
    assert server.jobs == []
    assert await settled_by_next_run(server, ledger) is None


async def test_a_busy_server_is_asked_again_after_its_step(server: WandbServer) -> None:
    server.break_next("jobs", Fault(429), Fault(429), Fault(429))
    async with opened(server) as backend:
        before = server.count("GET", "checkpoints")
        result = await backend.train(prepared_batch(), on_submitted=Ledger())
    assert result.checkpoint.step == 1
    assert server.count("POST", "jobs") == 4
    assert server.count("GET", "checkpoints") - before >= 4
    assert list(server.jobs_per_batch().values()) == [1]


async def test_a_server_that_stays_busy_ends_the_run_and_loses_nothing(server: WandbServer) -> None:
    ledger = Ledger()
    server.break_next("jobs", *[Fault(429)] * 100)
    async with opened(server, Pace(0.02, 0.05, patience=0.3)) as backend:
        with pytest.raises(BackendError, match="HTTP 429"):
            await backend.train(prepared_batch(), on_submitted=ledger)
    assert server.jobs == []
    assert await settled_by_next_run(server, ledger) is None


@pytest.mark.parametrize("fault", [DROP_AFTER, Fault(500, after=True), Fault(504, after=True), Fault(200, after=True)])
async def test_a_batch_that_was_taken_though_the_answer_was_lost_is_not_sent_again(
    server: WandbServer, fault: Fault
) -> None:
    server.training_seconds = 0.6  # the step does not move while one might be tempted to send it again
    server.break_next("jobs", fault)
    async with opened(server) as backend:
        result = await backend.train(prepared_batch(), on_submitted=Ledger())
    assert result.checkpoint.step == 1
    assert list(server.jobs_per_batch().values()) == [1]


@pytest.mark.parametrize("fault", [DROP, Fault(500)])
async def test_a_batch_whose_fate_is_unknown_is_sent_again_only_after_the_deadline(
    server: WandbServer, fault: Fault
) -> None:
    ledger = Ledger()
    server.break_next("jobs", fault)
    async with opened(server, remote_deadline=timedelta(seconds=1.2)) as backend:
        with pytest.raises(BackendError, match="answer to its submission was lost"):
            await backend.train(prepared_batch(), on_submitted=ledger)
        assert server.count("POST", "jobs") == 1
        assert await backend.settle("batch-1", ledger.receipt, 0) is None
        assert (await backend.train(prepared_batch(), on_submitted=ledger)).checkpoint.step == 1
    assert list(server.jobs_per_batch().values()) == [1]


async def test_a_server_that_cannot_be_reached_was_sent_nothing(server: WandbServer) -> None:
    ledger = Ledger()
    async with opened(server, Pace(0.02, 0.05, request=1, patience=0.2)) as backend:
        remote, _ = backend._opened()
        step = backend._newest_step

        async def step_then_down() -> int:
            newest = await step()
            remote._client.base_url = "http://127.0.0.1:9/v1"  # nobody listens there
            return newest

        backend._newest_step = step_then_down  # type: ignore[method-assign]  # the last call before the job
        with pytest.raises(BackendError):
            await backend.train(prepared_batch(), on_submitted=ledger)
    assert server.jobs == []
    assert await settled_by_next_run(server, ledger) is None


async def test_a_reward_that_is_not_a_number_is_found_before_anything_is_sent(server: WandbServer) -> None:
    ledger = Ledger()
    async with opened(server) as backend:
        with pytest.raises(BackendError, match="not a number"):
            await backend.train(prepared_batch(rewards=(0.1, float("nan"))), on_submitted=ledger)
    assert ledger.written == []
    assert server.count("POST", "jobs") == 0


async def test_a_batch_without_trainable_tokens_is_an_error_and_not_a_job(server: WandbServer) -> None:
    prepared = prepared_batch()
    empty = type(prepared)(prepared.batch, prepared.groups, (), trainable_tokens=0)
    async with opened(server) as backend:
        with pytest.raises(BackendError, match="no trainable tokens"):
            await backend.train(empty, on_submitted=Ledger())
    assert server.jobs == []


# -- the job


@pytest.mark.parametrize("fault", [Fault(429), Fault(500), DROP])
async def test_faults_while_following_are_forgiven_however_many_they_are(server: WandbServer, fault: Fault) -> None:
    """ART's client gives up at the fourth in a row."""
    server.break_next("events", *[fault] * 9)
    async with opened(server, Pace(0.02, 0.05, patience=30)) as backend:
        result = await backend.train(prepared_batch(), on_submitted=Ledger())
    assert result.checkpoint.step == 1
    assert result.metrics["loss"] == pytest.approx(0.4)
    assert list(server.jobs_per_batch().values()) == [1]


async def test_a_job_that_cannot_be_followed_has_still_trained_if_its_checkpoint_is_there(server: WandbServer) -> None:
    server.break_next("events", *[Fault(500)] * 1000)
    async with opened(server, Pace(0.02, 0.05, patience=0.3)) as backend:
        result = await backend.train(prepared_batch(), on_submitted=Ledger())
    assert result.checkpoint.step == 1


async def test_an_answer_that_never_comes_is_not_waited_for(server: WandbServer) -> None:
    server.break_next("events", Fault(hangs=200))
    async with opened(server, Pace(0.02, 0.05, request=0.5, patience=30)) as backend:
        async with asyncio.timeout(60):
            result = await backend.train(prepared_batch(), on_submitted=Ledger())
    assert result.checkpoint.step == 1


async def test_a_key_that_is_withdrawn_on_the_way_ends_the_run_and_the_next_finds_the_job(server: WandbServer) -> None:
    ledger = Ledger()
    server.training_seconds = 0.5
    server.break_next("events", Fault(401))
    async with opened(server) as backend:
        with pytest.raises(BackendError, match="the key was refused"):
            await backend.train(prepared_batch(), on_submitted=ledger)
    assert await settled_by_next_run(server, ledger) == 1
    assert list(server.jobs_per_batch().values()) == [1]


async def test_a_job_that_never_ends_is_left_at_the_deadline_and_taken_up_by_the_next_run(server: WandbServer) -> None:
    ledger = Ledger()
    server.endings.append("never")
    async with opened(server, remote_deadline=timedelta(seconds=0.5)) as backend:
        with pytest.raises(BackendError, match="job-1 has not ended within --remote-deadline"):
            await backend.train(prepared_batch(), on_submitted=ledger)
        with pytest.raises(BackendError, match="job-1 has not ended"):
            await backend.settle("batch-1", ledger.receipt, 0)
    server.jobs[0].ending = "checkpoint"
    assert await settled_by_next_run(server, ledger) == 1
    assert list(server.jobs_per_batch().values()) == [1]


async def test_a_job_that_ends_without_a_checkpoint_is_an_error_and_not_step_zero(server: WandbServer) -> None:
    ledger = Ledger()
    server.endings.append("no_checkpoint")
    async with opened(server) as backend:
        with pytest.raises(BackendError, match="ended without a checkpoint after step 0"):
            await backend.train(prepared_batch(), on_submitted=ledger)
        with pytest.raises(BackendError, match="cannot be settled yet"):
            await backend.settle("batch-1", ledger.receipt, 0)
    long_ago = Receipt("job-1", 0, 6, datetime.now(UTC) - timedelta(days=1))
    ledger.receipt = str(long_ago)
    assert await settled_by_next_run(server, ledger) is None


async def test_a_job_that_trained_nothing_is_an_error_although_it_left_a_copy_of_the_last_checkpoint(
    server: WandbServer,
) -> None:
    ledger = Ledger()
    server.endings.append("copy")
    async with opened(server) as backend:
        with pytest.raises(BackendError, match=r"not trained: .* job-1 made no gradient step") as untrained:
            await backend.train(prepared_batch(), on_submitted=ledger)
    assert untrained.value.exit_code == 4
    assert server.steps() == [0, 1]
    assert await settled_by_next_run(server, ledger) is None, "nor does the next run take the copy for the batch's step"


async def test_a_failed_job_is_told_with_its_reason_and_may_be_sent_again(server: WandbServer) -> None:
    ledger = Ledger()
    server.endings.append("failed")
    async with opened(server) as backend:
        with pytest.raises(BackendError, match="job-1 failed: out of memory"):
            await backend.train(prepared_batch(), on_submitted=ledger)
    assert await settled_by_next_run(server, ledger) is None
    assert server.steps() == [0]


@pytest.mark.parametrize("fault", [Fault(500), DROP])
async def test_checkpoints_that_fail_after_the_training_are_asked_for_again(server: WandbServer, fault: Fault) -> None:
    async with opened(server) as backend:

        async def on_submitted(receipt: str) -> None:
            if receipt.startswith("job-"):
                server.break_next("checkpoints", *[fault] * 6)

        result = await backend.train(prepared_batch(), on_submitted=on_submitted)
    assert result.checkpoint.step == 1
    assert list(server.jobs_per_batch().values()) == [1]


async def test_pages_of_a_job_whose_connection_breaks_in_between_are_read_once_each(server: WandbServer) -> None:
    async with opened(server) as backend:

        async def on_submitted(receipt: str) -> None:
            if receipt.startswith("job-"):
                server.jobs[0].ends_at = 0
                server.break_next("events", *[Fault(500)] * 4)

        result = await backend.train(prepared_batch(), on_submitted=on_submitted)
    assert result.metrics["loss"] == pytest.approx(0.4)


# -- a process that dies


async def test_a_process_killed_before_the_sending_has_sent_nothing(server: WandbServer) -> None:
    ledger = Ledger(dies_at=1)
    async with opened(server) as backend:
        with pytest.raises(Killed):
            await backend.train(prepared_batch(), on_submitted=ledger)
    assert server.jobs == []
    assert await settled_by_next_run(server, ledger) is None


@pytest.mark.parametrize("training_seconds", [0.0, 0.6])
async def test_a_process_killed_between_the_submission_and_its_record_finds_the_batch_trained(
    training_seconds: float,
) -> None:
    ledger = Ledger(dies_at=2)
    with wandb_server(training_seconds=training_seconds) as server:
        async with opened(server) as backend:
            with pytest.raises(Killed):
                await backend.train(prepared_batch(), on_submitted=ledger)
        assert ledger.receipt is not None
        assert ledger.receipt.startswith("unconfirmed ")
        assert await settled_by_next_run(server, ledger) == 1
        assert list(server.jobs_per_batch().values()) == [1]


async def test_a_process_killed_before_the_first_poll_finds_the_job_by_its_id(server: WandbServer) -> None:
    class DiesAfterwards(Ledger):
        async def __call__(self, receipt: str) -> None:
            await super().__call__(receipt)
            if receipt.startswith("job-"):
                raise Killed

    ledger = DiesAfterwards()
    async with opened(server) as backend:
        with pytest.raises(Killed):
            await backend.train(prepared_batch(), on_submitted=ledger)
    async with opened(server) as backend:
        result = await backend.settle("batch-1", ledger.receipt, policy_step=0)
    assert result is not None
    assert result.checkpoint.step == 1
    assert result.trainable_tokens == 6
    assert result.metrics["loss"] == pytest.approx(0.4)
    assert list(server.jobs_per_batch().values()) == [1]


async def test_an_old_policy_step_does_not_make_an_unsent_batch_look_trained(server: WandbServer) -> None:
    """A batch prepared at step 0 is sent at step 2: only a checkpoint after step 2 is its own."""
    ledger = Ledger()
    async with opened(server, remote_deadline=timedelta(seconds=1.2)) as backend:
        for number in (1, 2):
            await backend.train(prepared_batch(f"batch-{number}"), on_submitted=Ledger())
        server.break_next("jobs", DROP)
        with pytest.raises(BackendError, match="lost"):
            await backend.train(prepared_batch("late", policy_step=0), on_submitted=ledger)
        assert await backend.settle("late", ledger.receipt, policy_step=0) is None


# -- the key, and the model


async def test_the_key_is_in_no_environment_while_art_runs(
    server: WandbServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", server.key)
    async with opened(server) as backend:
        await backend.train(prepared_batch(), on_submitted=Ledger())
        assert server.key not in json.dumps(dict(os.environ))


def test_importing_art_reads_no_key_from_a_file(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("WANDB_API_KEY=key-in-a-file\n")
    program = (
        "import os; from trainer.train.backends.art_interface import import_art; import_art();"
        "print('WANDB_API_KEY' in os.environ, os.environ['LITELLM_LOCAL_MODEL_COST_MAP'])"
    )
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "WANDB_API_KEY": "key-in-the-environment", "PYTHONPATH": root}
    finished = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert finished.stdout.split()[-2:] == ["False", "True"]


async def test_a_model_of_another_base_is_not_trained_on(server: WandbServer) -> None:
    async with opened(server, base_model="Qwen/Qwen3-30B-A3B-Instruct-2507"):
        pass
    with pytest.raises(ConfigurationError, match="was trained from Qwen/Qwen3-30B"):
        await backend_for(server).open()


def test_settings_that_the_server_cannot_follow_are_refused(server: WandbServer) -> None:
    with pytest.raises(ConfigurationError, match="--kl"):
        backend_for(server, None, kl=0.1)
    with pytest.raises(ConfigurationError, match="WANDB_API_KEY is not set"):
        backend_for(server, None, wandb_api_key=None)
