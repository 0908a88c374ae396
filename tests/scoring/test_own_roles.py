"""Roles of the user's own: every form, its scores by hand, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import attnscope
from attnscope.api import Capture, Model
from attnscope.attention.cores import Block
from attnscope.attention.visibility import Visibility
from attnscope.errors import UsageError
from attnscope.scoring.estimate import NUMBERS, Scores
from attnscope.scoring.own_roles import function_role, parse_role
from attnscope.scoring.roles import ROLES
from attnscope.types import TokenBatch

TEXTS = ["the chef and the cat or the dog sang", "the cat sang a song , and then she sang ."]
TEXT = TEXTS[0]


@pytest.fixture(scope="module")
def models(checkpoint: Callable[[str], Path]) -> dict[str, Model]:
    names = ("gpt2", "bert", "mistral-window")
    return {name: attnscope.load(str(checkpoint(name))) for name in names}


def same(one: Scores, other: Scores) -> None:
    for name in (*NUMBERS, "n"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)


@pytest.mark.parametrize("name", ["gpt2", "bert", "mistral-window"])
@pytest.mark.parametrize(
    ("steps", "role"),
    [("-1", "previous_token"), ("-2", "second_previous"), ("0", "current_token"),
     ("+1", "next_token")],
)  # fmt: skip
def test_an_offset_is_what_our_own_role_is(
    name: str, steps: str, role: str, models: dict[str, Model]
) -> None:
    result = models[name].heads(TEXTS, battery=False, roles=[f"mine=offset:{steps}"])
    if name != "bert" and steps == "+1":  # no causal model sees what comes
        assert "mine" not in result.scores
        assert result.to_json()["heads"][0]["scores"]["mine"] is None
    else:
        same(result.scores["mine"], result.scores[role])


def test_an_offset_on_the_battery_too(models: dict[str, Model]) -> None:
    result = models["gpt2"].heads(TEXT, roles=["mine=offset:-1", "far=offset:-300"])
    assert result.battery is not None
    same(result.battery["mine"], result.battery["previous_token"])
    assert np.isfinite(result.battery["mine"].bound).all()
    assert (result.battery["far"].n == 0).all()
    assert result.to_json()["heads"][0]["battery"]["far"] is None
    assert result.settings["roles"] == {"mine": "offset:-1", "far": "offset:-300"}


def by_hand(
    captured: Capture, rows: list[int], targets: Callable[[int], list[int]], causal: bool
) -> tuple[np.ndarray, float, int]:
    """raw (L, H), chance and n of one text, row by row."""
    length, total, chance, n = len(captured.tokens), np.zeros((3, 4)), 0.0, 0
    for query in rows:
        seen = [key for key in targets(query) if not causal or key <= query]
        if seen:
            for head, weights in captured.heads():
                total[head.layer, head.head] += float(weights[query, seen].sum())
            chance += len(seen) / (query + 1 if causal else length)
            n += 1
    return total / n, chance / n, n


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_tokens_by_hand(name: str, models: dict[str, Model]) -> None:
    """However the tokenizer writes a space before them; looked at from all other tokens."""
    model = models[name]
    result = model.heads(TEXT, battery=False, roles=["joins=tokens: cat ,the,missing"])
    captured = model.capture(TEXT)
    tokens = captured.tokens.tokens
    keys = [token.index for token in tokens if token.text.strip("· ") in ("cat", "the")]
    assert len(keys) == 4
    rows = [token.index for token in tokens if not token.special and token.index not in keys]
    raw, chance, n = by_hand(captured, rows, lambda query: keys, model.shape.causal)
    found = result.scores["joins"]
    np.testing.assert_allclose(found.raw, raw, atol=1e-6)
    np.testing.assert_allclose(found.chance, chance, atol=1e-6)
    np.testing.assert_allclose(found.lift, (raw - chance) / (1 - chance), atol=1e-5)
    assert (found.n == n).all()


@pytest.mark.parametrize(
    "written",
    [
        "query,key\n5,1\n5,2\n7,0\n2,2\n",
        "5,1\n5,2\n7,0\n2,2",
        "\ufeffquery,key\r\n5,1\r\n\r\n5 , 2\r\n7,0\r\n2,2\r\n2,2\r\n",
        "\ufeff5,1\n5,2\n7,0\n2,2\n",
        '"query","key"\n"5","1"\n5,2\n7,0\n2,2\n',
    ],
    ids=["heading", "none", "bom and blanks", "bom", "quoted"],
)
@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_pairs_by_hand(name: str, written: str, tmp_path: Path, models: dict[str, Model]) -> None:
    path = tmp_path / "pairs, of mine.csv"
    path.write_bytes(written.encode())
    model = models[name]
    result = model.heads(TEXT, battery=False, roles=[f"mine=pairs:{path}"])
    listed = {5: [1, 2], 7: [0], 2: [2]}
    captured = model.capture(TEXT)
    raw, chance, n = by_hand(captured, list(listed), listed.__getitem__, model.shape.causal)
    found = result.scores["mine"]
    assert n == 3
    np.testing.assert_allclose(found.raw, raw, atol=1e-6)
    np.testing.assert_allclose(found.chance, chance, atol=1e-6)
    assert (found.n == 3).all()


def test_pairs_are_of_the_text_and_not_of_the_battery(
    tmp_path: Path, models: dict[str, Model]
) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("5,1\n")
    result = models["gpt2"].heads(TEXT, roles=[f"mine=pairs:{path}"])
    assert result.battery is not None
    assert "mine" not in result.battery
    assert (result.scores["mine"].n == 1).all()
    assert result.to_json()["heads"][0]["battery"]["mine"] is None


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("", "holds no pairs"),
        ("query,key\n", "holds no pairs"),
        ("5,1\n5;2\n", "line 2"),
        ("5,1\nquery,key\n", "line 2"),
        ("5\n", "line 1"),
        ("5,1,1\n", "line 1"),
        ("5,-1\n", "line 1"),
        ("5,1.0\n", "line 1"),
        ("query,key\n5,²\n", "line 2"),
        ("5,1\n5,99\n", "99"),
        ("5,1\n12,0\n", "tokens 0-11"),
    ],
)
def test_bad_pairs_are_told(
    written: str, told: str, tmp_path: Path, models: dict[str, Model]
) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text(written, encoding="utf-8")
    model = models["gpt2"]
    assert len(model.reader.read(TEXT)) == 12
    with pytest.raises(UsageError, match=told) as caught:
        model.heads(TEXT, battery=False, roles=[f"mine=pairs:{path}"])
    assert "pairs.csv" in str(caught.value)


def test_places_that_hold_no_pairs(tmp_path: Path, models: dict[str, Model]) -> None:
    with pytest.raises(UsageError, match="There is no file"):
        parse_role(f"mine=pairs:{tmp_path / 'nothing.csv'}", None)
    (tmp_path / "latin.csv").write_bytes(b"5,1\n\xe9")
    with pytest.raises(UsageError, match="not UTF-8"):
        parse_role(f"mine=pairs:{tmp_path / 'latin.csv'}", None)
    (tmp_path / "pairs.csv").write_text("5,1\n")
    for battery in (True, False):
        with pytest.raises(UsageError, match="one text"):
            models["gpt2"].heads(
                TEXTS, battery=battery, roles=[f"a=pairs:{tmp_path / 'pairs.csv'}"]
            )


@pytest.mark.parametrize(
    ("role", "told"),
    [
        ("", "Cannot read the role"),
        ("mine", "Cannot read the role"),
        ("mine=", "Cannot read the role"),
        ("mine=offset", "Cannot read the role"),
        ("mine=ofset:-1", "Did you mean 'offset'"),
        ("mine=offset:", "whole number"),
        ("mine=offset:1.5", "whole number"),
        ("mine=offset:back", "whole number"),
        ("mine=tokens:", "takes the tokens"),
        ("mine=tokens:,,", "takes the tokens"),
        ("=offset:-1", "Cannot call a role"),
        ("1st=offset:-1", "Cannot call a role"),
        ("my role=offset:-1", "Cannot call a role"),
        ("x" * 41 + "=offset:-1", "Cannot call a role"),
        ("[red]=offset:-1", "Cannot call a role"),
        *((f"{name}=offset:-1", "is a role already") for name in ROLES),
        ("entropy=offset:-1", "is a role already"),
        ("resting=offset:-1", "is a role already"),
    ],
)
def test_what_is_no_role(role: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_role(role, None)
    assert told in str(caught.value)


def test_names_of_ours_and_twice(models: dict[str, Model]) -> None:
    with pytest.raises(UsageError, match="Two roles are called mine"):
        models["gpt2"].heads(TEXT, battery=False, roles=["mine=offset:-1", "mine=offset:-2"])


# In Python


def _rows(batch: TokenBatch) -> Tensor:
    return batch.valid & (torch.arange(batch.ids.shape[1]) >= 2)


def _chance(batch: TokenBatch) -> Tensor:
    return 1 / (torch.arange(batch.ids.shape[1]) + 1.0).expand(batch.ids.shape)


def _previous(block: Block, seen: Visibility) -> Tensor:
    query = torch.arange(block.start, block.stop)
    column = (query - 1 - block.low).clamp(min=0)
    return block.weights[:, :, torch.arange(len(query)), column]  # (B, H, t)


@pytest.mark.parametrize("rows", [None, 1, 4])
def test_a_function_of_a_block_is_what_our_own_role_is(
    rows: int | None, models: dict[str, Model]
) -> None:
    model = models["gpt2"]
    role = function_role("mine", _previous, chance=_chance, rows=_rows)
    model.set_block_rows(rows)
    result = model.heads(TEXTS, battery=False, roles=[role])
    model.set_block_rows(None)
    for number in ("raw", "chance", "lift", "low", "high", "n"):
        np.testing.assert_allclose(
            getattr(result.scores["mine"], number),
            getattr(result.scores["previous_token"], number), atol=1e-6,
        )  # fmt: skip
    assert result.settings["roles"] == {"mine": None}


def test_a_function_alone_has_no_chance_and_all_rows(models: dict[str, Model]) -> None:
    role = function_role("most", lambda block, seen: block.weights.amax(-1))
    result = models["bert"].heads(TEXT, battery=False, roles=[role])
    captured = models["bert"].capture(TEXT)
    special = torch.tensor([token.special for token in captured.tokens.tokens])
    for head, weights in captured.heads():
        expected = float(weights.amax(-1)[~special].mean())
        assert result.scores["most"].raw[head.layer, head.head] == pytest.approx(expected, abs=1e-6)
    assert (result.scores["most"].chance == 0).all()
    assert np.isnan(result.scores["most"].sink_free).all()  # not a share of targets
