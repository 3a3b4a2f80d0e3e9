"""What the engine's thread does: makes waves of requests, steps them in turn, hands replies back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from data_bridge.errors import BackendError, HindsightError
from trainer.inference.adapters import Adapters
from trainer.inference.loading import end_tokens, load_base, load_tokenizer, prompt_tokens
from trainer.inference.prompt_reader import PromptReader
from trainer.inference.sampling import random_source
from trainer.inference.shared_prefix import register
from trainer.inference.wave import LoadedModel, Reply, Wave
from trainer.types import Completion

if TYPE_CHECKING:
    from trainer.inference.engine import _Request


class PromptTooLong(BackendError, ValueError):
    """The request's fault, not the model's."""


class EngineLoop:
    """Everything that touches the model, for the one thread that owns it."""

    def __init__(self, base: Path, threads: int, merged_checkpoints: int, most_rows: int) -> None:
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
        self._most_rows = most_rows
        self._waves: list[Wave] = []
        self._requests: dict[int, _Request] = {}  # by the identity of each of their replies

    @property
    def is_busy(self) -> bool:
        return bool(self._waves)

    @property
    def waves(self) -> int:
        return len(self._waves)

    def admit(self, requests: Sequence[_Request]) -> None:
        """Start waves for ``requests``, one or more per adapter."""
        by_adapter: dict[Path | None, list[Reply]] = defaultdict(list)
        for request in requests:
            if request.is_cancelled:
                continue
            try:
                request.replies = self._replies(request)
            except Exception as error:  # a broken request is its own caller's, not the others'
                request.finish(error)
                continue
            self._requests.update({id(reply): request for reply in request.replies})
            by_adapter[request.adapter].extend(request.replies)
        for adapter, replies in by_adapter.items():
            for start in range(0, len(replies), self._most_rows):
                self._start(replies[start : start + self._most_rows], adapter)

    @torch.no_grad()
    def step(self) -> None:
        """One token of every reply in every wave."""
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
        """End every request under way with ``error``."""
        for wave in self._waves:
            self._fail(wave.replies, error)
        self._waves.clear()

    @torch.no_grad()
    def _start(self, replies: list[Reply], adapter: Path | None) -> None:
        try:
            self._adapters.use(adapter)
            wave = Wave(replies, adapter, reader=self._reader, model=self._model, text=self._text)
        except Exception as error:
            self._fail(replies, error)
            return
        self._waves.append(wave)

    def _replies(self, request: _Request) -> list[Reply]:
        prompt = prompt_tokens(self._tokenizer, request.messages)
        if len(prompt) + request.most_tokens > self._model.context:
            raise PromptTooLong(
                f"The prompt has {len(prompt)} tokens and the model's context is {self._model.context}: "
                "shorten the prompt or --max-tokens."
            )
        return [
            Reply(
                prompt,
                request.temperature,
                request.most_tokens,
                request.stop,
                random_source(request.seed, sample),
                is_wanted=lambda: not request.is_cancelled,
            )
            for sample in range(request.samples)
        ]

    def _tell(self, wave: Wave) -> None:
        """Pass on what is written so far to those who asked for it."""
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
