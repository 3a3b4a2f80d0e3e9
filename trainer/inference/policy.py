"""The policy on the CPU: a frozen base model in fp32, a LoRA adapter, its optimizer; and log-probabilities from it.

Many replies share one packed sequence (see ``cpu_step``): a row of clusters, each a prompt followed by the replies
to it. Prompt tokens see the prompt so far, reply tokens the prompt and their own reply; no token sees another cluster,
and attention computes only the pairs that may see each other. The output layer, the largest product of a small model,
is computed for reply tokens only. The adapter does not change during a step, so base weight and adapter are added once
and used for every sequence; PEFT provides the parameters, the switch to turn the adapter off, and the file format.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.functional import linear, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint as recomputed

from data_bridge.art_converter import Scored, ScoreRequest
from data_bridge.errors import BackendError
from trainer.inference.base_model import end_tokens, load_base, load_tokenizer, prompt_tokens
from trainer.inference.shared_prefix import register

if TYPE_CHECKING:
    from torch import Tensor

_RECOMPUTE_ABOVE = 1024
"""Longer sequences keep only the layers' inputs and recompute the rest in the backward pass: memory stays flat."""
_LOGITS_AT_ONCE = 512
_ADAPTER = "adapter_model.safetensors"
_OPTIMIZER = "optimizer.safetensors"


@dataclass(frozen=True, slots=True)
class Likelihoods:
    """Log-probability and entropy of the chosen tokens, in order."""

    logprobs: Tensor
    entropies: Tensor
    hidden: Tensor
    """The output layer's input, without gradients: enough to compare whole distributions afterwards."""


@dataclass(frozen=True, slots=True)
class PolicyScorer:
    """Scores replies for callers outside the thread that owns the policy."""

    in_thread: Callable[[Callable[[], list[Scored | None]]], Awaitable[list[Scored | None]]]
    policy: Callable[[], CpuPolicy]
    """Returns the policy at its newest checkpoint; called in that thread."""

    async def score(self, requests: Sequence[ScoreRequest]) -> list[Scored | None]:
        """Tokens and log-probabilities of logged replies under the newest checkpoint."""
        return await self.in_thread(lambda: self.policy().score(requests))


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
        self.learns_entropy = False
        """Whether entropies have gradients, which costs another pass over the vocabulary."""
        self._fresh = {name: value.detach().clone() for name, value in self._trained()}
        self.optimizer = self._new_optimizer(learning_rate)

    def reset(self) -> None:
        """Back to step 0: the untrained adapter, as in a new ``CpuPolicy``."""
        with torch.no_grad():
            for name, parameter in self._trained():
                parameter.copy_(self._fresh[name])
        self.optimizer = self._new_optimizer(self.optimizer.param_groups[0]["lr"])

    def parameters(self) -> list[Any]:
        return [parameter for _, parameter in self._trained()]

    def likelihoods(self, tokens: Tensor, positions: Tensor, layout: Layout, targets: Tensor) -> Likelihoods:
        """The likelihoods of ``tokens[targets]``, each predicted from the position before it."""
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
        """KL(own || other) of every token's whole distribution: exact, so one unlikely token cannot inflate it."""
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
        """Log-probabilities of logged replies, unless the log has them; replies to the same prompt go together."""
        scored: list[Scored | None] = [None] * len(requests)
        by_prompt: dict[tuple[int, ...], list[tuple[int, Scored]]] = {}
        for index, request in enumerate(requests):
            reply = request.tokens(self.tokenizer, end=self._end, ends=self._ends)
            if reply is None or not reply.token_ids:
                scored[index] = reply
                continue
            prompt = self._prompt(request, len(reply.token_ids))
            if prompt is not None and not reply.logprobs:
                by_prompt.setdefault(prompt, []).append((index, reply))
            elif prompt is not None:
                scored[index] = reply
        for prompt, replies in by_prompt.items():
            for start in range(0, len(replies), 16):
                part = replies[start : start + 16]
                logprobs = self._score_together(prompt, [reply.token_ids for _, reply in part])
                for (index, reply), values in zip(part, logprobs, strict=True):
                    scored[index] = Scored(reply.token_ids, values, reply.source)
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
        # A run has few steps: with a longer memory the large gradients of the first ones would slow down all others.
        return torch.optim.AdamW(self.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0)

    def _hidden(self, tokens: Tensor, positions: Tensor, layout: Layout) -> Tensor:
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
        if torch.is_grad_enabled() and hidden.shape[0] == _LOGITS_AT_ONCE:
            result: tuple[Tensor, Tensor] = recomputed(self._read_out, hidden, wanted, use_reentrant=False)
            return result
        return self._read_out(hidden, wanted)

    def _read_out(self, hidden: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        logprobs = torch.log_softmax(self._causal.get_output_embeddings()(hidden), dim=-1)
        with torch.set_grad_enabled(torch.is_grad_enabled() and self.learns_entropy):
            entropies = -(logprobs.exp() * logprobs).sum(dim=-1)
        return logprobs.gather(1, wanted[:, None])[:, 0], entropies

    def _prompt(self, request: ScoreRequest, reply: int) -> tuple[int, ...] | None:
        """The prompt as tokens; None if there is no room for the reply, or the chat template does not take it."""
        if reply >= self.context:
            return None
        try:
            prompt = prompt_tokens(self.tokenizer, request.messages)
        except Exception:  # a chat template is a program of its own and raises what it likes: its row's fault
            return None
        return prompt if prompt and len(prompt) + reply <= self.context else None

    def _score_together(self, prompt: tuple[int, ...], replies: list[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """The replies in one sequence, or each in its own if one gives no number there: it spreads to the others."""
        together = self._score_prompt(prompt, replies)
        if len(replies) == 1 or all(math.isfinite(value) for values in together for value in values):
            return together
        return [self._score_prompt(prompt, [reply])[0] for reply in replies]

    def _score_prompt(self, prompt: tuple[int, ...], replies: list[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """One packed sequence: the prompt without its last token, then for each reply that token and the reply."""
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


# Attention over a packed sequence


class Block(NamedTuple):
    """Rows of queries, and a range that contains all keys they may see."""

    rows: slice
    keys: slice


class Layout:
    """Who sees whom in one packed sequence, from ART's group and parent ids ([1, tokens] each).

    ``still`` marks tokens that are seen, and through which no gradient goes.
    """

    def __init__(self, group_ids: Tensor, parent_ids: Tensor, still: Tensor | None = None) -> None:
        self._still = None if still is None or not still.any() else still[:, None, :, None]
        self.visible = visibility(group_ids, parent_ids)
        self.blocks = _blocks(group_ids[0], parent_ids[0])
        self._masks: dict[int, list[Tensor]] = {}

    def masks(self, heads_per_key: int) -> list[Tensor]:
        """Additive masks of the blocks, repeated for the query heads that share a key head."""
        if heads_per_key not in self._masks:
            parts = [self.visible[block.rows, block.keys] for block in self.blocks]
            self._masks[heads_per_key] = [
                torch.zeros(part.shape).masked_fill_(~part, float("-inf")).repeat(heads_per_key, 1)[None, None]
                for part in parts
            ]
        return self._masks[heads_per_key]

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """Query heads that share a key head are stacked on it, so that keys and values are not copied."""
        rows, heads, _, size = query.shape
        key_heads = key.shape[1]
        if self._still is not None and torch.is_grad_enabled():
            key, value = (torch.where(self._still, one.detach(), one) for one in (key, value))
        parts = []
        for block, mask in zip(self.blocks, self.masks(heads // key_heads), strict=True):
            grouped = query[:, :, block.rows].reshape(rows, key_heads, -1, size)
            attended = scaled_dot_product_attention(
                grouped, key[:, :, block.keys], value[:, :, block.keys], attn_mask=mask, scale=scaling
            )
            parts.append(attended.reshape(rows, heads, -1, size).transpose(1, 2))
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


def visibility(group_ids: Tensor, parent_ids: Tensor) -> Tensor:
    """ART's rule [tokens, tokens]: a token sees, up to itself, its own group and its parent's."""
    groups, parents = group_ids[0], parent_ids[0]
    seen = (groups[:, None] == groups[None, :]) | (parents[:, None] == groups[None, :])
    return seen.tril()


def _blocks(groups: Tensor, parents: Tensor) -> list[Block]:
    """Prompt and replies of each cluster; one block of everything if a cluster is not contiguous."""
    _, lengths = torch.unique_consecutive(parents, return_counts=True)
    if len(lengths) != len(torch.unique(parents)):
        return [Block(slice(0, len(groups)), slice(0, len(groups)))]
    blocks, start = [], 0
    for length in lengths.tolist():
        stop = start + length
        prompt = start + int((groups[start:stop] == parents[start:stop]).sum())
        blocks += [Block(slice(start, prompt), slice(start, prompt)), Block(slice(prompt, stop), slice(start, stop))]
        start = stop
    return [block for block in blocks if block.rows.start < block.rows.stop]


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
