"""The three small models with the weights that training starts from.

One head of layer 0 starts as a previous-token head (in the BERT type another one as a next-token
head), one head of layer 1 is nudged towards the tokens that it has moved, and blocks start quiet.
Without the nudge no matching head had formed after three times the steps (GPT-2 type, one seed).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from tests.demo.vocabulary import MAX_LENGTH

INIT_STD = 0.06
QUIET = 0.2  # factor on the output projections of every block
NUDGE = {"gpt2": 0.8, "llama": 2.5, "bert": 0.8}  # strength of the start of the first matching head
FINAL_GAIN = 3.0  # small tied embeddings need a larger scale to name one token of many
N_PLANES = 8  # position planes that the first heads start from
Held = tuple[Parameter, tuple[slice, ...]]
ALL = slice(None)
PLANES = (ALL, slice(0, 2 * N_PLANES))


def one(index: int) -> slice:
    return slice(index, index + 1)


def step_frequencies(n: int, base: float = 100.0) -> Tensor:
    """Angles per position, from one radian down to about 1 / base (n,)."""
    return base ** (-torch.arange(n) / n)


def step_power(frequencies: Tensor, gap: float, d_head: int) -> Tensor:
    """Squared lengths per plane that put the score `gap` above its neighbours (n,)."""
    power = torch.tensor([max(0.04, 0.6**k) for k in range(len(frequencies))])
    return power * gap * math.sqrt(d_head) / (power * (1 - torch.cos(frequencies))).sum()


def start_positions(tokens: Tensor, positions: Tensor, n_planes: int) -> None:
    """Sinusoidal positions (T, C); tokens leave the first planes to them.

    Learned positions that start at random need thousands of steps before heads can tell one step.
    """
    angles = torch.arange(len(positions))[:, None] * step_frequencies(n_planes)  # (T, planes)
    positions[:] = 0.0
    positions[:, 0 : 2 * n_planes : 2] = INIT_STD * math.sqrt(2) * torch.cos(angles)
    positions[:, 1 : 2 * n_planes : 2] = INIT_STD * math.sqrt(2) * torch.sin(angles)
    tokens[:, : 2 * n_planes] = 0.0


def prefer_step(query: Tensor, key: Tensor, n_planes: int, step: int, gap: float = 9.0) -> None:
    """Start one head, weights (D, C), on the token `step` positions away."""
    d_head = len(query)
    frequencies = step_frequencies(n_planes)
    # Planes and the rest have nearly the spread of the norm's output, hence the length 1 there.
    lengths = step_power(frequencies, gap, d_head).sqrt()
    query *= 0.1
    key *= 0.1
    for plane, (length, angle) in enumerate(zip(lengths, frequencies * step, strict=True)):
        x, y = 2 * plane, 2 * plane + 1
        key[x, x] = key[y, y] = length
        query[x, x] = query[y, y] = length * torch.cos(angle)
        query[x, y], query[y, x] = -length * torch.sin(angle), length * torch.sin(angle)


def prefer_step_rotary(
    query: Tensor, key: Tensor, base: float, step: int, gap: float = 5.0
) -> None:
    """Start one rotary head, weights (D, C), on the token `step` positions away.

    Rotary scores compare rotated queries and keys, so distance alone is visible only through a
    direction that all tokens share: embedding coordinate 0 starts as a constant, which the head
    turns into a query and a key that is ahead of it by `-step` in every rotary plane.
    """
    d_head, d_model = query.shape
    half = d_head // 2
    frequencies = step_frequencies(half, base)
    shared = math.sqrt(d_model / 2)  # coordinate 0 after the norm
    length = step_power(frequencies, gap, d_head).sqrt() / shared
    query *= 0.1
    key *= 0.1
    query[:half, 0], query[half:, 0] = length, 0.0
    key[:half, 0] = length * torch.cos(-step * frequencies)
    key[half:, 0] = length * torch.sin(-step * frequencies)


def quieten(outputs: list[Parameter]) -> None:
    """Let blocks start with small outputs, so that the token embeddings are not drowned."""
    for weight in outputs:
        weight *= QUIET


def prefer_match(
    value: Tensor, output: Tensor, query: Tensor, key: Tensor, first: int, rows: Tensor,
    nudge: float, gain: float = 0.1, own: bool = True,
) -> None:  # fmt: skip
    """Nudge a later head towards keys whose moved token equals the query's.

    value (D, C) and output (C, D) belong to the head that moves tokens by one step, query and key
    (D, C) to the later head, which compares the query's own token (or, if not `own`, its moved one
    too). Coordinates before `first` carry positions and are left out; `rows` are the coordinates
    of the later head that are used; `gain` is the length of a moved token.
    """
    d_head, d_model = value.shape
    free = d_model - first
    basis = torch.linalg.qr(torch.randn(free, free)).Q
    reads, writes = basis[:, :d_head].T, torch.linalg.qr(torch.randn(free, free)).Q[:, :d_head]
    value[:, first:] = reads
    output[first:] = gain * writes
    key[rows, first:] = nudge * writes.T[: len(rows)]
    query[rows, first:] = nudge * (reads if own else writes.T)[: len(rows)]


def start_gpt2(tokenizer: PreTrainedTokenizerFast) -> tuple[PreTrainedModel, list[Held]]:
    """Three layers of four heads, with learned positions that start as sinusoids."""
    d_head, d_model = 24, 96
    model: Any = GPT2LMHeadModel(GPT2Config(
        vocab_size=len(tokenizer), n_positions=MAX_LENGTH, n_embd=d_model, n_layer=3, n_head=4,
        initializer_range=INIT_STD, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    ))  # fmt: skip
    tokens, positions = model.transformer.wte.weight, model.transformer.wpe.weight
    below, above = (block.attn for block in model.transformer.h[:2])
    quieten([w for n, w in model.named_parameters() if n.endswith("c_proj.weight")])
    start_positions(tokens, positions, N_PLANES)
    fused, next_fused = below.c_attn.weight, above.c_attn.weight  # (C, 3 C): query, key, value
    queries, keys, values = (slice(start, start + d_head) for start in (0, d_model, 2 * d_model))
    prefer_step(fused.T[queries], fused.T[keys], N_PLANES, step=-1)
    prefer_match(
        fused.T[values], below.c_proj.weight.T[:, :d_head], next_fused.T[queries],
        next_fused.T[keys], 2 * N_PLANES, torch.arange(d_head), NUDGE["gpt2"],
    )  # fmt: skip
    model.transformer.ln_f.weight *= FINAL_GAIN
    held: list[Held] = [
        (tokens, PLANES), (positions, PLANES), (fused, (ALL, queries)), (fused, (ALL, keys)),
    ]  # fmt: skip
    return model, held


def start_llama(tokenizer: PreTrainedTokenizerFast) -> tuple[PreTrainedModel, list[Held]]:
    """Three layers of eight query and two key-value heads, with rotary positions."""
    d_head, d_model, base = 32, 96, 10000.0
    model: Any = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), max_position_embeddings=MAX_LENGTH, hidden_size=d_model,
        intermediate_size=256, num_hidden_layers=3, num_attention_heads=8,
        num_key_value_heads=2, head_dim=d_head, initializer_range=INIT_STD,
        tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": base},
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    ))  # fmt: skip
    tokens = model.model.embed_tokens.weight
    below, above = (layer.self_attn for layer in model.model.layers[:2])
    outputs = ("o_proj.weight", "down_proj.weight")
    quieten([w for n, w in model.named_parameters() if n.endswith(outputs)])
    tokens[:, 0] = INIT_STD * math.sqrt(d_model)
    first = slice(0, d_head)
    prefer_step_rotary(below.q_proj.weight[first], below.k_proj.weight[first], base, step=-1)
    # Only slow rotary planes keep a match at a distance.
    half = d_head // 2
    slow = torch.cat([torch.arange(half // 2, half), torch.arange(half + half // 2, d_head)])
    prefer_match(
        below.v_proj.weight[first], below.o_proj.weight[:, first], above.q_proj.weight[first],
        above.k_proj.weight[first], 1, slow, NUDGE["llama"],
    )  # fmt: skip
    model.model.norm.weight *= FINAL_GAIN
    held: list[Held] = [
        (tokens, (ALL, one(0))), (below.q_proj.weight, (first,)), (below.k_proj.weight, (first,)),
    ]  # fmt: skip
    return model, held


def start_bert(tokenizer: PreTrainedTokenizerFast) -> tuple[PreTrainedModel, list[Held]]:
    """Four layers of four heads that see both sides."""
    d_head, d_model = 24, 96
    model: Any = BertForMaskedLM(BertConfig(
        vocab_size=len(tokenizer), max_position_embeddings=MAX_LENGTH, hidden_size=d_model,
        intermediate_size=4 * d_model, num_hidden_layers=4, num_attention_heads=4,
        initializer_range=INIT_STD, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        pad_token_id=tokenizer.pad_token_id,
    ))  # fmt: skip
    embeddings, layers = model.bert.embeddings, model.bert.encoder.layer
    tokens, positions = embeddings.word_embeddings.weight, embeddings.position_embeddings.weight
    kinds = embeddings.token_type_embeddings.weight
    below, above = layers[0].attention, layers[1].attention
    query, key = below.self.query.weight, below.self.key.weight
    quieten([w for n, w in layers[0].named_parameters() if n.endswith("output.dense.weight")])
    model.cls.predictions.transform.LayerNorm.weight *= FINAL_GAIN
    kinds.zero_()
    start_positions(tokens, positions, N_PLANES)
    for head, step in enumerate((-1, 1)):
        at = slice(d_head * head, d_head * (head + 1))
        prefer_step(query[at], key[at], N_PLANES, step=step)
        prefer_match(
            below.self.value.weight[at], below.output.dense.weight[:, at],
            above.self.query.weight[at], above.self.key.weight[at],
            2 * N_PLANES, torch.arange(d_head), NUDGE["bert"], gain=1.5, own=False,
        )  # fmt: skip
    both = slice(0, 2 * d_head)
    held: list[Held] = [
        (tokens, PLANES), (positions, PLANES), (kinds, PLANES), (query, (both,)), (key, (both,)),
    ]  # fmt: skip
    return model, held


STARTS = {"gpt2": start_gpt2, "llama": start_llama, "bert": start_bert}


def build_model(
    family: str, tokenizer: PreTrainedTokenizerFast
) -> tuple[PreTrainedModel, list[Held]]:
    """A small model of one family, and the parts of its weights that are held at first."""
    with torch.no_grad():
        return STARTS[family](tokenizer)
