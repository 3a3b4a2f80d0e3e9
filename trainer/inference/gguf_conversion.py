"""Converts the embedded model's GGUF file into a directory that transformers loads in two seconds.

transformers can read the GGUF itself, but mistakes the tokenizer for CodeLlama's: five tokens beyond the
embedding table, and a wrong end of sequence. So the tokenizer is rebuilt here from the same file, as the
authors of SmolLM2 publish it, and the weights are dequantised to fp32 without loading a model.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from gguf import GGUFReader, ReaderTensor
    from transformers import PreTrainedTokenizerFast

_CONTROL = 3  # the GGUF token type of special tokens

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OUTER_NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}


def convert(gguf_file: Path, target: Path) -> None:
    """Write ``config.json``, the tokenizer and ``model.safetensors`` (fp32) of ``gguf_file`` into ``target``."""
    import torch
    from gguf import GGUFReader
    from safetensors.torch import save_file

    reader = GGUFReader(gguf_file)
    heads = {
        "attn_q": int(_field(reader, "llama.attention.head_count")),
        "attn_k": int(_field(reader, "llama.attention.head_count_kv")),
    }
    weights = {}
    for tensor in reader.tensors:
        part = tensor.name.split(".")[-2]
        array = _dequantised(tensor)
        if part in heads:
            array = _unpermuted(array, heads[part])
        weights[_transformers_name(tensor.name)] = torch.tensor(array)
    save_file(weights, str(target / "model.safetensors"), metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(_config(reader), indent=2))
    _tokenizer(reader).save_pretrained(target)


def tokenizer_of(gguf_file: Path) -> PreTrainedTokenizerFast:
    """SmolLM2's tokenizer: byte-level BPE with single digits, ``<|im_end|>`` as end of sequence."""
    from gguf import GGUFReader

    return _tokenizer(GGUFReader(gguf_file))


def _tokenizer(reader: GGUFReader) -> PreTrainedTokenizerFast:
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from transformers import PreTrainedTokenizerFast

    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens")
    kinds: list[int] = _field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ", 1)) for merge in _field(reader, "tokenizer.ggml.merges")]
    core = Tokenizer(BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == _CONTROL]
    core.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=tokens[_field(reader, "tokenizer.ggml.bos_token_id")],
        eos_token=tokens[_field(reader, "tokenizer.ggml.eos_token_id")],
        pad_token=tokens[_field(reader, "tokenizer.ggml.padding_token_id")],
        unk_token=tokens[_field(reader, "tokenizer.ggml.unknown_token_id")],
        chat_template=_field(reader, "tokenizer.chat_template"),
        model_max_length=int(_field(reader, "llama.context_length")),
        clean_up_tokenization_spaces=False,
    )


def _field(reader: GGUFReader, key: str) -> Any:
    return reader.fields[key].contents()


def _config(reader: GGUFReader) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": int(_field(reader, "llama.embedding_length")),
        "intermediate_size": int(_field(reader, "llama.feed_forward_length")),
        "num_hidden_layers": int(_field(reader, "llama.block_count")),
        "num_attention_heads": int(_field(reader, "llama.attention.head_count")),
        "num_key_value_heads": int(_field(reader, "llama.attention.head_count_kv")),
        "head_dim": int(_field(reader, "llama.rope.dimension_count")),
        "max_position_embeddings": int(_field(reader, "llama.context_length")),
        "rms_norm_eps": float(_field(reader, "llama.attention.layer_norm_rms_epsilon")),
        "rope_parameters": {"rope_type": "default", "rope_theta": float(_field(reader, "llama.rope.freq_base"))},
        "vocab_size": int(_field(reader, "llama.vocab_size")),
        "bos_token_id": int(_field(reader, "tokenizer.ggml.bos_token_id")),
        "eos_token_id": int(_field(reader, "tokenizer.ggml.eos_token_id")),
        "pad_token_id": int(_field(reader, "tokenizer.ggml.padding_token_id")),
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "dtype": "float32",
    }


def _transformers_name(gguf_name: str) -> str:
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", gguf_name)
    if layer is not None:
        return f"model.layers.{layer[1]}.{_LAYER_NAMES[layer[2]]}.weight"
    return f"{_OUTER_NAMES[gguf_name.removesuffix('.weight')]}.weight"


def _dequantised(tensor: ReaderTensor) -> np.ndarray[Any, Any]:
    from gguf import dequantize

    array: np.ndarray[Any, Any] = dequantize(tensor.data, tensor.tensor_type)
    return array


def _unpermuted(array: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """llama.cpp stores the rotary halves interleaved; transformers expects them one after the other."""
    rows, columns = array.shape
    return array.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns).copy()
