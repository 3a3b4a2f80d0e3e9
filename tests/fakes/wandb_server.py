"""W&B's training API as ART's client meets it: a real HTTP server that keeps the wire contract and can be broken.

It is strict where a mistake of ours would be expensive (authorisation, unknown fields, groups without
log-probabilities) and counts the jobs that it took for each batch. Jobs "train" for a while and leave a checkpoint.
A fault is injected per route, for the next requests, and can strike before the request is handled or after.
"""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PAGE = 2  # events and checkpoints come in small pages, so that every test pages

CONFIG_FIELDS = {
    "advantage_balance",
    "epsilon",
    "epsilon_high",
    "importance_sampling_level",
    "kimi_k2_tau",
    "learning_rate",
    "mask_prob_ratio",
    "max_negative_advantage_importance_sampling_weight",
    "ppo",
    "precalculate_logprobs",
    "scale_rewards",
}


@dataclass(frozen=True)
class Fault:
    """What happens to one request instead of a proper answer."""

    status: int | None = None
    """Answer with this status; None drops the connection without an answer."""
    after: bool = False
    """Handle the request first: what it asked for is done, and only the answer is lost."""
    hangs: float = 0.0
    """Seconds of silence before that."""


DROP = Fault()
DROP_AFTER = Fault(after=True)


@dataclass
class Job:
    """One training job. ``ending`` is what its last event will be."""

    id: str
    model_id: str
    batch: str
    body: dict[str, Any]
    ending: str
    ends_at: float
    ended: bool = False
    events: list[dict[str, Any]] = field(default_factory=list)

    @property
    def losses(self) -> tuple[float, ...]:
        """Of its gradient steps, one a sequence."""
        return () if self.ending == "copy" else (0.5, 0.3)


class Refusal(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class WandbServer:
    """The state behind the API. All methods are called under ``lock``."""

    def __init__(self, key: str, training_seconds: float) -> None:
        self.key = key
        self.training_seconds = training_seconds
        self.url = ""
        self.lock = threading.Lock()
        self.models: dict[str, dict[str, Any]] = {}
        self.checkpoints: dict[str, list[dict[str, Any]]] = {}
        self.jobs: list[Job] = []
        self.endings: deque[str] = deque()
        """Of the next jobs: ``checkpoint`` (the default), ``failed``, ``no_checkpoint``, ``never``, or ``copy``:
        nothing was found to train on, and the checkpoint is a copy of the last."""
        self.requests: list[tuple[str, str]] = []
        self.holds: Callable[[str, dict[str, Any]], bool] = lambda route, body: False
        """Whether a request of this route with this body is handled and never answered."""
        self.is_gone = False
        self._ended = threading.Event()
        self._faults: dict[str, deque[Fault]] = {}

    # -- what a test says and asks

    def break_next(self, route: str, *faults: Fault) -> None:
        """The next requests of ``route`` (models, checkpoints, jobs, events, chat) meet these, in order."""
        self._faults.setdefault(route, deque()).extend(faults)

    def jobs_per_batch(self) -> Counter[str]:
        return Counter(job.batch for job in self.jobs)

    def steps(self, model: str = "hindsight") -> list[int]:
        with self.lock:
            self._advance()
            found = [id for id, entry in self.models.items() if entry["name"] == model]
            return [checkpoint["step"] for id in found for checkpoint in self.checkpoints[id]]

    def count(self, method: str, route: str) -> int:
        return self.requests.count((method, route))

    def held(self) -> None:
        """Wait as a request that is not answered: until the server is gone."""
        self._ended.wait()

    def came(self) -> None:
        self.is_gone = False
        self._ended = threading.Event()

    def went(self) -> None:
        self.is_gone = True
        self._ended.set()

    # -- the API

    def next_fault(self, route: str) -> Fault | None:
        waiting = self._faults.get(route)
        return waiting.popleft() if waiting else None

    def register(self, body: dict[str, Any]) -> dict[str, Any]:
        _only(body, {"entity", "project", "name", "base_model", "return_existing"})
        entity = body.get("entity") or "default-entity"
        for entry in self.models.values():
            if (entry["entity"], entry["project"], entry["name"]) == (entity, body["project"], body["name"]):
                if not body.get("return_existing"):
                    raise Refusal(409, "model exists")
                return entry
        entry = {
            "id": f"model-{len(self.models) + 1}",
            "entity": entity,
            "project": body["project"],
            "name": body["name"],
            "base_model": body["base_model"],
            "run_id": f"run-{len(self.models) + 1}",
        }
        self.models[entry["id"]] = entry
        self.checkpoints[entry["id"]] = [{"id": f"{entry['id']}-0", "step": 0, "metrics": {}}]
        return entry

    def submit(self, body: dict[str, Any]) -> dict[str, Any]:
        _only(body, {"model_id", "trajectory_groups", "experimental_config"})
        _only(body["experimental_config"] or {}, CONFIG_FIELDS)
        if body["model_id"] not in self.models:
            raise Refusal(404, "no such model")
        if not any(
            _has_logprobs(trajectory) for group in body["trajectory_groups"] for trajectory in group["trajectories"]
        ):
            raise Refusal(422, "no trainable tokens")
        batch = hashlib.sha256(json.dumps(body["trajectory_groups"], sort_keys=True).encode()).hexdigest()[:12]
        ending = self.endings.popleft() if self.endings else "checkpoint"
        job = Job(
            f"job-{len(self.jobs) + 1}", body["model_id"], batch, body, ending, time.monotonic() + self.training_seconds
        )
        job.events.append({"type": "training_started", "data": {"num_sequences": len(job.losses)}})
        self.jobs.append(job)
        return {"id": job.id}

    def events(self, job_id: str, after: str | None) -> dict[str, Any]:
        self._advance()
        job = next((job for job in self.jobs if job.id == job_id), None)
        if job is None:
            raise Refusal(404, "no such job")
        return _page([{"id": f"{job.id}-{index}", **event} for index, event in enumerate(job.events)], after, PAGE)

    def list_checkpoints(self, model_id: str, query: dict[str, list[str]]) -> dict[str, Any]:
        self._advance()
        if model_id not in self.models:
            raise Refusal(404, "no such model")
        rows = list(self.checkpoints[model_id])
        if query.get("order", ["asc"])[0] == "desc":
            rows.reverse()
        return _page(rows, query.get("after", [None])[0], int(query.get("limit", [str(PAGE)])[0]))

    def delete_checkpoints(self, model_id: str, body: dict[str, Any]) -> dict[str, Any]:
        steps = set(body["steps"])
        kept = [row for row in self.checkpoints[model_id] if row["step"] not in steps]
        deleted = len(self.checkpoints[model_id]) - len(kept)
        self.checkpoints[model_id] = kept
        return {"deleted_count": deleted, "not_found_steps": []}

    def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        self._advance()
        names = {
            f"wandb-artifact:///{entry['entity']}/{entry['project']}/{entry['name']}:step{checkpoint['step']}"
            for id, entry in self.models.items()
            for checkpoint in self.checkpoints[id]
        }
        if body["model"] not in names:
            raise Refusal(404, f"no model {body['model']}")
        token = {"token": "HOLD", "logprob": -0.1, "bytes": None, "top_logprobs": []}
        choice = {
            "index": 0,
            "finish_reason": "stop",
            "message": {"role": "assistant", "content": "HOLD"},
            "logprobs": {"content": [token], "refusal": None} if body.get("logprobs") else None,
        }
        return {
            "id": "chat-1",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{**choice, "index": index} for index in range(body.get("n") or 1)],
        }

    def _advance(self) -> None:
        """Let the jobs whose time has come end, in the order in which they were taken."""
        for job in self.jobs:
            if job.ended or job.ending == "never" or time.monotonic() < job.ends_at:
                continue
            job.ended = True
            if job.ending == "failed":
                job.events.append({"type": "training_failed", "data": {"error_message": "out of memory"}})
                continue
            for loss in job.losses:
                data = {"loss": loss, "entropy": 1.0, "grad_norm": 0.1}
                job.events.append({"type": "gradient_step", "data": data})
            if job.ending in ("checkpoint", "copy"):
                rows = self.checkpoints[job.model_id]
                step = max((row["step"] for row in rows), default=0) + 1
                rows.append({"id": f"{job.model_id}-{step}", "step": step, "metrics": {}})
            job.events.append({"type": "training_ended", "data": {}})


def _only(body: dict[str, Any], known: set[str]) -> None:
    if unknown := set(body) - known:
        raise Refusal(422, f"unknown fields {sorted(unknown)}")


def _has_logprobs(trajectory: dict[str, Any]) -> bool:
    histories = [trajectory, *trajectory["additional_histories"]]
    return any(turn.get("logprobs") for history in histories for turn in history["messages_and_choices"])


def _page(rows: list[dict[str, Any]], after: str | None, limit: int) -> dict[str, Any]:
    start = next((index + 1 for index, row in enumerate(rows) if row["id"] == after), 0) if after else 0
    return {"data": rows[start : start + limit], "has_more": start + limit < len(rows)}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: WandbServer

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def _handle(self) -> None:
        if self.state.is_gone:  # a connection that was kept open
            self.close_connection = True
            return
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        url = urlsplit(self.path)
        route, parts = _route(url.path)
        with self.state.lock:
            self.state.requests.append((self.command, route))
            fault = self.state.next_fault(route)
            status = 0
            answer: dict[str, Any] = {}
            if fault is None or fault.after:
                status, answer = self._answer(route, parts, parse_qs(url.query), json.loads(body) if body else {})
        if self.state.holds(route, json.loads(body) if body else {}):
            self.state.held()
            self.close_connection = True
            return
        if fault is not None and fault.hangs:
            time.sleep(fault.hangs)
        if fault is not None and fault.status is None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        if fault is not None and fault.status is not None:
            status, answer = fault.status, {"error": {"message": f"injected {fault.status}"}}
        payload = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(payload)))
        if fault is not None:
            self.send_header("retry-after-ms", "10")  # so that ART's own three retries do not slow the tests down
        self.end_headers()
        self.wfile.write(payload)

    do_GET = do_POST = do_DELETE = _handle

    def _answer(
        self, route: str, parts: list[str], query: dict[str, list[str]], body: Any
    ) -> tuple[int, dict[str, Any]]:
        state = self.state
        if self.headers.get("authorization") != f"Bearer {state.key}":
            return 401, {"error": {"message": "invalid key"}}
        try:
            match self.command, route:
                case "POST", "models":
                    return 200, state.register(body)
                case "GET", "checkpoints":
                    return 200, state.list_checkpoints(parts[0], query)
                case "DELETE", "checkpoints":
                    return 200, state.delete_checkpoints(parts[0], body)
                case "POST", "jobs":
                    return 200, state.submit(body)
                case "GET", "events":
                    return 200, state.events(parts[0], query.get("after", [None])[0])
                case "POST", "chat":
                    return 200, state.chat(body)
            return 404, {"error": {"message": f"no route {self.command} {self.path}"}}
        except Refusal as refusal:
            return refusal.status, {"error": {"message": str(refusal)}}


def _route(path: str) -> tuple[str, list[str]]:
    match path.removeprefix("/v1").strip("/").split("/"):
        case ["preview", "models"]:
            return "models", []
        case ["preview", "models", model, "checkpoints"]:
            return "checkpoints", [model]
        case ["preview", "training-jobs"]:
            return "jobs", []
        case ["preview", "training-jobs", job, "events"]:
            return "events", [job]
        case ["chat", "completions"]:
            return "chat", []
    return "unknown", []


@contextmanager
def wandb_server(key: str = "test-key-of-wandb", training_seconds: float = 0.05) -> Iterator[WandbServer]:
    """A running server on a free port; ``.url`` is what WANDB_TRAINING_BASE_URL would be."""
    with listening(WandbServer(key, training_seconds)) as state:
        yield state


@contextmanager
def listening(state: WandbServer) -> Iterator[WandbServer]:
    """``state`` behind a port of its own while the block runs: afterwards it is gone, and can be brought back."""
    handler = type("Handler", (_Handler,), {"state": state})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    state.came()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.went()
        server.shutdown()
        server.server_close()
        thread.join()


def silent_from(starts: Callable[[str, Any], bool]) -> Callable[[str, Any], bool]:
    """What a host holds that is silent from the first request on that ``starts`` it."""
    is_silent = threading.Event()

    def holds(route: str, body: Any) -> bool:
        if starts(route, body):
            is_silent.set()
        return is_silent.is_set()

    return holds
