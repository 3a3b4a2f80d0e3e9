"""Lessons for agents of a Python game, over HTTP from the console's API.

    lessons = LessonsEndpoint("http://127.0.0.1:8800", key)
    client = record_openai(AsyncOpenAI(), lessons=lessons)

Which and how many is part of what was promoted: each agent is told its own policy, a canary's the canary's. A policy of
one's own is for trials.

Looking up is never a reason to miss a decision: without an answer in time there are no lessons, which is counted. Which
lessons are shown must not depend on the future: every call says as of when, in the game's clock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Protocol, Self

import httpx

from data_bridge.lesson_prompts import LessonsPolicy, policy_named, with_lessons
from data_bridge.models import ChatMessage, NotText

logger = logging.getLogger(__name__)

_MEMORY = "/api/v1/memory"
_LONGEST_CONTEXT = 4_000
"""Characters; the end is what an agent sees last."""


@dataclass(frozen=True, slots=True)
class ShownLesson:
    lesson_id: str
    text: str
    wording: str = "notes"
    """How the block begins that it is put into; see ``lesson_prompts``."""


@dataclass(frozen=True, slots=True)
class Decider:
    """Who decides, and when in the game's clock."""

    agent_id: str
    as_of: datetime
    role: str | None = None


class LessonLookup(Protocol):
    """Anything that finds lessons for a decision."""

    async def look_up(self, context: str, decider: Decider) -> Sequence[ShownLesson]:
        """The lessons to show, best first: known by then, and none if they cannot be had now."""
        ...


class LessonsEndpoint:
    """The console's API. One for all agents of a process."""

    def __init__(
        self,
        base_url: str,
        key: str | None = None,
        *,
        policy: LessonsPolicy | None = None,
        timeout: float = 0.5,
        refresh: float = 60.0,
    ) -> None:
        """``key`` is sent as a bearer; ``timeout``, in seconds, is what a decision may wait.

        Without a ``policy`` each agent has that of the release it was given, asked for again after ``refresh`` seconds.
        """
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._client = httpx.AsyncClient(base_url=base_url, headers=headers, timeout=timeout)
        self._own, self._refresh = policy, refresh
        self._promoted: dict[str, tuple[float, LessonsPolicy | None]] = {}
        self.asked = 0
        self.missed = 0
        """Decisions without lessons because there was no answer."""

    async def look_up(self, context: str, decider: Decider) -> Sequence[ShownLesson]:
        if decider.as_of.tzinfo is None:
            raise ValueError(f"{decider.as_of} has no time zone: pass an aware moment of the game's clock.")
        asked = context.replace("\x00", " ")[-_LONGEST_CONTEXT:]
        if not asked.strip():
            return []
        self.asked += 1
        try:
            policy = self._own or await self._promoted_to(decider.agent_id)
            return [] if policy is None else await self._retrieve(asked, decider, policy)
        except (httpx.HTTPError, ValueError, TypeError, KeyError) as error:
            self.missed += 1
            if self.missed == 1:
                logger.warning("no lessons from %s (%s): agents decide without", _MEMORY, type(error).__name__)
            return []

    async def _retrieve(self, context: str, decider: Decider, policy: LessonsPolicy) -> list[ShownLesson]:
        body: dict[str, Any] = {
            "context": context,
            "k": policy.number,
            "memory_types": list(policy.kinds),
            "agent_id": decider.agent_id,
            "as_of": decider.as_of.isoformat(),
        }
        if decider.role is not None:
            body["role"] = decider.role
        answer = await self._client.post(f"{_MEMORY}/retrieve", json=body)
        answer.raise_for_status()
        return [
            ShownLesson(str(item["id"]), f"{item['title']}: {item['content']}", policy.wording)
            for item in answer.json()["items"][: policy.number]
        ]

    async def _promoted_to(self, agent_id: str) -> LessonsPolicy | None:
        """The policy of the release that the agent was given, a little old at most; None: no lessons."""
        until, policy = self._promoted.get(agent_id, (0.0, None))
        if time.monotonic() >= until:
            answer = await self._client.get(f"{_MEMORY}/policy", params={"agent_id": agent_id})
            answer.raise_for_status()
            policy = policy_named(answer.json()["lessons_policy"])
            self._promoted[agent_id] = (time.monotonic() + self._refresh, policy)
        return policy

    async def close(self) -> None:
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def context_of(messages: Sequence[ChatMessage]) -> str:
    """What an agent looks lessons up by: the last message that it was sent."""
    for message in reversed(messages):
        try:
            if message.role == "user" and (text := message.text()):
                return text
        except NotText:
            continue
    return ""


async def put_lessons(
    messages: Sequence[ChatMessage], lookup: LessonLookup, decider: Decider
) -> tuple[list[ChatMessage], list[ShownLesson]]:
    """``messages`` with the lessons for their decision, and which they are."""
    found = list(await lookup.look_up(context_of(messages), decider))
    wording = found[0].wording if found else ""
    return with_lessons(messages, [one.text for one in found], wording), found
