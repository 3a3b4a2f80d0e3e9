"""The whole API against its own document: no 500, no answer that the document does not describe, nothing untyped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from data_bridge.database import open_database
from tests.builders_console import FULL, opened_console
from tests.builders_report_run import record_run
from trainer.console.app import OPERATIONS
from trainer.console.openapi import document

schemathesis = pytest.importorskip("schemathesis")

from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402  # comes with it

EXAMPLES = 25


@pytest.fixture
def console_url(database_url: str, tmp_path: Path) -> Iterator[str]:
    """A console with a recorded run in a thread of its own, as schemathesis is not async."""
    ready, done, address = threading.Event(), threading.Event(), list[str]()

    async def serve() -> None:
        async with open_database(database_url, tmp_path) as database:
            await record_run(database, tmp_path)
            # Nothing serves the release here: advice need not wait long to find that out.
            async with opened_console(database, tmp_path, advice_timeout=timedelta(milliseconds=200)) as console:
                await console.services.policy.update(wait=True)  # loads torch, for which a call is too short
                address.append(console.url)
                ready.set()
                await asyncio.to_thread(done.wait)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(60)
    yield address[0]
    done.set()
    thread.join()


def untyped(schema: Any, path: str = "") -> Iterator[str]:
    """Where a schema admits anything at all."""
    if isinstance(schema, list):
        for place, part in enumerate(schema):
            yield from untyped(part, f"{path}[{place}]")
    if not isinstance(schema, dict):
        return
    kinds = {"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const"}
    is_schema = path.endswith(("/schema", "/items", "/additionalProperties"))
    if (is_schema or path.rpartition("/")[0].endswith("/properties")) and not kinds & schema.keys():
        yield path
    if schema.get("type") == "object" and not ({"properties", "additionalProperties", "$ref"} & schema.keys()):
        yield path
    if schema.get("type") == "array" and "items" not in schema and "prefixItems" not in schema:
        yield path
    for name, part in schema.items():
        yield from untyped(part, f"{path}/{name}")


def test_no_schema_is_untyped() -> None:
    made = document(OPERATIONS)
    assert list(untyped(made["components"]["schemas"])) == []
    assert list(untyped(made["paths"])) == []
    closed = [
        name
        for name, schema in made["components"]["schemas"].items()
        if name.endswith("Body") and schema.get("additionalProperties") is not False
    ]
    assert closed == []


def test_every_call_of_the_issue_is_there() -> None:
    wanted = {
        "POST /training/start",
        "POST /training/stop",
        "GET /training/status",
        "GET /runs",
        "GET /runs/{run_id}",
        "GET /runs/{run_id}/metrics",
        "GET /windows",
        "GET /patterns",
        "GET /releases",
        "POST /releases/{release}/promote",
        "POST /releases/{release}/rollback",
        "POST /releases/{release}/canary",
        "POST /rewards/calculate",
        "GET /rewards/history",
        "POST /advice",
        "POST /advice/{advice_id}/outcome",
        "POST /ingest/trajectories",
        "POST /ingest/facts",
        "DELETE /agents/{agent_id}",
        "GET /events",
    }
    assert wanted <= {f"{one.method} {one.path}" for one in OPERATIONS}


def test_no_request_breaks_the_contract(console_url: str) -> None:
    headers = {"Authorization": f"Bearer {FULL}"}
    schema = schemathesis.openapi.from_url(f"{console_url}/openapi.json", headers=headers)
    asked, faults = set[str](), dict[str, str]()
    limits = settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path == "/events":
            continue  # a stream does not end; its own tests read it

        def call(case: Any) -> None:
            case.call_and_validate(headers=headers)

        asked.add(operation.label)
        try:
            limits(given(case=operation.as_strategy())(call))()
        except BaseExceptionGroup as group:
            faults[operation.label] = str(group.message)
    assert not faults, "\n\n".join(f"{name}: {said}" for name, said in faults.items())
    assert len(asked) == len(OPERATIONS) - 1
