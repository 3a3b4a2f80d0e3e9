"""Prompts for agents of a Python game, over HTTP from the console's API.

    prompts = PromptsEndpoint("http://127.0.0.1:8899", key)
    loop = AgentLoop(recorder, prompt=ReleasedPrompting(prompts, own=my_prompt), act=...)

Which prompt an agent of a role uses is part of what was promoted; a canary's agents are told the canary's. A server
that is away is never a reason to miss a decision: then the prompt known before stays, or the game's own is used.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx

from data_bridge.agent_loop import AgentPrompt, Prompting, Seen
from data_bridge.agent_prompts import AgentTemplate, TemplateExample
from data_bridge.models import ChatMessage

logger = logging.getLogger(__name__)

_CURRENT = "/api/v1/prompts/current"


@dataclass(frozen=True, slots=True)
class FetchedPrompt:
    """A prompt of ours, and the prompt version of the release that gives it."""

    template: AgentTemplate
    prompt_version: str


class PromptsEndpoint:
    """The console's API. One for all agents of a process."""

    def __init__(self, base_url: str, key: str | None = None, *, timeout: float = 0.5, refresh: float = 60.0) -> None:
        """``timeout``, in seconds, is what a decision may wait; a prompt is asked for again after ``refresh``."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        self._client = httpx.AsyncClient(base_url=base_url, headers=headers, timeout=timeout)
        self._refresh = refresh
        self._known: dict[tuple[str, str], tuple[float, FetchedPrompt | None]] = {}
        self.missed = 0
        """Times that there was no answer."""

    async def current(self, agent_id: str, role: str = "") -> FetchedPrompt | None:
        """The prompt for a decision; None: the game's own is to be used."""
        until, known = self._known.get((agent_id, role), (0.0, None))
        if time.monotonic() < until:
            return known
        try:
            answer = await self._client.get(_CURRENT, params={"agent_id": agent_id, "role": role})
            answer.raise_for_status()
            known = _prompt(answer.json())
        except (httpx.HTTPError, ValueError, TypeError, KeyError) as error:
            self.missed += 1
            if self.missed == 1:
                logger.warning("no prompt from %s (%s): agents keep what they have", _CURRENT, type(error).__name__)
        self._known[agent_id, role] = (time.monotonic() + self._refresh, known)
        return known

    async def close(self) -> None:
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _prompt(answer: Any) -> FetchedPrompt | None:
    if not answer["prompt_id"]:
        return None
    examples = tuple(TemplateExample(str(one["user"]), str(one["assistant"])) for one in answer["examples"])
    variables = tuple(map(str, answer["variables"]))
    template = AgentTemplate(str(answer["prompt_id"]), str(answer["system"]), examples, variables)
    return FetchedPrompt(template, str(answer["prompt_version"]))


def _no_values(seen: Seen) -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class ReleasedPrompting:
    """The released prompt of an agent's role in the agent loop; the game's ``own`` where none was released."""

    prompts: PromptsEndpoint
    own: Prompting
    values: Callable[[Seen], Mapping[str, str]] = _no_values
    """What the game fills into the prompt's variables."""

    async def prompt(self, agent_id: str, seen: Seen) -> AgentPrompt:
        found = await self.prompts.current(agent_id, str(seen.state.get("role") or ""))
        if found is None:
            return await self.own.prompt(agent_id, seen)
        messages = [*found.template.messages(self.values(seen)), ChatMessage(role="user", content=seen.text)]
        return AgentPrompt(messages, found.prompt_version)
