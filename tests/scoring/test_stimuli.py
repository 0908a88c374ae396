"""Repeated random tokens: what they are made of, and what may shorten them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import attnscope
from attnscope.api import Model
from attnscope.attention.probes import Pairs
from attnscope.attention.visibility import Visibility
from attnscope.errors import CheckpointError
from attnscope.scoring.stimuli import CONTROLS, LENGTH, SEQUENCES, repeated_tokens
from tests import tiny


@pytest.fixture(scope="module")
def models(checkpoint: Callable[[str], Path]) -> dict[str, Model]:
    names = ("llama-mqa", "bert", "mistral-window")
    return {name: attnscope.load(str(checkpoint(name))) for name in names}


def halves(model: Model, **options: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """First and second half of each text (N, S), and where the first one starts."""
    made = repeated_tokens(model, **options)
    start, size = made.start, made.length
    ids = made.batch.ids
    return ids[:, start : start + size], ids[:, start + size : start + 2 * size], start


def test_each_text_says_its_tokens_twice_and_each_control_once(models: dict[str, Model]) -> None:
    first, second, _ = halves(models["llama-mqa"])
    assert first.shape == (SEQUENCES + CONTROLS, LENGTH)
    assert torch.equal(first[:SEQUENCES], second[:SEQUENCES])
    for text in range(SEQUENCES):
        assert len(set(first[text].tolist())) == LENGTH
    for text in range(SEQUENCES, SEQUENCES + CONTROLS):
        assert len({*first[text].tolist(), *second[text].tolist()}) == 2 * LENGTH
    assert len({tuple(row.tolist()) for row in first}) == SEQUENCES + CONTROLS


@pytest.mark.parametrize(
    ("name", "before", "after"), [("llama-mqa", ["<s>"], []), ("bert", ["[CLS]"], ["[SEP]"])]
)
def test_wrapping(name: str, before: list[str], after: list[str], models: dict[str, Model]) -> None:
    model = models[name]
    made = repeated_tokens(model)
    read = model.reader.from_ids(made.batch.ids[0].tolist())
    texts = [token.text for token in read.tokens]
    assert texts[: len(before)] == before
    assert texts[made.start + 2 * made.length :] == after
    assert made.bos == before[0]
    assert made.batch.special[0].tolist() == [token.special for token in read.tokens]
    assert made.batch.special.sum() == len(made.batch) * (len(before) + len(after))
    assert made.batch.valid.all()


def test_no_bos_when_told_not_to(checkpoint: Callable[[str], Path]) -> None:
    model = attnscope.load(str(checkpoint("llama-mqa")), add_bos=False)
    made = repeated_tokens(model)
    assert made.bos is None
    assert made.start == 0


@pytest.mark.parametrize("name", ["llama-mqa", "bert"])
def test_ids_are_ordinary_ones_of_the_middle(name: str, models: dict[str, Model]) -> None:
    model = models[name]
    first, second, _ = halves(model)
    drawn = torch.cat([first, second]).flatten()
    assert drawn.min() >= tiny.VOCABULARY // 4
    assert drawn.max() < tiny.VOCABULARY - tiny.VOCABULARY // 4
    added = {*model.tokenizer.all_special_ids, *model.tokenizer.added_tokens_decoder}
    assert not added & set(drawn.tolist())


def test_the_seed_decides(models: dict[str, Model]) -> None:
    model = models["llama-mqa"]
    first, _, _ = halves(model, seed=1)
    again, _, _ = halves(model, seed=1)
    other, _, _ = halves(model, seed=2)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_probes_ask_the_second_half_only_and_always_of_what_is_there(
    models: dict[str, Model],
) -> None:
    made = repeated_tokens(models["llama-mqa"])
    seen = Visibility(made.batch.valid, causal=True)
    second = list(range(made.start + made.length, made.start + 2 * made.length))
    probes = made.probes(made.batch)
    assert set(probes) == {"induction", "duplicate_token"}
    for name, ahead in (("induction", 1), ("duplicate_token", 0)):
        probe = probes[name]
        assert isinstance(probe, Pairs)
        for text in range(len(made.batch)):
            assert probe.targets(seen)[text].nonzero().flatten().tolist() == second
        assert (probe.key == probe.query - made.length + ahead).all()
        for text in range(made.sequences):
            ids, mine = made.batch.ids[text], probe.batch == text
            assert torch.equal(ids[probe.key[mine] - ahead], ids[probe.query[mine]])


def test_a_part_of_the_batch_is_asked_the_same(models: dict[str, Model]) -> None:
    made = repeated_tokens(models["bert"])
    part = made.batch.rows(3, 8)
    for name, whole in made.probes(made.batch).items():
        probe = made.probes(part)[name]
        assert isinstance(probe, Pairs)
        assert isinstance(whole, Pairs)
        assert probe.rows.shape == part.ids.shape
        mine = (whole.batch >= 3) & (whole.batch < 8)
        assert torch.equal(probe.batch + 3, whole.batch[mine])
        assert torch.equal(probe.query, whole.query[mine])
        assert torch.equal(probe.key, whole.key[mine])


def test_windows_and_positions_shorten(models: dict[str, Model], tmp_path: Path) -> None:
    made = repeated_tokens(models["mistral-window"])  # window 8: BOS and twice three
    assert (made.length, made.shortened_from) == (3, LENGTH)
    config = tiny.CONFIGS["gpt2"]()
    config.n_positions = 32
    model = attnscope.load(str(tiny.save(config, tmp_path)))
    made = repeated_tokens(model)
    assert (made.length, made.shortened_from) == (15, LENGTH)
    assert made.batch.ids.shape[1] <= 32
    result = model.heads("the cat sang a song")
    assert any("50 to 15" in note for note in result.notes)
    config.n_positions = 4
    (tmp_path / "few").mkdir()
    few = attnscope.load(
        str(tiny.save(config, tmp_path / "few")), ids=lambda _: torch.ones(1, 4).long()
    )
    with pytest.raises(CheckpointError, match="too small"):
        repeated_tokens(few)
