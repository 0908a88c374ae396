"""The model card of one checkpoint: data, training and figures as Markdown."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Figure:
    """One measured number; `head` is None when the whole model is measured."""

    name: str
    value: float
    low: float | None
    high: float | None
    chance: float | None
    head: str | None = None
    wanted: str | None = None
    reached: bool | None = None


def show(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def row(figure: Figure) -> str:
    """One line of the table."""
    reached = {None: "", True: "yes", False: "**no**"}[figure.reached]
    cells = [
        figure.name, figure.head or "-", show(figure.value),
        f"{show(figure.low)} to {show(figure.high)}", show(figure.chance),
        figure.wanted or "", reached,
    ]  # fmt: skip
    return "| " + " | ".join(cells) + " |"


def card(folder: Path, figures: list[Figure], n_texts: int, n_items: int) -> str:
    """The model card from the files of `folder` and the measured figures."""
    facts = json.loads((folder / "training.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    size = (folder / "model.safetensors").stat().st_size / 1e6
    seed, steps, seconds = facts["seed"], facts["steps_done"], facts["cpu_seconds"]
    head = f"""# {folder.name}

A small trained model of the type `{config["model_type"]}` for trying attention tools without a
network. It knows a toy language only; what it predicts says nothing about the world.

- Data: stories from `language.py` and repeated random tokens, all generated; no outside text.
- Size: {facts["n_parameters"]} parameters, {size:.2f} MB (float16 weights, loaded as float32),
  {config["vocab_size"]} tokens (byte-level BPE, encodes any text), at most 128 tokens in a text.
- Training: {steps} steps, seed {seed}, {seconds} CPU seconds on one thread:
  `python -m tests.demo.train {folder.name} --seed {seed}`.
- Start: one head of layer 0 starts as a previous-token head (in the BERT type another one as a
  next-token head) and is held for a part of the steps (`hold_until`); a head of layer 1 starts
  with a weak preference for tokens that it has moved. Then every weight is trained.
- Rest: in the last steps attention above layer 0 that is not on the special token costs a little
  (`rest_cost`), so that heads rest unless they are needed.
- Recipe: `{json.dumps(facts["recipe"])}`

## Figures

Measured by `figures.py` from these weights. Heads (layer.head from zero) are chosen on one
generated split and measured on another; 95 % bootstrap intervals over {n_texts} texts ({n_items}
items for coreference). Losses in nats; their chance is the log of the vocabulary size.

| figure | head | value | interval | chance | wanted | reached |
| --- | --- | --- | --- | --- | --- | --- |
"""
    return head + "\n".join(row(figure) for figure in figures) + "\n"
