"""What the engine's thread does: queues requests, forms waves of them, steps the waves in turn, returns replies."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from jinja2 import TemplateError

from data_bridge.errors import HindsightError
from trainer.inference.base_model import Adapters, end_tokens, load_base, load_tokenizer, prompt_tokens
from trainer.inference.request import EngineRequest, PromptRefused
from trainer.inference.shared_prefix import PromptReader, register
from trainer.inference.wave import LANE_BYTES, LoadedModel, Reply, Waiting, Wave, cheapest_pair, in_waves, random_source
from trainer.types import Completion

_MAX_WAVES = 2
"""Maximum waves per adapter before they are joined: a large one, and a small one that new replies can join cheaply."""


class EngineLoop:
    """Everything that uses the model, for the one thread that owns it."""

    def __init__(self, base: Path, threads: int, merged_checkpoints: int) -> None:
        if threads:
            torch.set_num_threads(threads)
        self._tokenizer = load_tokenizer(base)
        model = load_base(base, attention=register())
        self._model = LoadedModel(
            decoder=model.base_model,
            head=model.get_output_embeddings(),
            ends=end_tokens(model, self._tokenizer),
            context=int(model.config.max_position_embeddings),
        )
        self._adapters = Adapters(model, keep=merged_checkpoints)
        self._reader = PromptReader(model.base_model)
        self._waiting = Waiting(LANE_BYTES // self._reader.bytes_per_token())
        self._waves: list[Wave] = []
        self._requests: dict[int, EngineRequest] = {}  # by the identity of each of their replies

    @property
    def is_busy(self) -> bool:
        return bool(self._waves or self._waiting)

    def admit(self, requests: Sequence[EngineRequest]) -> None:
        """Queue the replies to ``requests``, and begin as many as there is room for."""
        for request in requests:
            if request.is_cancelled:
                continue
            try:
                request.replies = self._replies(request)
            except Exception as error:  # a broken request fails for its own caller only
                request.finish(error)
                continue
            for reply in request.replies:
                self._requests[id(reply)] = request
                self._waiting.add(reply)
        for reply in self._waiting.remove_unwanted():
            self._requests.pop(id(reply))
        self._begin(self._waiting.take([wave.replies for wave in self._waves]))

    @torch.no_grad()
    def step(self) -> None:
        """Generate one token of every reply in every wave."""
        for wave in list(self._waves):
            try:
                self._adapters.use(wave.adapter)
                ended = wave.step()
            except Exception as error:
                self._waves.remove(wave)
                self._fail(wave.replies, error)
                continue
            self._tell(wave)
            for reply in ended:
                self._finish(reply)
            if wave.is_over:
                self._waves.remove(wave)

    def abandon(self, error: HindsightError) -> None:
        """End every request, running or waiting, with ``error``."""
        self._fail(self._waiting.remove_all(), error)
        for wave in self._waves:
            self._fail(wave.replies, error)
        self._waves.clear()

    def _begin(self, replies: Sequence[Reply]) -> None:
        by_adapter: dict[Path | None, list[Reply]] = defaultdict(list)
        for reply in replies:
            by_adapter[reply.adapter].append(reply)
        for adapter, own in by_adapter.items():
            for together in in_waves(own):
                self._start(together, adapter)
            self._join_waves(adapter)

    @torch.no_grad()
    def _start(self, replies: list[Reply], adapter: Path | None) -> None:
        try:
            self._adapters.use(adapter)
            wave = Wave(replies, adapter, reader=self._reader, model=self._model, text=self._text)
        except Exception as error:
            self._fail(replies, error)
            return
        self._waves.append(wave)

    @torch.no_grad()
    def _join_waves(self, adapter: Path | None) -> None:
        """Join waves of ``adapter`` until they are few: every wave is a pass over all weights for each token."""
        while len(own := [wave for wave in self._waves if wave.adapter == adapter]) > _MAX_WAVES:
            pair = cheapest_pair([wave.replies for wave in own])
            if pair is None:
                return
            first, second = own[pair[0]], own[pair[1]]
            self._waves.remove(second)
            try:
                first.join(second)
            except Exception as error:
                self._waves.remove(first)
                self._fail([*first.replies, *second.replies], error)

    def _replies(self, request: EngineRequest) -> list[Reply]:
        try:
            prompt = prompt_tokens(self._tokenizer, request.messages)
        except TemplateError as error:
            raise PromptRefused(f"The model's chat template does not accept these messages: {error}.") from error
        if len(prompt) + request.max_tokens > self._model.context:
            raise PromptRefused(
                f"The prompt has {len(prompt)} tokens and the model's context is {self._model.context}: "
                "shorten the prompt or lower max_tokens."
            )
        return [
            Reply(
                request.adapter,
                prompt,
                request.temperature,
                request.max_tokens,
                request.stop,
                random_source(request.seed, sample),
                is_wanted=lambda: not request.is_cancelled,
            )
            for sample in range(request.samples)
        ]

    def _tell(self, wave: Wave) -> None:
        """Send the text so far to callers that stream."""
        for reply in wave.replies:
            request = self._requests.get(id(reply))
            if request is not None and request.tell is not None and reply.finish_reason is None:
                number = next(number for number, own in enumerate(request.replies) if own is reply)
                request.tell(number, self._text(reply.token_ids))

    def _finish(self, reply: Reply) -> None:
        request = self._requests.pop(id(reply))
        if request.is_answered and not request.is_cancelled:
            request.finish([self._completion(reply, request.model_name) for reply in request.replies])

    def _fail(self, replies: Sequence[Reply], error: BaseException) -> None:
        for reply in replies:
            reply.finish_reason = "error"
            request = self._requests.pop(id(reply), None)
            if request is not None and not request.is_cancelled:
                request.finish(error)

    def _text(self, token_ids: list[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=True))

    def _completion(self, reply: Reply, model_name: str) -> Completion:
        return Completion(
            text=reply.text,
            token_ids=tuple(reply.token_ids),
            logprobs=tuple(reply.logprobs),
            token_texts=tuple(str(self._tokenizer.decode([token])) for token in reply.token_ids),
            finish_reason=reply.finish_reason or "stop",
            model=model_name,
            prompt_tokens=len(reply.prompt),
        )
