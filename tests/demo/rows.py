"""Training rows: repeated random tokens and stories, as token ids and labels."""

from __future__ import annotations

import math
import random

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from tests.demo.language import PRONOUNS, story, story_words
from tests.demo.vocabulary import MAX_LENGTH

IGNORE = -100
LONGEST_REPEAT = 63
OVER = 0.3  # share of random rows that say one block over and over


class Rows:
    """Training rows as token ids and labels; predicted positions carry a label, others IGNORE."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        self.rng = random.Random(seed)
        self.numpy_rng = np.random.default_rng(seed)
        self.mask = tokenizer.mask_token_id
        self.first = tokenizer.cls_token_id if self.mask is not None else tokenizer.bos_token_id
        self.last = tokenizer.sep_token_id
        special = set(tokenizer.all_special_ids)
        self.ids = np.array([i for i in range(len(tokenizer)) if i not in special])
        self.word_ids: dict[str, int] = {}
        for word in [*story_words(), *(p.capitalize() for p in PRONOUNS)]:
            encoded = tokenizer.encode(word, add_special_tokens=False)
            if word in ",.":
                encoded = [tokenizer.convert_tokens_to_ids(word)]
            assert len(encoded) == 1, word
            self.word_ids[word] = encoded[0]

    def repeats(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Blocks of distinct random tokens, each repeated; `source` is an earlier copy or -1.

        Sizes are log-uniform: short blocks start the copying, long ones keep it from learning a
        fixed offset. Some rows say one block over and over, which gives a dense signal.
        """
        ids = self.numpy_rng.permutation(self.ids)[:length]
        source = np.full(length, -1)
        over_and_over = self.rng.random() < OVER
        blocks: list[tuple[int, int]] = []
        free = length
        while free >= 4:
            longest = min(LONGEST_REPEAT, free // 2)
            size = int(math.exp(self.rng.uniform(math.log(2), math.log(longest + 1))))
            copies = free // size if over_and_over else 2
            blocks.append((size, copies))
            free -= size * copies
        self.rng.shuffle(blocks)
        at = self.rng.randint(0, free)
        for size, copies in blocks:
            end = at + size * copies
            ids[at:end] = np.tile(ids[at : at + size], copies)
            source[at + size : end] = np.arange(at, end - size)
            at = end
        return ids, source

    def causal_random(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Only tokens inside a later copy can be known."""
        body, source = self.repeats(length - 1)
        known = (source >= 0) & (np.diff(source, prepend=-2) == 1)
        ids = np.concatenate([[self.first], body])
        return ids, np.where(np.concatenate([[False], known]), ids, IGNORE)

    def causal_story(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        pieces = story(self.rng, length - 1)[: length - 1]
        ids = np.array([self.first, *(self.word_ids[p.text] for p in pieces)])
        return ids, ids

    def masked_random(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        body, source = self.repeats(length - 2)
        copied = np.zeros(length - 2, dtype=bool)
        copied[source[source >= 0]] = True
        copied |= source >= 0
        chosen = copied & (self.numpy_rng.random(length - 2) < 0.3)
        # Keep one neighbouring copy to look at.
        chosen &= ~((source >= 0) & chosen[source])
        ids = np.concatenate([[self.first], body, [self.last]])
        chosen = np.concatenate([[False], chosen, [False]])
        return np.where(chosen, self.mask, ids), np.where(chosen, ids, IGNORE)

    def masked_story(self, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Masked words, and pronouns whose label is the word they stand for."""
        pieces = story(self.rng, length - 2)[: length - 2]
        ids = np.array([self.first, *(self.word_ids[p.text] for p in pieces), self.last])
        draw = self.numpy_rng.random(length)
        labels = np.full(length, IGNORE)
        hidden = ids.copy()
        for k, piece in enumerate(pieces, start=1):
            after_pronoun = k > 1 and pieces[k - 2].antecedent is not None
            if piece.antecedent is not None and draw[k] < 0.85:
                labels[k] = self.word_ids[piece.antecedent]
            elif draw[k] < (0.4 if after_pronoun else 0.15):
                labels[k] = ids[k]
                hidden[k] = self.mask
            elif draw[k] > 0.985:
                labels[k] = ids[k]
                if draw[k] > 0.9925:
                    hidden[k] = self.numpy_rng.choice(self.ids)
        return hidden, labels

    def batch(self, n_rows: int, random_share: float) -> tuple[Tensor, Tensor, int]:
        """Input ids and labels, both (B, T), and how many of the first rows are random.

        Half of the batches have more and shorter rows: with few people a look-up is easy to find.
        """
        length = MAX_LENGTH
        if self.rng.random() < 0.5:
            length = self.rng.randint(MAX_LENGTH // 6, MAX_LENGTH // 2)
            n_rows = min(2 * n_rows, n_rows * MAX_LENGTH // length)
        n_random = round(random_share * n_rows)
        causal = self.mask is None
        from_random = self.causal_random if causal else self.masked_random
        from_story = self.causal_story if causal else self.masked_story
        rows = [(from_random if k < n_random else from_story)(length) for k in range(n_rows)]
        ids, labels = (torch.from_numpy(np.stack(part)) for part in zip(*rows, strict=True))
        return ids, labels, n_random
