"""Measure the demonstration checkpoints from their saved weights and write their model cards.

    python -m tests.demo.figures out/demo-gpt2 out/demo-llama out/demo-bert

Heads are chosen on one generated split and measured on another. Every figure stands beside its
chance level and a percentile bootstrap interval over texts.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from tests.demo.card import Figure, card
from tests.demo.goals import judge, wanted
from tests.demo.language import CorefItem, coref_items, join, story

CHOOSE, MEASURE = 1001, 2002  # seeds of the two splits; training uses others
SIZES = (12, 15, 25, 50)
N_TEXTS = 32
N_ITEMS = 200
N_RESAMPLES = 2000
LONG = 100  # tokens after the first one in position figures
ORDINARY = (
    "The old man lives in a small house near the river and goes to work by train every morning.",
    "I think that we should listen to music and talk about the new book before dinner.",
    "My brother bought a green car last year because his family needed more space.",
    "She did not know why the weather had changed so fast during the night.",
    "The trophy does not fit in the suitcase because it is too large.",
    "A language model predicts the next token from all the words that came before it.",
)
Array = np.ndarray


@dataclass(frozen=True)
class Sample:
    """Per-text values of every head (N, L, H) and the chance level of each text (N,)."""

    values: Array
    chance: Array


class Subject:
    """A checkpoint with what the measurements need from it."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(folder)
        self.causal = self.tokenizer.mask_token_id is None
        auto = AutoModelForCausalLM if self.causal else AutoModelForMaskedLM
        model: PreTrainedModel = auto.from_pretrained(folder, attn_implementation="eager")
        self.model = model.float().eval()
        special = set(self.tokenizer.all_special_ids)
        ids = [i for i in range(len(self.tokenizer)) if i not in special]
        self.middle = np.array(ids[len(ids) // 4 : 3 * len(ids) // 4])
        self.special = special
        self.punctuation = {
            i for i in range(len(self.tokenizer))
            if (text := self.tokenizer.decode([i]).strip()) and i not in special
            and not any(c.isalnum() for c in text) and text.isascii() and text.isprintable()
        }  # fmt: skip

    def wrap(self, body: Array) -> Array:
        """Rows of ids with the special tokens that the tokenizer puts around a text."""
        n = len(body)
        first = self.tokenizer.bos_token_id if self.causal else self.tokenizer.cls_token_id
        parts = [np.full((n, 1), first), body]
        if not self.causal:
            parts.append(np.full((n, 1), self.tokenizer.sep_token_id))
        return np.concatenate(parts, axis=1)

    @torch.no_grad()
    def run(self, ids: Array) -> tuple[Array, Array]:
        """Attention weights (N, L, H, T, S) and log-probabilities (N, T, V)."""
        output = self.model(input_ids=torch.from_numpy(ids), output_attentions=True)
        weights = torch.stack(output.attentions, dim=1).numpy()
        return weights, output.logits.float().log_softmax(-1).numpy()

    def visible(self, n_tokens: int) -> Array:
        """Number of visible keys of every row (T,)."""
        return np.arange(1, n_tokens + 1) if self.causal else np.full(n_tokens, n_tokens)


def draw_random(subject: Subject, n: int, length: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(subject.middle)[:length] for _ in range(n)])


def draw_stories(subject: Subject, n: int, length: int, seed: int) -> Array:
    rng = random.Random(f"stories-{seed}")
    texts = [join(story(rng, length + 8)) for _ in range(n)]
    rows = [
        subject.tokenizer.encode(t, add_special_tokens=False, truncation=True, max_length=length)
        for t in texts
    ]
    return np.array(rows)


def interval(per_text: Array) -> tuple[float | None, float | None]:
    if len(per_text) < 2:
        return None, None
    rng = np.random.default_rng(0)
    picks = rng.integers(0, len(per_text), (N_RESAMPLES, len(per_text)))
    low, high = np.percentile(per_text[picks].mean(1), [2.5, 97.5])
    return float(low), float(high)


def figure(
    name: str, per_text: Array, chance: float | None = None, head: tuple[int, int] | None = None
) -> Figure:
    low, high = interval(per_text)
    label = None if head is None else f"{head[0]}.{head[1]}"
    return Figure(name, float(per_text.mean()), low, high, chance, label)


def best_head(scores: Array) -> tuple[int, int]:
    """Layer and head of the largest score (L, H)."""
    layer, head = np.unravel_index(int(scores.argmax()), scores.shape)
    return int(layer), int(head)


def at_head(name: str, sample: Sample, head: tuple[int, int]) -> Figure:
    return figure(name, sample.values[:, head[0], head[1]], float(sample.chance.mean()), head)


def offset_sample(subject: Subject, body: Array, offset: int) -> Sample:
    """Weight on the token `offset` positions away; targets that are special tokens are left out."""
    ids = subject.wrap(body)
    weights, _ = subject.run(ids)
    rows = np.arange(1, body.shape[1] + 1)
    rows = rows[(rows + offset >= 1) & (rows + offset <= body.shape[1])]
    values = weights[..., rows, rows + offset].mean(-1)  # (N, L, H)
    chance = (1 / subject.visible(ids.shape[1])[rows]).mean()
    return Sample(values, np.full(len(ids), chance))


def position_figures(subject: Subject, name: str, offset: int) -> list[Figure]:
    def samples(seed: int) -> tuple[Sample, Sample]:
        return (
            offset_sample(subject, draw_random(subject, N_TEXTS, LONG, seed), offset),
            offset_sample(subject, draw_stories(subject, N_TEXTS, LONG, seed), offset),
        )

    chosen = samples(CHOOSE)
    head = best_head(np.minimum(chosen[0].values.mean(0), chosen[1].values.mean(0)))
    kinds = ("random", "story")
    return [at_head(f"{name}, {k}", s, head) for k, s in zip(kinds, samples(MEASURE), strict=True)]


def induction_sample(subject: Subject, size: int, seed: int, repeated: bool = True) -> Sample:
    """Weight on the token after the earlier copy, rows of the second half."""
    half = draw_random(subject, N_TEXTS, size * 2, seed + size)
    body = np.concatenate([half[:, :size]] * 2, axis=1) if repeated else half
    weights, _ = subject.run(subject.wrap(body))
    rows = np.arange(size + 1, 2 * size + 1)
    values = weights[..., rows, rows - size + 1].mean(-1)
    return Sample(values, np.full(N_TEXTS, (1 / (rows + 1)).mean()))


def induction_figures(subject: Subject) -> list[Figure]:
    chosen = [induction_sample(subject, size, CHOOSE).values.mean(0) for size in SIZES]
    head = best_head(np.min(chosen, axis=0))
    figures = []
    for size in SIZES:
        sample = induction_sample(subject, size, MEASURE)
        figures.append(at_head(f"induction, S = {size}", sample, head))
        control = induction_sample(subject, size, MEASURE, repeated=False)
        figures.append(at_head(f"same offset, unrepeated, S = {size}", control, head))
    return figures


def repeat_loss_figures(subject: Subject) -> list[Figure]:
    """Loss in nats predicted from rows of the first and of the second half."""
    figures = []
    chance = float(np.log(len(subject.tokenizer)))
    for size in SIZES:
        half = draw_random(subject, N_TEXTS, size, MEASURE + size)
        ids = subject.wrap(np.concatenate([half, half], axis=1))
        _, logprobs = subject.run(ids)
        loss = -np.take_along_axis(logprobs[:, :-1], ids[:, 1:, None], 2)[..., 0]  # (N, T-1)
        figures.append(
            figure(f"loss, second half, S = {size}", loss[:, size + 1 :].mean(1), chance)
        )
        figures.append(figure(f"loss, first half, S = {size}", loss[:, :size].mean(1), chance))
    return figures


def masked_copy_sample(subject: Subject, size: int, seed: int) -> tuple[Sample, Array]:
    """Weight from a masked token of the second copy to its first copy; accuracy per text."""
    half = draw_random(subject, N_TEXTS, size, seed + size)
    ids = subject.wrap(np.concatenate([half, half], axis=1))
    hidden = ids.copy()
    rng = np.random.default_rng(seed)
    count = max(1, round(0.15 * size))
    rows = np.stack([rng.permutation(np.arange(size + 1, 2 * size + 1))[:count] for _ in ids])
    np.put_along_axis(hidden, rows, subject.tokenizer.mask_token_id, 1)
    weights, logprobs = subject.run(hidden)
    values = np.stack([w[..., r, r - size].mean(-1) for w, r in zip(weights, rows, strict=True)])
    guesses = np.take_along_axis(logprobs.argmax(-1), rows, 1)
    accuracy = (guesses == np.take_along_axis(ids, rows, 1)).mean(1)
    return Sample(values, np.full(N_TEXTS, 1 / ids.shape[1])), accuracy


def masked_copy_figures(subject: Subject) -> list[Figure]:
    chosen = [masked_copy_sample(subject, size, CHOOSE)[0].values.mean(0) for size in SIZES]
    head = best_head(np.min(chosen, axis=0))
    figures = []
    for size in SIZES:
        sample, accuracy = masked_copy_sample(subject, size, MEASURE)
        figures.append(at_head(f"masked copy, S = {size}", sample, head))
        chance = 1 / len(subject.tokenizer)
        figures.append(figure(f"masked copy accuracy, S = {size}", accuracy, chance))
    return figures


def last_token(offsets: list[tuple[int, int]], span: tuple[int, int]) -> int:
    """Last token that overlaps the character span."""
    hits = [k for k, (s, e) in enumerate(offsets) if s < span[1] and e > span[0] and e > s]
    assert hits, span
    return hits[-1]


def coref_weights(subject: Subject, items: list[CorefItem]) -> tuple[Array, Array]:
    """Weights from the pronoun to the right and to the wrong candidate, both (N, L, H)."""
    right, wrong = [], []
    for item in items:
        encoded = subject.tokenizer(item.text, return_offsets_mapping=True)
        row = last_token(encoded["offset_mapping"], item.pronoun)
        keys = [last_token(encoded["offset_mapping"], span) for span in item.candidates]
        weights, _ = subject.run(np.array([encoded["input_ids"]]))
        right.append(weights[0, :, :, row, keys[item.gold]])
        wrong.append(weights[0, :, :, row, keys[1 - item.gold]])
    return np.stack(right), np.stack(wrong)


def coref_figures(subject: Subject, kind: str) -> list[Figure]:
    right, wrong = coref_weights(subject, coref_items(kind, N_ITEMS, CHOOSE))
    head = best_head((right - wrong).mean(0))  # the margin asks for the choice and for mass
    items = coref_items(kind, N_ITEMS, MEASURE)
    right, wrong = coref_weights(subject, items)
    right, wrong = right[:, head[0], head[1]], wrong[:, head[0], head[1]]
    wins = (right > wrong) + 0.5 * (right == wrong)
    far = np.array([item.gold == 0 for item in items])
    return [
        figure(f"{kind} coreference, forced choice", wins, 0.5, head),
        figure(f"{kind} coreference, nearest is wrong", wins[far], 0.5, head),
        figure(f"{kind} coreference, mass", right + wrong, None, head),
    ]


def resting_sample(subject: Subject, sink: str, seed: int) -> Sample:
    """Weight on the first token, the punctuation or the special tokens of stories."""
    ids = subject.wrap(draw_stories(subject, N_TEXTS, LONG, seed))
    weights, _ = subject.run(ids)
    n_tokens = ids.shape[1]
    at = np.arange(n_tokens)[None]
    if sink == "first token":
        keys, rows = np.broadcast_to(at == 0, ids.shape), np.broadcast_to(at >= 1, ids.shape)
    else:
        members = subject.punctuation if sink == "punctuation" else {subject.tokenizer.sep_token_id}
        keys = np.isin(ids, list(members))
        rows = ~keys & ~np.isin(ids, list(subject.special))
    seen = np.tril(np.ones((n_tokens, n_tokens))) if subject.causal else np.ones((n_tokens,) * 2)
    values, chance = [], []
    for w, k, r in zip(weights, keys, rows, strict=True):
        values.append((w * k).sum(-1)[..., r].mean(-1))
        chance.append(((seen * k).sum(-1) / seen.sum(-1))[r].mean())
    return Sample(np.stack(values), np.array(chance))


def resting_figures(subject: Subject) -> list[Figure]:
    sinks = ["first token", "punctuation", *([] if subject.causal else ["[SEP]"])]
    figures = []
    for sink in sinks:
        head = best_head(resting_sample(subject, sink, CHOOSE).values.mean(0))
        figures.append(at_head(f"resting on {sink}", resting_sample(subject, sink, MEASURE), head))
    return figures


def tokens_per_word(subject: Subject) -> Figure:
    counts = [
        len(subject.tokenizer.encode(t, add_special_tokens=False)) / len(t.split())
        for t in ORDINARY
    ]
    return figure("tokens per word, ordinary sentences", np.array(counts))


def measure(folder: Path) -> list[Figure]:
    """Every figure of one checkpoint, in the order of the card."""
    subject = Subject(folder)
    figures = position_figures(subject, "previous token", -1)
    if subject.causal:
        figures += induction_figures(subject) + repeat_loss_figures(subject)
    else:
        figures += position_figures(subject, "next token", 1) + masked_copy_figures(subject)
    for kind in ("gender", "animacy") if subject.causal else ("gender", "animacy", "cause"):
        figures += coref_figures(subject, kind)
    figures += [*resting_figures(subject), tokens_per_word(subject)]
    goals = wanted(folder.name)
    return [judge(f, goals) for f in figures]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", type=Path, nargs="+")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for folder in args.folders:
        figures = measure(folder)
        (folder / "figures.json").write_text(
            json.dumps([asdict(f) for f in figures], indent=2) + "\n"
        )
        (folder / "README.md").write_text(card(folder, figures, N_TEXTS, N_ITEMS))
        for f in figures:
            mark = {None: " ", True: "+", False: "-"}[f.reached]
            print(f"{mark} {f.name:45} {f.head or '':5} {f.value:.3f}  {f.wanted or ''}")


if __name__ == "__main__":
    main()
