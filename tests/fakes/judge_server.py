"""An OpenAI-compatible chat completions endpoint on a local port that judges, or misbehaves, on request.

It speaks real HTTP/1.1 on a real socket in a thread of its own, so any client and any subprocess can use it.
``script`` answers the first calls, ``otherwise`` all later ones; a behaviour is any function from a request
to a response. The default is ``honest``: it reads the prompt and scores what it finds there.

    with JudgeServer(script=[busy(), reversed_order()]) as server:
        ...  # base_url=server.base_url
    assert len(server.requests) == 3
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

_TRAJECTORY = re.compile(r'<trajectory id="([^"]+)">\n(.*)\n</trajectory>')
_TRUTH = re.compile(r"<ground_truth[^>]*>\n(.*)\n</ground_truth>")


@dataclass(frozen=True, slots=True)
class Shown:
    """One trajectory as the judge was shown it."""

    id: str
    content: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Request:
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def user(self) -> str:
        return str(self.body["messages"][-1]["content"])

    @property
    def shown(self) -> list[Shown]:
        """The trajectories in the order shown."""
        return [Shown(id_, json.loads(content)) for id_, content in _TRAJECTORY.findall(self.user)]

    @property
    def ground_truth(self) -> dict[str, Any]:
        match = _TRUTH.search(self.user)
        return dict(json.loads(match[1])) if match else {}

    @property
    def is_blind(self) -> bool:
        """Whether the outcome is not told: the first of two passes."""
        return "<ground_truth" not in self.user

    @property
    def asks_correction(self) -> bool:
        """Whether it is the second of two passes."""
        return '"correction"' in str(self.body["messages"][0]["content"])

    @property
    def asks_steps(self) -> bool:
        """Whether the decisions are to be scored by themselves."""
        return '"steps": [{"step"' in str(self.body["messages"][0]["content"])

    @property
    def format(self) -> str:
        return str(self.body.get("response_format", {}).get("type", "text"))


@dataclass(frozen=True, slots=True)
class Response:
    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    drop: bool = False
    """Close the connection without an answer."""


Behaviour = Callable[[Request], Response]
Scorer = Callable[[Request], dict[str, float]]
StepScorer = Callable[[Request], dict[str, Any]]
"""By trajectory, what stands under ``steps``."""


# What it can answer


def by_profit(request: Request) -> dict[str, float]:
    """0 where nothing valid was decided; else by the profit that the results add up to, whatever the order."""
    return {shown.id: score_of(shown.content) for shown in request.shown}


def score_of(content: dict[str, Any]) -> float:
    steps = content["steps"]
    if steps and all("failed" in step for step in steps):
        return 0.0
    share = profit_share(content)
    return 0.5 if share is None else round(0.25 + 0.75 / (1 + math.exp(-10 * share)), 4)


def by_result(request: Request) -> dict[str, Any]:
    """Each numbered step by its own result: 0 if it failed, 0.9 if it won, 0.1 if it lost; none for a single one."""
    return {
        shown.id: [{"step": step["step"], "score": score_of_step(step)} for step in shown.content["steps"]]
        if len(shown.content["steps"]) > 1
        else []
        for shown in request.shown
    }


def score_of_step(step: Mapping[str, Any]) -> float:
    if "failed" in step:
        return 0.0
    gains = re.findall(r"came to ([+-][\d.]+)%", str(step.get("result", "")))
    return 0.5 if not gains else 0.9 if float(gains[0]) > 0 else 0.1


def profit_share(content: Mapping[str, Any]) -> float | None:
    """The profit on the balance that the result tells; what the agent claims counts for nothing."""
    result = content.get("result", {})
    if "profit_percent_of_balance" in result:
        return float(result["profit_percent_of_balance"]) / 100
    profit, balance = result.get("profit_in_this_window"), content["claimed"].get("starting_balance")
    return profit / balance if isinstance(profit, (int, float)) and balance else None


def completion(text: str | None, *, finish_reason: str = "stop", refusal: str | None = None, **more: Any) -> Response:
    message = {"role": "assistant", "content": text, "refusal": refusal}
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": "judge",
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100},
    }
    return Response(body=body | more)


def entries(
    scores: dict[str, float],
    corrections: Mapping[str, float] | None = None,
    steps: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    return [
        {"trajectory_id": id_, "explanation": f"It earned {score}.", "score": score}
        | ({} if corrections is None else {"correction": corrections[id_]})
        | ({} if steps is None else {"steps": steps[id_]})
        for id_, score in scores.items()
    ]


def scored(
    scores: dict[str, float],
    corrections: Mapping[str, float] | None = None,
    steps: Mapping[str, Any] | None = None,
) -> Response:
    return completion(json.dumps({"scores": entries(scores, corrections, steps)}))


def honest(
    scorer: Scorer = by_profit,
    delay: float = 0.0,
    corrector: Scorer | None = None,
    step_scorer: StepScorer = by_result,
) -> Behaviour:
    """``corrector`` says what hindsight shows about the reasons, in the second of two passes; ``step_scorer`` what each
    decision is worth, if that is asked."""

    def behave(request: Request) -> Response:
        corrections = corrector(request) if corrector is not None and request.asks_correction else None
        steps = step_scorer(request) if request.asks_steps else None
        response = scored(scorer(request), corrections, steps)
        return Response(response.status, response.body, delay=delay)

    return behave


def reversed_order(scorer: Scorer = by_profit) -> Behaviour:
    return lambda request: scored(dict(reversed(scorer(request).items())))


def altered(change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> Behaviour:
    """An honest reply whose entries were changed."""
    return lambda request: completion(json.dumps({"scores": change(entries(by_profit(request)))}))


def one_missing() -> Behaviour:
    return altered(lambda found: found[:-1])


def one_too_many() -> Behaviour:
    return altered(lambda found: [*found, {**found[0], "trajectory_id": "extra"}])


def unknown_id() -> Behaviour:
    return altered(lambda found: [{**found[0], "trajectory_id": "nobody"}, *found[1:]])


def repeated_id() -> Behaviour:
    return altered(lambda found: [found[0], *found[:-1]])


def score(value: Any) -> Behaviour:
    return altered(lambda found: [{**found[0], "score": value}, *found[1:]])


def refusal() -> Behaviour:
    return lambda _: completion(None, refusal="I cannot help with that.")


def cut_off() -> Behaviour:
    """Cut in the middle of the reply."""

    def behave(request: Request) -> Response:
        text = str(scored(by_profit(request)).body["choices"][0]["message"]["content"])
        return completion(text[: len(text) // 2], finish_reason="length")

    return behave


def wrapped(before: str, after: str) -> Behaviour:
    def behave(request: Request) -> Response:
        text = str(scored(by_profit(request)).body["choices"][0]["message"]["content"])
        return completion(f"{before}{text}{after}")

    return behave


def fenced() -> Behaviour:
    return wrapped("```json\n", "\n```")


def prose() -> Behaviour:
    return wrapped("Let me weigh {them} first.\n\n", "\n\nI hope this helps {you}.")


def says(text: str) -> Behaviour:
    return lambda _: completion(text)


def with_usage(usage: Any, *, saying: str = "") -> Behaviour:
    """Judges honestly, with ``saying`` before the scores, and says this of the tokens it used."""

    def behave(request: Request) -> Response:
        scores = json.dumps({"scores": entries(by_profit(request))})
        return completion(f"{saying}{scores}", usage=usage)

    return behave


def understands(*formats: str) -> Behaviour:
    """Takes only these response formats (``json_schema``, ``json_object``, ``text``), others are a 400."""

    def behave(request: Request) -> Response:
        if request.format in formats:
            return honest()(request)
        return error(400, f"response_format type {request.format} is not supported", code="invalid_request_error")(
            request
        )

    return behave


def wants_old_limit_name() -> Behaviour:
    def behave(request: Request) -> Response:
        if "max_completion_tokens" in request.body:
            return error(400, "Unrecognized request argument supplied: max_completion_tokens")(request)
        return honest()(request)

    return behave


def error(status: int, message: str, code: str | None = None, headers: dict[str, str] | None = None) -> Behaviour:
    body = {"error": {"message": message, "type": "error", "code": code}}
    return lambda _: Response(status, body, headers or {})


AZURE_FILTER = {
    "message": "The response was filtered due to the prompt triggering Azure OpenAI's content management policy. "
    "Please modify your prompt and retry. To learn more about our content filtering policies please read our "
    "documentation: https://go.microsoft.com/fwlink/?linkid=2198766",
    "type": None,
    "param": "prompt",
    "code": "content_filter",
    "status": 400,
    "innererror": {
        "code": "ResponsibleAIPolicyViolation",
        "content_filter_result": {"violence": {"filtered": True, "severity": "medium"}},
    },
}
OPENAI_FILTER = {
    "message": "Invalid prompt: your prompt was flagged as potentially violating our usage policy. Please try again "
    "with a different prompt: https://platform.openai.com/docs/guides/reasoning#advice-on-prompting",
    "type": "invalid_request_error",
    "param": None,
    "code": "invalid_prompt",
}
OPENROUTER_FILTER = {
    "code": 403,
    "message": "Your chosen model requires moderation and your input was flagged",
    "metadata": {"reasons": ["violence"], "flagged_input": "...", "provider_name": "OpenAI", "model_slug": "judge"},
}
OPENAI_CONTEXT = {
    "message": "This model's maximum context length is 8192 tokens. However, your messages resulted in 20000 tokens.",
    "type": "invalid_request_error",
    "param": "messages",
    "code": "context_length_exceeded",
}
FILTERS: dict[str, Response] = {
    "Azure, 400": Response(400, {"error": AZURE_FILTER}),
    "OpenAI, 400": Response(400, {"error": OPENAI_FILTER}),
    "OpenRouter, 403": Response(403, {"error": OPENROUTER_FILTER}),
    "OpenRouter, an error in a 200": Response(200, {"error": OPENROUTER_FILTER}),
    "Azure, finish_reason": completion(None, finish_reason="content_filter"),
    "the refusal field": completion(None, refusal="I'm sorry, but I can't assist with that request."),
    "a refusal in words": completion("I'm sorry, but I can't assist with that request."),
    "a server's 400 without a code": Response(400, {"error": {"message": "unsupported characters in the input"}}),
}
"""Ways in which endpoints refuse a request because of what it says, as their users report them."""


def refuses(word: str, response: Response) -> Behaviour:
    """An honest judge behind a filter: any request with ``word`` in it gets ``response``."""
    return lambda request: response if word in request.user else honest()(request)


def busy(retry_after: float | None = 0.05) -> Behaviour:
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return error(429, "Rate limit reached", headers=headers)


def broken(status: int = 500) -> Behaviour:
    return error(status, "Something went wrong")


def slow(seconds: float) -> Behaviour:
    return honest(delay=seconds)


def dropped() -> Behaviour:
    return lambda _: Response(drop=True)


# The server


class JudgeServer:
    """Runs from ``with`` to its end. ``requests`` holds every request that came, in order.

    ``at`` is a bound socket, which refuses connections until then: nobody else can have its port meanwhile.
    """

    def __init__(
        self, script: Sequence[Behaviour] = (), otherwise: Behaviour | None = None, at: socket.socket | None = None
    ) -> None:
        self.script = list(script)
        self.otherwise = otherwise or honest()
        self.requests: list[Request] = []
        self.most_at_once = 0
        self.does_one_thing = False
        """Whether it answers nothing else while it judges."""
        self.was_probed = threading.Event()
        self.is_silent = threading.Event()
        """Set: it takes everything and answers nothing."""
        self._at_once = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="judge server", daemon=True)
        self._ready = threading.Event()
        self._open: set[asyncio.Task[None]] = set()
        self.port = 0 if at is None else int(at.getsockname()[1])
        self._at = at

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        where: dict[str, Any] = {"host": "127.0.0.1", "port": 0} if self._at is None else {"sock": self._at}
        server = self._loop.run_until_complete(asyncio.start_server(self._connected, **where, backlog=512))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        for task in list(self._open):
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*self._open, return_exceptions=True))
        self._loop.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            while await self._serve_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
        content = await reader.readexactly(int(headers.get("content-length", 0)))
        method, path, _ = first.split(" ")
        if (method, path) != ("POST", "/v1/chat/completions"):
            while self.does_one_thing and self._at_once:
                await asyncio.sleep(0.01)
            response = Response(404, {"error": {"message": f"no such path: {method} {path}"}})
        else:
            response = await self._answered(Request(headers, json.loads(content)))
        while self.is_silent.is_set():
            await asyncio.sleep(0.05)
        if response.drop:
            writer.transport.abort()
            return False
        payload = json.dumps(response.body).encode()
        extra = "".join(f"{name}: {value}\r\n" for name, value in response.headers.items())
        writer.write(
            f"HTTP/1.1 {response.status} Answer\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(payload)}\r\n{extra}\r\n".encode()
            + payload
        )
        await writer.drain()
        if method == "GET":
            self.was_probed.set()
        return True

    async def _answered(self, request: Request) -> Response:
        self.requests.append(request)
        received = self._loop.time()
        behaviour = self.script.pop(0) if self.script else self.otherwise
        response = behaviour(request)
        self._at_once += 1
        self.most_at_once = max(self.most_at_once, self._at_once)
        try:
            await asyncio.sleep(received + response.delay - self._loop.time())
        finally:
            self._at_once -= 1
        return response


if __name__ == "__main__":
    # ``python tests/fakes/judge_server.py SECONDS``: an honest judge in a process of its own, until stdin closes.
    with JudgeServer(otherwise=honest(delay=float(sys.argv[1]) if len(sys.argv) > 1 else 0.0)) as running:
        sys.stdout.write(running.base_url + "\n")
        sys.stdout.flush()
        sys.stdin.read()
