"""Following a job: every event once, faults forgiven for a time, and a receipt that survives being stored."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx
import openai
import pytest

from data_bridge.errors import BackendError
from trainer.train.backends.remote_job import Fate, Pace, Receipt, fate_of, follow_job

PACE = Pace(first_pause=0.001, max_pause=0.001, patience=0.05)
REQUEST = httpx.Request("POST", "http://wandb.test")


@dataclass
class Event:
    id: str
    type: str
    data: dict[str, Any] = field(default_factory=dict)


def steps(number: int) -> list[Event]:
    return [Event(str(index), "gradient_step", {"loss": float(index)}) for index in range(number)]


class BreaksAfterEvery:
    """Events of a job whose connection breaks after every few of them."""

    def __init__(self, events: list[Event], few: int) -> None:
        self._events, self._few = events, few

    async def __call__(self, seen: str | None) -> AsyncIterator[Event]:
        ids = [event.id for event in self._events]
        start = 0 if seen is None else ids.index(seen) + 1
        for event in self._events[start : start + self._few]:
            yield event
        raise openai.APIConnectionError(request=REQUEST)


async def test_every_event_is_taken_once_however_often_the_connection_breaks() -> None:
    events = [Event("start", "training_started"), *steps(5), Event("end", "training_ended")]
    end = await follow_job("job", BreaksAfterEvery(events, 2), deadline=time.monotonic() + 60, pace=Pace(0.001, 0.001))
    assert end.error is None
    assert [sample["loss"] for sample in end.metrics] == [0.0, 1.0, 2.0, 3.0, 4.0]


async def test_patience_ends_when_nothing_good_comes_for_too_long() -> None:
    with pytest.raises(BackendError, match="does not answer about training job job"):
        await follow_job("job", BreaksAfterEvery([], 1), deadline=time.monotonic() + 60, pace=PACE)


async def test_what_is_not_a_number_is_no_metric() -> None:
    event = Event("0", "gradient_step", {"loss": 0.5, "bad": float("nan"), "note": "text", "flag": True})

    async def events(seen: str | None) -> AsyncIterator[Event]:
        yield event
        yield Event("1", "training_ended")

    end = await follow_job("job", events, deadline=time.monotonic() + 60, pace=PACE)
    assert end.metrics == [{"loss": 0.5}]


@pytest.mark.parametrize(
    ("status", "fate"),
    [
        (400, Fate.REFUSED),
        (401, Fate.REFUSED),
        (408, Fate.UNKNOWN),
        (422, Fate.REFUSED),
        (429, Fate.NOT_TAKEN),
        (500, Fate.UNKNOWN),
        (503, Fate.UNKNOWN),
    ],
)
def test_the_fate_of_a_submission_by_status(status: int, fate: Fate) -> None:
    error = openai.APIStatusError("no", response=httpx.Response(status, request=REQUEST), body=None)
    assert fate_of(error) is fate


@pytest.mark.parametrize(
    ("cause", "fate"),
    [
        (httpx.ConnectError("refused"), Fate.NOT_TAKEN),
        (httpx.ConnectTimeout("slow"), Fate.NOT_TAKEN),
        (httpx.ReadError("reset"), Fate.UNKNOWN),
        (httpx.ReadTimeout("slow"), Fate.UNKNOWN),
        (httpx.WriteError("broken pipe"), Fate.UNKNOWN),
        (httpx.RemoteProtocolError("disconnected"), Fate.UNKNOWN),
    ],
)
def test_the_fate_of_a_submission_by_what_broke(cause: Exception, fate: Fate) -> None:
    error = openai.APIConnectionError(request=REQUEST)
    error.__cause__ = cause
    assert fate_of(error) is fate


def test_a_receipt_is_the_same_after_it_was_stored() -> None:
    sent = datetime(2026, 11, 16, 3, 0, 5, tzinfo=UTC)
    for receipt in (
        Receipt("unconfirmed", 12, 480, sent),
        Receipt("refused", 0, 1, sent),
        Receipt("job-7", 3, 9, sent),
    ):
        assert Receipt.parse(str(receipt), policy_step=99) == receipt
    assert Receipt.parse("bare-job-id", policy_step=4).after_step == 4
    assert Receipt("unconfirmed", 1, 1, sent).job_id is None
    assert Receipt("job-7", 1, 1, sent).job_id == "job-7"
