"""load: from a name to a Model that runs our attention, proven against transformers' own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn

from attnscope.attention.lens import Lens
from attnscope.attention.spec import AttentionSpec
from attnscope.errors import AttnscopeError, CheckpointError, UsageError
from attnscope.models import proof
from attnscope.models.angles import depend_on_length, forget_lengths
from attnscope.models.layouts import find_attention
from attnscope.models.network import (
    pick_device,
    pick_dtype,
    positions,
    read_config,
    read_network,
    reads_both,
    reads_both_ways,
)
from attnscope.models.quiet import quiet_transformers
from attnscope.models.reading import blind_spot, read_layers
from attnscope.models.seam import OURS, Pass, Seat, take_seats, use_attention
from attnscope.models.sources import Source, resolve
from attnscope.models.text import Reader
from attnscope.models.unembedding import Unembedding, bodies
from attnscope.plain import visible
from attnscope.types import ModelShape, Progress, TokenBatch, no_progress


@dataclass
class Model:
    """A checkpoint with our attention in every layer.

    `parity` is what the load-time proof measured, `specs` has one AttentionSpec per layer.
    """

    id: str
    family: str
    shape: ModelShape
    specs: tuple[AttentionSpec, ...]
    layout: str
    parity: proof.Parity
    reader: Reader
    network: nn.Module
    seats: tuple[Seat, ...]
    running: Pass
    source: Source
    unembedding: Unembedding | None = None  # where logits were asked for
    memory: dict[str, Any] = field(default_factory=dict)  # what need not be worked out twice

    @property
    def tokenizer(self) -> Any:
        """The checkpoint's own tokenizer, as transformers loads it."""
        return self.reader.tokenizer

    @property
    def dtype(self) -> torch.dtype:
        """The number format of the weights."""
        return next(self.network.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.network.parameters()).device

    @property
    def has_logits(self) -> bool:
        """Was it loaded with its language-model head?"""
        return getattr(self.network, "base_model", self.network) is not self.network

    @property
    def mixes_lengths(self) -> bool:
        """May texts of unlike length share a batch? Not where angles depend on the longest."""
        return not depend_on_length(self.network)

    @property
    def pad_id(self) -> int:
        """An id to fill short texts with; what it stands for is never seen."""
        pad = self.tokenizer.pad_token_id
        return 0 if pad is None or pad >= self.shape.vocab_size else int(pad)

    def run(self, batch: TokenBatch, lens: Lens | None = None) -> Tensor:
        """One forward pass; returns the last hidden state (B, T, C)."""
        self.running.valid, self.running.lens = batch.valid.to(self.device), lens
        try:
            with torch.inference_mode():
                body = getattr(self.network, "base_model", self.network)
                hidden, _ = _forward(body, batch.ids, batch.segments)
                seen = self.running.valid.to(
                    hidden.device
                )  # of more runs than the batch, if widened
                finite = bool(hidden[seen].isfinite().all())
        finally:
            self.running.valid = self.running.lens = None
        if not finite:
            raise CheckpointError(
                f"{visible(self.id)} computes numbers that are not finite for this text: the "
                "checkpoint is damaged, or its number format too small (try --dtype float32)."
            )
        return hidden

    def predictor(self) -> Unembedding:
        """What turns hidden states into logits. Raises UsageError when it was not loaded."""
        if self.unembedding is None:
            raise UsageError(
                f"{visible(self.id)} was loaded without its language-model head: "
                "load it with logits=True."
            )
        return self.unembedding

    def set_block_rows(self, rows: int | None) -> None:
        """Compute `rows` queries at a time in every layer; None lets each layer choose."""
        if rows is not None and rows < 1:
            raise UsageError(f"A block needs at least one row, not {rows}.")
        for seat in self.seats:
            seat.attention.block_rows = rows

    def settings(self, seed: int) -> dict[str, Any]:
        """The settings that change numbers, for the `settings` entry of a document."""
        return {
            "seed": seed,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "bos": self.reader.bos_policy(),
            "block_rows": self.seats[0].attention.block_rows,
        }

    def describe(self) -> dict[str, Any]:
        """The `model` entry of every JSON document."""
        return {
            "id": self.id,
            "family": self.family,
            "n_layers": self.shape.n_layers,
            "n_heads": self.shape.n_heads,
            "n_kv_heads": self.shape.n_kv_heads,
            "d_head": self.shape.d_head,
            "d_model": self.shape.d_model,
            "causal": self.shape.causal,
            "dtype": str(self.dtype).removeprefix("torch."),
            "parity": self.parity.to_json(),
        }


def load(
    name: str,
    *,
    revision: str | None = None,
    tokenizer: str | None = None,
    device: str = "auto",
    device_map: str | None = None,
    dtype: str | None = None,
    logits: bool = False,
    ids: Callable[[Reader], Tensor] | None = None,
    refuse: bool = True,
    predicts: bool = False,
    progress: Progress = no_progress,
) -> Model:
    """Load a checkpoint, put our attention in place, and prove it against transformers.

    `name` is a hub id, a directory, a .gguf file, or a name from `attnscope models list`.
    The proof runs over what `ids` makes of the tokenizer, (1, T), if given; with `refuse=False`
    the model is returned even if it fails.
    The language-model head is left out unless `logits` are asked for. With `predicts` what reads
    both ways, and so predicts no next token, is refused before its weights are read.
    Raises CheckpointError when it cannot be inspected, or when the proof fails.
    """
    quiet_transformers()
    progress(f"opening {visible(name)}", 0, 0)
    source = resolve(name, revision, progress)
    config = read_config(source)
    if predicts and reads_both_ways(config):
        raise reads_both(name)
    words = resolve(tokenizer, None, progress, tokenizer_only=True) if tokenizer else source
    reader = Reader.open(words.directory)
    place = pick_device(device)
    progress(f"loading {visible(name)}", 0, 0)
    network = read_network(source, config, pick_dtype(dtype, place), place, device_map, logits)
    config = cast(Any, network).config  # of the text part, where there are others
    progress("proving it against transformers", 0, 0)
    reader.max_positions = positions(network, config)
    reader.vocab_size = config.vocab_size
    length = min(proof.PROOF_TOKENS, reader.max_positions or proof.PROOF_TOKENS)
    chosen = proof.proof_ids(config.vocab_size, length) if ids is None else ids(reader)
    try:
        model = _with_our_attention(network, config, source, reader, chosen, refuse)
        if predicts and not model.shape.causal:
            raise reads_both(name)
        if logits:
            model.unembedding = Unembedding.find(network, chosen)
        return model
    except (AttnscopeError, MemoryError):
        raise
    except Exception as error:  # an architecture that our seam does not fit breaks in many ways
        raise CheckpointError(
            f"{visible(name)} ({config.model_type}) attends in a way that attnscope cannot take "
            f"over ({type(error).__name__}), so it cannot be inspected."
        ) from error


def _with_our_attention(
    network: nn.Module,
    config: Any,
    source: Source,
    reader: Reader,
    ids: Tensor,
    refuse: bool,
) -> Model:
    try:
        layers = read_layers(network, find_attention(network), reader.max_positions)
    except CheckpointError:
        raise
    except AttnscopeError as error:  # the spec does not accept the checkpoint's numbers
        raise CheckpointError(f"{visible(source.name)}: {error}") from error

    def run(ids: Tensor) -> tuple[Tensor, Tensor | None]:
        return _forward(network, ids, None)

    theirs = proof.hear_transformers(network, layers.stored, ids, run)
    running = Pass()
    seats = take_seats(layers.stored, layers.forms, running)
    blind = blind_spot(layers, [seat.attention.spec for seat in seats])
    if refuse and blind is not None:
        raise CheckpointError(
            f"{visible(source.name)} is refused: {blind}, unlike in transformers' own mask."
        )
    use_attention(network, OURS)
    parity = proof.prove(theirs, seats, running, ids, run)
    if refuse and parity.failure is not None:
        raise CheckpointError(
            f"{visible(source.name)} is refused: {parity.failure} from transformers' own eager "
            f"attention (tolerance {parity.tolerance:.0e}).\n"
            f"`attnscope verify --model {visible(source.name)}` shows it layer by layer."
        )
    return Model(
        id=source.name,
        family=config.model_type,
        shape=_shape(config, layers.specs, reader),
        specs=tuple(layers.specs),
        layout=layers.stored[0].layout,
        parity=parity,
        reader=reader,
        network=network,
        seats=tuple(seats),
        running=running,
        source=source,
    )


def _forward(
    network: nn.Module, ids: Tensor, segments: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """ids (B, T) to the last hidden state (B, T, C), and logits (B, T, V) where there is a head.

    No attention mask is passed: visibility is ours.
    """
    forget_lengths(network)
    device = next(network.parameters()).device
    arguments: dict[str, Any] = {"input_ids": ids.to(device)}
    if segments is not None:
        arguments["token_type_ids"] = segments.to(device)
    body: Any = getattr(network, "base_model", network)
    if body is network:  # no head, or none wanted
        return body(**arguments, use_cache=False).last_hidden_state, None
    kept: list[Tensor] = []
    hooks = [
        module.register_forward_hook(lambda _, __, output: kept.append(output.last_hidden_state))
        for module in bodies(network)
    ]
    try:
        logits: Tensor = network(**arguments).logits
    finally:
        for hook in hooks:
            hook.remove()
    return kept[-1], logits


def _shape(config: Any, specs: list[AttentionSpec], reader: Reader) -> ModelShape:
    first = specs[0]
    if any((s.n_heads, s.head_width) != (first.n_heads, first.head_width) for s in specs):
        raise CheckpointError("Layers with different numbers of heads cannot be inspected.")
    return ModelShape(
        n_layers=len(specs),
        n_heads=first.n_heads,
        n_kv_heads=first.kv_heads,
        d_head=first.head_width,
        d_model=first.d_model,
        vocab_size=config.vocab_size,
        max_positions=reader.max_positions,
        causal=first.causal,
        sink=any(spec.sink for spec in specs),
    )
