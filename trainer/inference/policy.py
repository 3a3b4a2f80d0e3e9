"""The policy on the CPU: a frozen base model in fp32, a LoRA adapter, its optimizer; and log-probabilities from it.

Many replies share one packed sequence (see ``cpu_step``): a row of clusters, each a prompt followed by the replies
to it. Prompt tokens see the prompt so far, reply tokens the prompt and their own reply; no token sees another cluster
(``layout``). The output layer, the largest product of a small model,
is computed for reply tokens only. The adapter does not change during a step, so base weight and adapter are added once
and used for every sequence; PEFT provides the parameters, the switch to turn the adapter off, and the file format.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint as recomputed

from data_bridge.errors import BackendError
from data_bridge.scoring import Scored, ScoreRequest
from trainer.inference.base_model import end_tokens, load_base, load_tokenizer, prompt_tokens
from trainer.inference.head import chosen_logprobs
from trainer.inference.layout import Layout
from trainer.inference.shared_prefix import (
    Layer,
    Memory,
    PromptMemory,
    Tokens,
    beginning_of,
    register,
    shared_beginning,
)

if TYPE_CHECKING:
    from torch import Tensor

_RECOMPUTE_ABOVE = 1024
"""Longer sequences keep only the layers' inputs and recompute the rest in the backward pass: memory stays flat."""
_LOGITS_AT_ONCE = 128
_BEGINNINGS = 7
"""Beginnings of prompts that are remembered besides the newest: those of two days, for the policy and its base."""
_ADAPTER = "adapter_model.safetensors"
_OPTIMIZER = "optimizer.safetensors"


@dataclass(frozen=True, slots=True)
class Likelihoods:
    """Log-probability and entropy of the chosen tokens, in order."""

    logprobs: Tensor
    entropies: Tensor
    hidden: Tensor
    """The output layer's input, without gradients: enough to compare whole distributions afterwards."""


class CpuPolicy:
    """For one thread. ``base`` is a model directory."""

    def __init__(self, base: Path, *, rank: int, learning_rate: float, seed: int) -> None:
        from peft import LoraConfig, get_peft_model

        self.tokenizer = load_tokenizer(base)
        model = load_base(base, attention=register())
        self.config = model.config
        self.context = int(model.config.max_position_embeddings)
        self._ends = end_tokens(model, self.tokenizer)
        self._end = min(self._ends & {self.tokenizer.eos_token_id} or {2})
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self._model = get_peft_model(
                model, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
            )
        _fuse(self._model)
        self._causal = self._model.get_base_model()
        self._is_base = False
        self._read: dict[tuple[int, Tokens], list[Layer]] = {}
        self.learns_entropy = False
        """Whether entropies have gradients, which costs another pass over the vocabulary."""
        self._fresh = {name: value.detach().clone() for name, value in self._trained()}
        self.optimizer = self._new_optimizer(learning_rate)

    def reset(self) -> None:
        """Back to step 0: the untrained adapter, as in a new ``CpuPolicy``."""
        self._set(self._fresh)
        self.optimizer = self._new_optimizer(self.optimizer.param_groups[0]["lr"])

    def parameters(self) -> list[Any]:
        return [parameter for _, parameter in self._trained()]

    def likelihoods(self, tokens: Tensor, positions: Tensor, layout: Layout, targets: Tensor) -> Likelihoods:
        """The likelihoods of ``tokens[targets]``, each predicted from the position before it."""
        hidden = self._hidden(tokens, positions, layout)[0, targets - 1]
        logprobs, entropies = self._head(hidden, tokens[0, targets])
        return Likelihoods(logprobs, entropies, hidden.detach())

    @torch.no_grad()
    def divergence(self, own: Likelihoods, other: Likelihoods) -> Tensor:
        """KL(own || other) of every token's whole distribution: exact, so one unlikely token cannot inflate it."""
        head = self._causal.get_output_embeddings()
        parts = []
        for start in range(0, len(own.hidden), _LOGITS_AT_ONCE):
            ours = torch.log_softmax(head(own.hidden[start : start + _LOGITS_AT_ONCE]), dim=-1)
            theirs = torch.log_softmax(head(other.hidden[start : start + _LOGITS_AT_ONCE]), dim=-1)
            parts.append((ours.exp() * (ours - theirs)).sum(dim=-1))
        return torch.cat(parts)

    @contextmanager
    def as_base(self) -> Iterator[None]:
        """A context in which the adapter is off."""
        with self._model.disable_adapter():
            self._is_base = True
            try:
                yield
            finally:
                self._is_base = False

    @torch.no_grad()
    def read(self, beginnings: Mapping[int, Tokens]) -> dict[int, list[Layer]]:
        """Keys and values of the tokens that come before each prompt, for a ``Layout``; each text is read once."""
        found: dict[int, list[Layer]] = {}
        for prompt, tokens in beginnings.items():
            key = (-1 if self._is_base else sum(one._version for one in self.parameters()), tokens)
            if key not in self._read:
                memory = PromptMemory([], len(tokens))
                positions = torch.arange(len(tokens))[None]
                self._hidden(torch.tensor([tokens]), positions, memory)
                self._read = dict(list(self._read.items())[-_BEGINNINGS:]) | {key: memory.layers}
            found[prompt] = self._read[key]
        return found

    @contextmanager
    def as_checkpoint(self, directory: Path | None) -> Iterator[None]:
        """A context, for reading only, in which the adapter is that of a checkpoint; None: off."""
        if directory is None:
            with self.as_base():
                yield
            return
        own = {name: value.detach().clone() for name, value in self._trained()}
        try:
            self._load_adapter(directory)
            yield
        finally:
            self._set(own)

    @torch.no_grad()
    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self._causal.get_output_embeddings()(hidden)
        return logits

    @torch.no_grad()
    def score(self, requests: Sequence[ScoreRequest]) -> list[Scored | None]:
        """Log-probabilities of logged replies, unless the log's are also those of this policy.

        Replies to the same prompt go together.
        """
        scored: list[Scored | None] = [None] * len(requests)
        by_prompt: dict[Tokens, list[tuple[int, Scored]]] = {}
        beginnings: dict[Tokens, int] = {}
        known: dict[str, int] = {}
        for index, request in enumerate(requests):
            reply = request.tokens(self.tokenizer, end=self._end, ends=self._ends)
            if reply is None or not reply.token_ids:
                scored[index] = reply
                continue
            prompt = self.prompt_of(request, len(reply.token_ids))
            if prompt is not None and not (reply.logprobs and request.serves_both):
                by_prompt.setdefault(prompt, []).append((index, reply))
                said = [message.as_dict() for message in request.messages]
                beginnings[prompt] = beginning_of(said, prompt, self.tokenizer, known)
            elif prompt is not None:
                scored[index] = reply
        beginnings = _cheapest(beginnings)
        for prompt, replies in by_prompt.items():
            for start in range(0, len(replies), 16):
                part = replies[start : start + 16]
                logprobs = self._score_together(prompt, beginnings[prompt], [reply.token_ids for _, reply in part])
                for (index, reply), values in zip(part, logprobs, strict=True):
                    scored[index] = Scored(reply.token_ids, values, reply.source, behaviour=reply.logprobs)
        return scored

    def save(self, directory: Path) -> None:
        """Save adapter and optimizer as safetensors. We write them ourselves, so that a full disk raises an OSError."""
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
        """Load adapter and optimizer of a checkpoint, exactly. BackendError if it has another shape."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        self._load_adapter(directory)
        try:
            state = load_file(directory / _OPTIMIZER)
        except (OSError, SafetensorError) as error:
            raise _unfit(directory) from error
        self.optimizer = self._new_optimizer(self.optimizer.param_groups[0]["lr"])
        for name, parameter in self._trained():
            keys = {key.rsplit("/", 1)[1]: value for key, value in state.items() if key.rsplit("/", 1)[0] == name}
            if keys:
                self.optimizer.state[parameter] = keys

    def take_over(self, directory: Path) -> None:
        """Load the adapter alone, perhaps of another lineage; the optimizer begins anew."""
        self._load_adapter(directory)
        self.optimizer = self._new_optimizer(self.optimizer.param_groups[0]["lr"])

    def _load_adapter(self, directory: Path) -> None:
        from peft import set_peft_model_state_dict
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            result = set_peft_model_state_dict(self._model, load_file(directory / _ADAPTER))
        except (OSError, SafetensorError, RuntimeError) as error:
            raise _unfit(directory) from error
        if result.unexpected_keys:
            raise BackendError(f"The checkpoint {directory} belongs to another base model: use another --model name.")

    @torch.no_grad()
    def _set(self, values: dict[str, Tensor]) -> None:
        for name, parameter in self._trained():
            parameter.copy_(values[name])

    def _trained(self) -> list[tuple[str, Any]]:
        return [(name, value) for name, value in self._model.named_parameters() if value.requires_grad]

    def _new_optimizer(self, learning_rate: float) -> torch.optim.AdamW:
        # A run has few steps: with a longer memory the large gradients of the first ones would slow down all others.
        return torch.optim.AdamW(self.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)

    def _hidden(self, tokens: Tensor, positions: Tensor, layout: Memory) -> Tensor:
        recompute = torch.is_grad_enabled() and tokens.shape[1] > _RECOMPUTE_ABOVE
        if recompute:
            self._causal.gradient_checkpointing_enable({"use_reentrant": False})
            self._causal.train()
        try:
            output = self._causal.base_model(input_ids=tokens, position_ids=positions, use_cache=False, memory=layout)
        finally:
            if recompute:
                self._causal.eval()
        hidden: Tensor = output.last_hidden_state
        return hidden

    def _head(self, hidden: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        head = self._causal.get_output_embeddings()
        if head.bias is None and not (self.learns_entropy and torch.is_grad_enabled()):
            return chosen_logprobs(hidden, head.weight, wanted)
        places = range(0, len(wanted), _LOGITS_AT_ONCE)
        parts = [
            recomputed(self._read_out, head, hidden[some], wanted[some], use_reentrant=False)
            for some in (slice(start, start + _LOGITS_AT_ONCE) for start in places)
        ]
        logprobs, entropies = (torch.cat(column) for column in zip(*parts, strict=True))
        return logprobs, entropies

    def _read_out(self, head: Any, hidden: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        logprobs = torch.log_softmax(head(hidden), dim=-1)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.learns_entropy):
            entropies = -(logprobs.exp() * logprobs).sum(dim=-1)
        return logprobs.gather(1, wanted[:, None])[:, 0], entropies

    def prompt_of(self, request: ScoreRequest, reply: int) -> tuple[int, ...] | None:
        """The prompt as tokens; None if there is no room for the reply, or the chat template does not take it."""
        if reply >= self.context:
            return None
        try:
            prompt = prompt_tokens(self.tokenizer, request.messages)
        except Exception:  # a chat template is a program of its own and raises what it likes: its row's fault
            return None
        return prompt if prompt and len(prompt) + reply <= self.context else None

    def _score_together(self, prompt: Tokens, beginning: int, replies: list[Tokens]) -> list[tuple[float, ...]]:
        """The replies in one sequence, or each in its own if one gives no number there: it spreads to the others."""
        together = self._score_prompt(prompt, beginning, replies)
        if len(replies) == 1 or all(math.isfinite(value) for values in together for value in values):
            return together
        return [self._score_prompt(prompt, beginning, [reply])[0] for reply in replies]

    def _score_prompt(self, prompt: Tokens, beginning: int, replies: list[Tokens]) -> list[tuple[float, ...]]:
        values = self.read_replies(prompt, replies, beginning).logprobs
        return [tuple(part.tolist()) for part in values.split_with_sizes([len(reply) for reply in replies])]

    @torch.no_grad()
    def read_replies(self, prompt: Tokens, replies: list[Tokens], beginning: int = 0) -> Likelihoods:
        """One packed sequence: the prompt without its last token, then for each reply that token and the reply.

        The first tokens of the prompt, its ``beginning``, are read once for many prompts.
        """
        shared = len(prompt) - 1
        tokens, positions = list(prompt[beginning:-1]), list(range(beginning, shared))
        groups = [0] * len(tokens)
        targets: list[int] = []
        for number, reply in enumerate(replies, start=1):
            targets.extend(range(len(tokens) + 1, len(tokens) + 1 + len(reply)))
            tokens += [prompt[-1], *reply]
            positions += range(shared, shared + 1 + len(reply))
            groups += [number] * (1 + len(reply))
        group_ids = torch.tensor([groups])
        layout = Layout(group_ids, torch.zeros_like(group_ids), self.read({0: prompt[:beginning]} if beginning else {}))
        return self.likelihoods(torch.tensor([tokens]), torch.tensor([positions]), layout, torch.tensor(targets))


def _unfit(directory: Path) -> BackendError:
    return BackendError(
        f"The checkpoint {directory} does not fit this model: use the --base-model and --lora-rank it was trained "
        "with, or another --model name."
    )


def _cheapest(before_last: Mapping[Tokens, int]) -> dict[Tokens, int]:
    """How many first tokens of each prompt are read apart from the rest; never a whole prompt.

    Either those ``before_last``, before its last message: instructions, which come again in other calls and are read
    once for all of them. Or those that the prompts given here share, if that leaves less to be read.
    """
    own = {prompt: min(length, len(prompt) - 1) for prompt, length in before_last.items()}
    if len(own) > 1:
        shared = min(shared_beginning(list(own)), min(map(len, own)) - 1)
        if sum(own.values()) < (len(own) - 1) * shared:  # it has to be read once itself
            return dict.fromkeys(own, shared)
    return own


# LoRA with one matrix product instead of three; the gradients of the two factors equal those of PEFT's own layer


def _fuse(model: Any) -> None:
    """Let every LoRA layer of a PEFT ``model`` compute with its merged weight."""
    from peft.tuners.lora import Linear

    for module in model.modules():
        if isinstance(module, Linear):
            module._merged_for = None
            module.forward = MethodType(_forward, module)


def _forward(layer: Any, x: Tensor, *_: Any, **__: Any) -> Tensor:
    base = layer.get_base_layer()
    if layer.disable_adapters:
        return linear(x, base.weight, base.bias)
    down, up, scale = layer.lora_A["default"].weight, layer.lora_B["default"].weight, layer.scaling["default"]
    version = (down._version, up._version)
    if layer._merged_for != version:
        layer._merged_weight = _merged(base.weight, down, up, scale, getattr(layer, "_merged_weight", None))
        layer._merged_for = version
    weight = layer._merged_weight
    output: Tensor = _FusedLora.apply(x, weight, down, up, scale)  # type: ignore[no-untyped-call]  # torch's own
    return output if base.bias is None else output + base.bias


@torch.no_grad()
def _merged(weight: Tensor, down: Tensor, up: Tensor, scale: float, room: Tensor | None) -> Tensor:
    return torch.addmm(weight, up, down, alpha=scale, out=room)


class _FusedLora(torch.autograd.Function):
    """y = x (W + s B A)ᵀ with W frozen; ``merged`` is the bracket."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, merged: Tensor, down: Tensor, up: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(x, down, up)
        ctx.merged, ctx.scale = merged, scale  # saving it would pin a version that the next update overwrites
        return linear(x, merged)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, None, Tensor, Tensor, None]:
        x, down, up = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, gradients[0].shape[-1])
        rows = x.reshape(-1, x.shape[-1])
        for_x = (gradient @ ctx.merged).reshape(x.shape) if ctx.needs_input_grad[0] else None
        for_down = ((gradient @ up) * ctx.scale).t() @ rows
        for_up = (((rows @ down.t()) * ctx.scale).t() @ gradient).t()
        return for_x, None, for_down, for_up, None
