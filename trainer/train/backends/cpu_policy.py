"""The policy on the CPU: a frozen base model in fp32, a LoRA adapter, its optimizer; and log-probabilities from it.

Many replies share one packed sequence (see ``cpu_packing``); the output layer, the widest product of a small
model, is computed for reply tokens only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint as recomputed

from data_bridge.art_converter import Scored, ScoreRequest
from data_bridge.errors import BackendError
from trainer.inference.base_model import end_tokens, load_base, load_tokenizer, prompt_tokens
from trainer.train.backends.cpu_attention import Layout, register
from trainer.train.backends.cpu_lora import fuse

if TYPE_CHECKING:
    from torch import Tensor

_RECOMPUTE_ABOVE = 1024
"""Longer sequences keep only the layers' inputs and compute the rest again on the way back: memory stays flat."""
_LOGITS_AT_ONCE = 512
_ADAPTER = "adapter_model.safetensors"
_OPTIMIZER = "optimizer.safetensors"


@dataclass(frozen=True, slots=True)
class Likelihoods:
    """Of the chosen tokens, in order: log-probability and entropy of the distribution they were drawn from."""

    logprobs: Tensor
    entropies: Tensor
    hidden: Tensor
    """What the output layer reads, without gradients: enough to compare whole distributions afterwards."""


class Policy:
    """For one thread. ``base`` is a model directory."""

    def __init__(self, base: Path, *, rank: int, learning_rate: float, seed: int) -> None:
        from peft import LoraConfig, get_peft_model

        self.tokenizer = load_tokenizer(base)
        model = load_base(base, attention=register())
        self.config = model.config
        self.context = int(model.config.max_position_embeddings)
        self._end = min(end_tokens(model, self.tokenizer) & {self.tokenizer.eos_token_id} or {2})
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self._model = get_peft_model(
                model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
            )
        fuse(self._model)
        self._causal = self._model.get_base_model()
        self.learns_entropy = False
        """Whether entropies carry gradients: that costs another pass over the vocabulary."""
        self._fresh = {name: value.detach().clone() for name, value in self._trained()}
        self.optimizer = self._new_optimizer(learning_rate)

    def reset(self) -> None:
        """Back to step 0: the untrained adapter, the same as a new ``Policy`` has."""
        with torch.no_grad():
            for name, parameter in self._trained():
                parameter.copy_(self._fresh[name])
        self.optimizer = self._new_optimizer(self.optimizer.param_groups[0]["lr"])

    def parameters(self) -> list[Any]:
        return [parameter for _, parameter in self._trained()]

    def likelihoods(self, tokens: Tensor, positions: Tensor, layout: Layout, targets: Tensor) -> Likelihoods:
        """Of ``tokens[targets]``, each predicted from the place before it."""
        hidden = self._hidden(tokens, positions, layout)[0, targets - 1]
        wanted = tokens[0, targets]
        parts = [
            self._head(hidden[start : start + _LOGITS_AT_ONCE], wanted[start : start + _LOGITS_AT_ONCE])
            for start in range(0, len(targets), _LOGITS_AT_ONCE)
        ]
        logprobs, entropies = (torch.cat(column) for column in zip(*parts, strict=True))
        return Likelihoods(logprobs, entropies, hidden.detach())

    @torch.no_grad()
    def divergence(self, own: Likelihoods, other: Likelihoods) -> Tensor:
        """KL(own || other) of every token's whole distribution: exact, so one unlikely token cannot blow it up."""
        head = self._causal.get_output_embeddings()
        parts = []
        for start in range(0, len(own.hidden), _LOGITS_AT_ONCE):
            ours = torch.log_softmax(head(own.hidden[start : start + _LOGITS_AT_ONCE]), dim=-1)
            theirs = torch.log_softmax(head(other.hidden[start : start + _LOGITS_AT_ONCE]), dim=-1)
            parts.append((ours.exp() * (ours - theirs)).sum(dim=-1))
        return torch.cat(parts)

    def as_base(self) -> Any:
        """A context in which the adapter is off."""
        return self._model.disable_adapter()

    @torch.no_grad()
    def score(self, requests: Sequence[ScoreRequest]) -> list[Scored | None]:
        """Log-probabilities of logged replies; replies to the same prompt are computed together."""
        scored: list[Scored | None] = [None] * len(requests)
        by_prompt: dict[tuple[int, ...], list[tuple[int, tuple[int, ...]]]] = {}
        for index, request in enumerate(requests):
            reply = self._reply_tokens(request)
            prompt = prompt_tokens(self.tokenizer, request.messages)
            if reply and len(prompt) + len(reply) <= self.context:
                by_prompt.setdefault(prompt, []).append((index, reply))
        for prompt, replies in by_prompt.items():
            for start in range(0, len(replies), 16):
                part = replies[start : start + 16]
                logprobs = self._score_prompt(prompt, [reply for _, reply in part])
                for (index, reply), values in zip(part, logprobs, strict=True):
                    scored[index] = Scored(reply, values)
        return scored

    def save(self, directory: Path) -> None:
        """Adapter and optimizer as safetensors. Written by us, so that a full disk is an OSError that says so."""
        from peft import get_peft_model_state_dict
        from safetensors.torch import save as as_bytes

        self._model.peft_config["default"].save_pretrained(str(directory))
        adapter = {name: value.contiguous() for name, value in get_peft_model_state_dict(self._model).items()}
        (directory / _ADAPTER).write_bytes(as_bytes(adapter))
        state: dict[str, Tensor] = {}
        for name, parameter in self._trained():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                state[f"{name}/{key}"] = value
        (directory / _OPTIMIZER).write_bytes(as_bytes(state))

    def load(self, directory: Path) -> None:
        """The adapter and the optimizer of a checkpoint, exactly. BackendError if it is of another shape."""
        from peft import set_peft_model_state_dict
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            result = set_peft_model_state_dict(self._model, load_file(directory / _ADAPTER))
            state = load_file(directory / _OPTIMIZER)
        except (OSError, SafetensorError, RuntimeError) as error:
            raise BackendError(
                f"The checkpoint {directory} does not fit this model: use the --base-model and --lora-rank it was "
                "trained with, or another --model name."
            ) from error
        if result.unexpected_keys:
            raise BackendError(f"The checkpoint {directory} belongs to another base model: use another --model name.")
        self.optimizer = self._new_optimizer(self.optimizer.param_groups[0]["lr"])
        for name, parameter in self._trained():
            keys = {key.rsplit("/", 1)[1]: value for key, value in state.items() if key.rsplit("/", 1)[0] == name}
            if keys:
                self.optimizer.state[parameter] = keys

    def _trained(self) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in self._model.named_parameters() if value.requires_grad]

    def _new_optimizer(self, learning_rate: float) -> torch.optim.AdamW:
        return torch.optim.AdamW(self.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0.0)

    def _hidden(self, tokens: Tensor, positions: Tensor, layout: Layout) -> Tensor:
        recompute = torch.is_grad_enabled() and tokens.shape[1] > _RECOMPUTE_ABOVE
        if recompute:
            self._causal.gradient_checkpointing_enable({"use_reentrant": False})
            self._causal.train()
        try:
            output = self._causal.base_model(input_ids=tokens, position_ids=positions, use_cache=False, layout=layout)
        finally:
            if recompute:
                self._causal.eval()
        hidden: Tensor = output.last_hidden_state
        return hidden

    def _head(self, hidden: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        if torch.is_grad_enabled() and hidden.shape[0] == _LOGITS_AT_ONCE:
            result: tuple[Tensor, Tensor] = recomputed(self._read_out, hidden, wanted, use_reentrant=False)
            return result
        return self._read_out(hidden, wanted)

    def _read_out(self, hidden: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        logprobs = torch.log_softmax(self._causal.get_output_embeddings()(hidden), dim=-1)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.learns_entropy):
            entropies = -(logprobs.exp() * logprobs).sum(dim=-1)
        return logprobs.gather(1, wanted[:, None])[:, 0], entropies

    def _reply_tokens(self, request: ScoreRequest) -> tuple[int, ...]:
        """The reply as tokens, the end included; empty if it cannot be written as this model's tokens."""
        if request.token_ids:
            return request.token_ids
        if request.tool_calls:
            return ()  # which tokens made the call is known only to the model that wrote it
        text = tuple(self.tokenizer.encode(request.text, add_special_tokens=False))
        return (*text, self._end) if request.is_complete else text

    def _score_prompt(self, prompt: tuple[int, ...], replies: list[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """One packed sequence: the prompt but for its last token, then that token and the reply, for each reply."""
        shared = len(prompt) - 1
        tokens, positions, groups = list(prompt[:-1]), list(range(shared)), [0] * shared
        targets: list[int] = []
        for number, reply in enumerate(replies, start=1):
            targets.extend(range(len(tokens) + 1, len(tokens) + 1 + len(reply)))
            tokens += [prompt[-1], *reply]
            positions += range(shared, shared + 1 + len(reply))
            groups += [number] * (1 + len(reply))
        group_ids = torch.tensor([groups])
        likelihoods = self.likelihoods(
            torch.tensor([tokens]),
            torch.tensor([positions]),
            Layout(group_ids, torch.zeros_like(group_ids)),
            torch.tensor(targets),
        )
        values = likelihoods.logprobs.split_with_sizes([len(reply) for reply in replies])
        return [tuple(part.tolist()) for part in values]
