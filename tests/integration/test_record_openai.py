"""An unmodified OpenAI client, recorded: what the endpoint said is what the step holds."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from data_bridge.lesson_client import Decider, ShownLesson
from data_bridge.models import Action
from data_bridge.record_openai import record_openai
from data_bridge.recording import TrajectoryRecording
from data_bridge.trajectory_rows import TrajectoryRow
from data_bridge.window_ids import start_of

MESSAGES: Any = [{"role": "system", "content": "You trade."}, {"role": "user", "content": "ACME at 100."}]
TOKENS = [("BUY", 11, -0.5), (" ACME", 12, -0.25), ("<eos>", 2, -0.01)]


class Endpoint:
    """Chat completions as vLLM and OpenAI answer them: ``style`` says in which way tokens are told."""

    def __init__(self, style: str = "vllm", says: str = "BUY ACME") -> None:
        self.style = style
        self.says = says
        self.requests: list[dict[str, Any]] = []
        app = Starlette(routes=[Route("/v1/chat/completions", self.answer, methods=["POST"])])
        transport = httpx.ASGITransport(app)
        self.client = AsyncOpenAI(
            base_url="http://endpoint/v1", api_key="none", http_client=httpx.AsyncClient(transport=transport)
        )

    async def answer(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        if body.get("stream"):
            return StreamingResponse(self.events(), media_type="text/event-stream")
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": self.says}}
        return JSONResponse(self.envelope([choice | self.told(TOKENS)], "chat.completion", usage=True))

    async def events(self) -> AsyncIterator[str]:
        for token in TOKENS:
            text = "" if token[0] == "<eos>" else token[0]
            choice = {"index": 0, "finish_reason": None, "delta": {"content": text}} | self.told([token])
            yield f"data: {json.dumps(self.envelope([choice], 'chat.completion.chunk'))}\n\n"
        yield f"data: {json.dumps(self.envelope([], 'chat.completion.chunk', usage=True))}\n\n"
        yield "data: [DONE]\n\n"

    def told(self, tokens: list[tuple[str, int, float]]) -> dict[str, Any]:
        if self.style == "silent":
            return {}
        spelt = self.style == "token_id"
        content = [
            {"token": f"token_id:{id_}" if spelt else text, "logprob": logprob, "top_logprobs": []}
            for text, id_, logprob in tokens
        ]
        ids = {"token_ids": [id_ for _, id_, _ in tokens]} if self.style == "vllm" else {}
        return {"logprobs": {"content": content}, **ids}

    def envelope(self, choices: list[Any], kind: str, *, usage: bool = False) -> dict[str, Any]:
        used = {"prompt_tokens": 20, "completion_tokens": 3, "total_tokens": 23}
        model = "hindsight@step3"
        return {"id": "c", "object": kind, "created": 1, "model": model, "choices": choices} | (
            {"usage": used} if usage else {}
        )


@pytest.fixture
def stored() -> list[TrajectoryRow]:
    return []


@pytest.fixture
def trajectory(stored: list[TrajectoryRow]) -> TrajectoryRecording:
    async def store(row: TrajectoryRow) -> None:
        stored.append(row)

    return TrajectoryRecording(
        store,
        "agent-1",
        started_at=start_of("2026-03-02T10:00"),
        window_id=None,
        window_hours=1,
        scenario_id=None,
        agent_name=None,
        is_training_data=True,
        is_evaluation=False,
    )


async def calls_of(trajectory: TrajectoryRecording, stored: list[TrajectoryRow]) -> list[dict[str, Any]]:
    await trajectory.end_trajectory()
    return [call for step in json.loads(stored[0].steps_json) for call in step["llmCalls"]]


async def ask(client: AsyncOpenAI, trajectory: TrajectoryRecording, **options: Any) -> Any:
    async with trajectory.step({}) as step:
        answer = await client.chat.completions.create(
            model="hindsight", messages=MESSAGES, temperature=0.7, max_tokens=64, **options
        )
        step.complete_step(Action(action_type="BUY", success=True))
    return answer


async def test_a_call_inside_a_step_is_logged_with_tokens_and_logprobs(
    trajectory: TrajectoryRecording, stored: list[TrajectoryRow]
) -> None:
    client = record_openai(Endpoint().client)
    answer = await ask(client, trajectory)
    assert answer.choices[0].message.content == "BUY ACME"
    (call,) = await calls_of(trajectory, stored)
    assert call.pop("latencyMs") > 0
    assert call == {
        "model": "hindsight@step3",
        "systemPrompt": "You trade.",
        "userPrompt": "ACME at 100.",
        "response": "BUY ACME",
        "purpose": "action",
        "temperature": 0.7,
        "maxTokens": 64,
        "promptTokens": 20,
        "completionTokens": 3,
        "completionTokenIds": [11, 12, 2],
        "completionLogprobs": [-0.5, -0.25, -0.01],
        "logprobsTemperature": 1.0,
        "finishReason": "stop",
    }


@pytest.mark.parametrize("style", ["vllm", "token_id"])
@pytest.mark.parametrize("stream", [False, True])
async def test_token_ids_are_found_however_they_are_told(
    trajectory: TrajectoryRecording, stored: list[TrajectoryRow], style: str, stream: bool
) -> None:
    client = record_openai(Endpoint(style).client)
    async with trajectory.step({}) as step:
        answer: Any = await client.chat.completions.create(model="m", messages=MESSAGES, stream=stream)
        if stream:
            assert "".join([c.choices[0].delta.content or "" async for c in answer if c.choices]) == "BUY ACME"
        step.complete_step(Action(action_type="BUY", success=True))
    (call,) = await calls_of(trajectory, stored)
    assert (call["response"], call["completionTokenIds"]) == ("BUY ACME", [11, 12, 2])
    assert call["completionLogprobs"] == [-0.5, -0.25, -0.01]
    assert call["completionTokens"] == 3


@pytest.mark.parametrize("style", ["openai", "silent"])
async def test_an_endpoint_that_gives_no_ids_leaves_them_out(
    trajectory: TrajectoryRecording, stored: list[TrajectoryRow], style: str
) -> None:
    await ask(record_openai(Endpoint(style).client), trajectory)
    (call,) = await calls_of(trajectory, stored)
    assert not {"completionTokenIds", "completionLogprobs", "logprobsTemperature"} & call.keys()


async def test_the_given_client_stays_as_it_is_and_calls_outside_a_step_still_work(
    trajectory: TrajectoryRecording, stored: list[TrajectoryRow]
) -> None:
    endpoint = Endpoint()
    recorded = record_openai(endpoint.client)
    await ask(endpoint.client, trajectory)  # not the recorded one
    answer = await recorded.chat.completions.create(model="m", messages=MESSAGES)
    assert answer.choices[0].message.content == "BUY ACME"
    assert await calls_of(trajectory, stored) == []


async def test_tokens_are_asked_for_only_on_request(trajectory: TrajectoryRecording) -> None:
    endpoint = Endpoint()
    await ask(record_openai(endpoint.client), trajectory)
    await ask(record_openai(endpoint.client, ask_for_tokens=True), trajectory, extra_body={"top_k": 5})
    plain, asked = endpoint.requests
    assert not {"logprobs", "return_token_ids"} & plain.keys()
    assert (asked["logprobs"], asked["return_token_ids"], asked["top_k"]) == (True, True, 5)


async def test_a_conversation_of_several_turns_keeps_its_messages(
    trajectory: TrajectoryRecording, stored: list[TrajectoryRow]
) -> None:
    turns = [*MESSAGES, {"role": "assistant", "content": "Why?"}, {"role": "user", "content": "Decide."}]
    client = record_openai(Endpoint().client)
    async with trajectory.step({}):
        await client.chat.completions.create(model="m", messages=turns)
    (call,) = await calls_of(trajectory, stored)
    assert call["messages"] == turns
    assert call["userPrompt"] == "Decide."


class Decision(BaseModel):
    verb: str


def _create(client: AsyncOpenAI) -> Awaitable[Any]:
    return client.with_options(timeout=60).chat.completions.create(model="m", messages=MESSAGES)


async def _raw(client: AsyncOpenAI) -> Any:
    raw = await client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)
    assert raw.headers["content-type"] == "application/json"
    return raw.parse()


async def _raw_and_never_parsed(client: AsyncOpenAI) -> Any:
    return await client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)


async def _raw_stream(client: AsyncOpenAI) -> Any:
    raw = await client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES, stream=True)
    return [chunk async for chunk in raw.parse()]


async def _streaming_response(client: AsyncOpenAI) -> Any:
    completions = client.chat.completions.with_streaming_response
    async with completions.create(model="m", messages=MESSAGES) as response:
        return await response.parse()


async def _events(client: AsyncOpenAI) -> Any:
    async with client.chat.completions.stream(model="m", messages=MESSAGES) as stream:
        return [event async for event in stream]


@pytest.mark.parametrize("ask", [_create, _raw, _raw_and_never_parsed, _raw_stream, _streaming_response, _events])
async def test_every_way_to_ask_for_a_completion_is_logged_once(
    trajectory: TrajectoryRecording,
    stored: list[TrajectoryRow],
    ask: Callable[[AsyncOpenAI], Awaitable[Any]],
) -> None:
    async with trajectory.step({}):
        assert await ask(record_openai(Endpoint().client))
    (call,) = await calls_of(trajectory, stored)
    assert (call["response"], call["userPrompt"], call["completionTokenIds"]) == (
        "BUY ACME",
        "ACME at 100.",
        [11, 12, 2],
    )


async def test_a_parsed_completion_is_logged_also_if_it_does_not_parse(
    trajectory: TrajectoryRecording, stored: list[TrajectoryRow]
) -> None:
    fits, fits_not = record_openai(Endpoint(says='{"verb":"BUY"}').client), record_openai(Endpoint().client)
    async with trajectory.step({}):
        answer = await fits.chat.completions.parse(model="m", messages=MESSAGES, response_format=Decision)
        assert answer.choices[0].message.parsed == Decision(verb="BUY")
        with pytest.raises(ValidationError):
            await fits_not.beta.chat.completions.parse(model="m", messages=MESSAGES, response_format=Decision)
    assert [call["response"] for call in await calls_of(trajectory, stored)] == ['{"verb":"BUY"}', "BUY ACME"]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_cannot_be_logged_reaches_the_agent_all_the_same(
    trajectory: TrajectoryRecording,
    stored: list[TrajectoryRow],
    caplog: pytest.LogCaptureFixture,
    stream: bool,
) -> None:
    nameless: Any = [{"content": "who says so?"}]
    async with trajectory.step({}):
        client = record_openai(Endpoint().client)
        answer: Any = await client.chat.completions.create(model="m", messages=nameless, stream=stream)
        if stream:
            assert len([chunk async for chunk in answer]) == 4
        else:
            assert answer.choices[0].message.content == "BUY ACME"
    assert await calls_of(trajectory, stored) == []
    assert "could not be recorded" in caplog.text


class Notes:
    """Lessons from a list, known at a time; it remembers who asked."""

    def __init__(self, *known: tuple[datetime, str]) -> None:
        self.known, self.asked = known, list[tuple[str, Decider]]()

    async def look_up(self, context: str, decider: Decider) -> list[ShownLesson]:
        self.asked.append((context, decider))
        return [ShownLesson(text, text) for known_at, text in self.known if known_at <= decider.as_of]


@pytest.mark.parametrize("stream", [False, True])
async def test_lessons_are_in_what_is_sent_and_in_what_is_logged(
    trajectory: TrajectoryRecording, stored: list[TrajectoryRow], stream: bool
) -> None:
    at = start_of("2026-03-02T10:00") + timedelta(minutes=5)
    notes, endpoint = Notes((at, "Sell: on strikes"), (at + timedelta(seconds=1), "Too: late")), Endpoint()
    client = record_openai(endpoint.client, lessons=notes)
    async with trajectory.step({"role": "maker"}, at=at) as step:
        answer: Any = await client.chat.completions.create(model="hindsight", messages=MESSAGES, stream=stream)
        if stream:
            async for _ in answer:
                pass
        step.complete_step(Action(action_type="BUY", success=True))

    system = "You trade.\n\nNotes from earlier hours:\n- Sell: on strikes"
    assert endpoint.requests[0]["messages"] == [{"role": "system", "content": system}, MESSAGES[1]]
    assert notes.asked == [("ACME at 100.", Decider("agent-1", at, "maker"))]
    (call,) = await calls_of(trajectory, stored)
    assert (call["systemPrompt"], call["userPrompt"]) == (system, "ACME at 100.")


async def test_a_lookup_that_fails_costs_the_lessons_alone(
    trajectory: TrajectoryRecording, stored: list[TrajectoryRow], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Notes):
        async def look_up(self, context: str, decider: Decider) -> list[ShownLesson]:
            raise RuntimeError("no index")

    client = record_openai(Endpoint().client, lessons=Broken())
    assert (await ask(client, trajectory)).choices[0].message.content == "BUY ACME"
    (call,) = await calls_of(trajectory, stored)
    assert call["systemPrompt"] == "You trade."
    assert "lessons could not be put into a chat completion" in caplog.text


async def test_lessons_leave_everything_else_of_a_request_as_the_agent_gave_it(trajectory: TrajectoryRecording) -> None:
    notes, endpoint = Notes((start_of("2026-03-02T10:00"), "Sell: on strikes")), Endpoint()
    client = record_openai(endpoint.client, lessons=notes)
    parts = {"role": "user", "content": [{"type": "text", "text": "ACME at 100."}], "name": "exchange"}
    async with trajectory.step({}) as step:
        await client.chat.completions.create(model="hindsight", messages=[parts], user="agent-1")  # type: ignore[list-item]
        step.complete_step(Action(action_type="BUY", success=True))
    (sent,) = endpoint.requests
    assert sent["messages"][1] == parts
    assert sent["messages"][0]["role"] == "system"
    assert sent["user"] == "agent-1"
