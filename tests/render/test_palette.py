"""The colours can be told apart, and weights keep their order in them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from attnscope.render.palette import (
    LABELS,
    SHADES,
    UNCLASSIFIED,
    color,
    faded,
    in_order,
    ink,
    pooled,
    scale_top,
    shade,
    shade_256,
)

# Machado, Oliveira and Fernandes 2009, severity 1, in linear light.
VISION = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ]
    ),
}
TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def linear(colour: str) -> NDArray[np.floating]:
    parts = np.array([int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def oklab(light: NDArray[np.floating]) -> NDArray[np.floating]:
    return TO_LAB @ np.cbrt(TO_LMS @ np.clip(light, 0, 1))


def lightness(colour: str) -> float:
    return float(oklab(linear(colour))[0])


def contrast(one: str, other: str) -> float:
    bright = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (bright[1] + 0.05) / (bright[0] + 0.05)


@pytest.mark.parametrize("vision", VISION)
def test_any_two_labels_can_be_told_apart(vision: str) -> None:
    seen = {label: oklab(VISION[vision] @ linear(color(label))) for label in LABELS[:-1]}
    near = {
        pair: np.linalg.norm(seen[pair[0]] - seen[pair[1]])
        for pair in itertools.combinations(seen, 2)
    }
    assert min(near.values()) > 0.08, min(near, key=near.__getitem__)


@pytest.mark.parametrize("label", LABELS)
def test_labels_can_be_read_on_a_white_and_on_a_black_terminal(label: str) -> None:
    assert contrast(color(label), "#FFFFFF") > 2
    assert contrast(color(label), "#000000") > 2


def test_the_labels_are_those_of_the_interface_and_two_letters_name_each() -> None:
    place = "previous-token next-token local current-token"
    copying = "duplicate-token induction shifted-induction anti-induction"
    assert list(LABELS) == f"{place} {copying} coreference resting broad unclassified".split()
    assert len({label[:2] for label in LABELS}) == len(LABELS)


def test_labels_of_the_user_have_a_colour_and_a_place_of_their_own() -> None:
    assert color("every-and") == color("mine")
    assert color("mine") not in {color(label) for label in LABELS}
    found = in_order(["unclassified", "mine", "broad", "every-and", "broad", "induction"])
    assert found == ["induction", "broad", "every-and", "mine", "unclassified"]


def test_a_low_score_is_paler_and_unclassified_palest() -> None:
    for label in LABELS[:-1]:
        steps = [lightness(faded(label, score)) for score in (1.0, 0.7, 0.4, 0.0)]
        assert steps == sorted(set(steps))
        assert faded(label, 1.0) == color(label)
        assert max(steps) < lightness(faded(UNCLASSIFIED, 0.3))
    assert faded(UNCLASSIFIED, 0.0) == faded(UNCLASSIFIED, 1.0)


def test_shades_run_from_white_to_dark_in_steps_even_to_the_eye() -> None:
    steps = np.array([lightness(colour) for colour in SHADES[::17]])
    assert SHADES[0] == "#FFFFFF"
    np.testing.assert_allclose(np.diff(steps), np.diff(steps).mean(), atol=0.006)
    assert steps[-1] < 0.3


def test_a_terminal_of_256_colours_never_shows_a_greater_weight_lighter() -> None:
    def grey(number: int) -> float:
        if number >= 232:
            return lightness("#" + f"{8 + 10 * (number - 232):02X}" * 3)
        cube = [number - 16 >= 0 and (number - 16) // 6**power % 6 for power in (2, 1, 0)]
        return lightness("#" + "".join(f"{part and 55 + 40 * part:02X}" for part in cube))

    steps = [grey(shade_256(weight)) for weight in np.linspace(0, 1, 101)]
    assert steps[0] == lightness("#FFFFFF")
    assert all(later <= earlier for earlier, later in itertools.pairwise(steps))
    assert len(set(steps)) >= 10


@given(st.floats(-1, 2), st.sampled_from([0.1, 0.2, 0.5, 1.0]))
def test_letters_on_any_shade_can_be_read(weight: float, top: float) -> None:
    assert contrast(ink(shade(weight, top)), shade(weight, top)) >= 4.5


def test_the_scale_fits_most_rows() -> None:
    sharp, spread = np.eye(30), np.full((30, 30), 1 / 30)
    assert scale_top(sharp) == 1.0
    assert scale_top(spread) == 0.1
    spread[0] = sharp[0]  # the first row of a causal model
    assert scale_top(spread) == 0.1
    assert scale_top(np.stack([spread, sharp])) == 1.0


@given(st.integers(1, 50), st.integers(1, 50), st.integers(1, 20), st.integers(1, 20), st.data())
def test_pooling_loses_no_peak(
    n_rows: int, n_columns: int, rows: int, columns: int, data: st.DataObject
) -> None:
    row, column = data.draw(st.integers(0, n_rows - 1)), data.draw(st.integers(0, n_columns - 1))
    weights = np.zeros((n_rows, n_columns))
    weights[row, column] = 1
    small = pooled(weights, rows, columns)
    assert small.shape == (min(rows, n_rows), min(columns, n_columns))
    ((at_row, at_column),) = np.argwhere(small == 1)
    assert at_row == pytest.approx(row * small.shape[0] / n_rows, abs=1)
    assert at_column == pytest.approx(column * small.shape[1] / n_columns, abs=1)
