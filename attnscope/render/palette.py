"""The colours: one hue per label, one scale for weights, the same in tables, figures and page.

The label hues were searched for, not picked: in normal vision and in simulated protanopia,
deuteranopia and tritanopia (Machado et al. 2009) any two stay 0.085 apart in OKLab; each keeps
a contrast of 2 or more on a white and on a black terminal. Related labels are near in hue.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

UNCLASSIFIED = "unclassified"

_HUES = {
    "previous-token": "#1D559F",
    "next-token": "#23BAF9",
    "local": "#289149",
    "current-token": "#9A72EC",
    "duplicate-token": "#C782B0",
    "induction": "#F93213",
    "shifted-induction": "#FC9107",
    "anti-induction": "#A51029",
    "coreference": "#9E25D3",
    "resting": "#6F6E84",
    "broad": "#8EBB7F",
    UNCLASSIFIED: "#A0A0A0",
}

LABELS: tuple[str, ...] = tuple(_HUES)
_OWN = "#808000"

_PALEST = 0.3  # how much of its hue a label keeps at score 0
_STEPS = 256

# Where each lies on the scale by its lightness. Rounding the shades themselves turns some green.
_BLUES_256 = (
    (0.0, 231),
    (0.07, 255),
    (0.15, 189),
    (0.19, 153),
    (0.34, 111),
    (0.48, 69),
    (0.55, 32),
    (0.67, 26),
    (0.72, 25),
    (0.92, 19),
    (1.0, 18),
)


def color(label: str) -> str:
    """The hue of a label, as `#RRGGBB`; labels that a user named share one."""
    return _HUES.get(label, _OWN)


def in_order(labels: Iterable[str]) -> list[str]:
    """These labels, once each, as the table of labels has them; a user's before unclassified."""
    known = dict.fromkeys(LABELS[:-1])
    found = dict.fromkeys(labels)
    own = sorted(label for label in found if label not in LABELS)
    return [label for label in (*known, *own, UNCLASSIFIED) if label in found]


def faded(label: str, score: float) -> str:
    """The label's hue, paler the lower the score (0 to 1); unclassified is always pale grey."""
    if label == UNCLASSIFIED:
        return "#ECECEC"
    kept = _PALEST + (1 - _PALEST) * min(max(score, 0.0), 1.0)
    return _hex(tuple(1 - kept * (1 - part) for part in _parts(color(label))))


def ink(background: str) -> str:
    """Black or white, whichever reads better on this background."""
    red, green, blue = (_linear(part) for part in _parts(background))
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#FFFFFF" if 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 else "#000000"


def shade(weight: float, top: float = 1.0) -> str:
    """The colour of a weight: white at 0, darkest at `top` and above, even to the eye between."""
    return SHADES[min(max(int(weight / top * _STEPS), 0), _STEPS - 1)]


def shade_256(weight: float, top: float = 1.0) -> int:
    """The same scale on a terminal of 256 colours: the number of the nearest of its few blues."""
    at = min(max(weight / top, 0.0), 1.0)
    return min(_BLUES_256, key=lambda blue: abs(blue[0] - at))[1]


def scale_top(weights: NDArray[np.floating]) -> float:
    """The weight that is drawn darkest: 0.1, 0.2, 0.5 or 1, whichever nine rows in ten stay below.

    Rows of long texts spread so thin that nothing would be seen on a scale up to 1. The few rows
    above it (the first of a causal model read one or two keys) are drawn as dark as the top.
    """
    import numpy as np

    usual = float(np.quantile(weights.max(axis=-1), 0.9))
    return next((top for top in (0.1, 0.2, 0.5) if usual <= top), 1.0)


def pooled(weights: NDArray[np.floating], rows: int, columns: int) -> NDArray[np.floating]:
    """(T, S) reduced to at most (rows, columns), each cell the greatest weight it stands for."""
    import numpy as np

    n_rows, n_columns = min(rows, weights.shape[0]), min(columns, weights.shape[1])
    tops = np.arange(n_rows) * weights.shape[0] // n_rows
    lefts = np.arange(n_columns) * weights.shape[1] // n_columns
    across: NDArray[np.floating] = np.maximum.reduceat(weights, lefts, axis=1)
    down: NDArray[np.floating] = np.maximum.reduceat(across, tops, axis=0)
    return down


def _parts(colour: str) -> tuple[float, float, float]:
    return (
        int(colour[1:3], 16) / 255,
        int(colour[3:5], 16) / 255,
        int(colour[5:7], 16) / 255,
    )


def _hex(parts: tuple[float, ...]) -> str:
    return "#" + "".join(f"{round(min(max(part, 0.0), 1.0) * 255):02X}" for part in parts)


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else float(((part + 0.055) / 1.055) ** 2.4)


def _from_oklab(lightness: float, chroma: float, hue: float) -> str:
    """OKLab (Ottosson 2020) to sRGB."""
    a, b = chroma * math.cos(hue), chroma * math.sin(hue)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return _hex(
        tuple(
            12.92 * part if part <= 0.0031308 else 1.055 * part ** (1 / 2.4) - 0.055
            for part in linear
        )
    )


def _shades() -> tuple[str, ...]:
    """White to navy: lightness falls in equal steps, the blue is fullest past the middle."""
    steps = (step / (_STEPS - 1) for step in range(_STEPS))
    return tuple(
        _from_oklab(1 - 0.72 * at, 0.15 * math.sin(0.8 * math.pi * at**1.15), math.radians(258))
        for at in steps
    )


SHADES: tuple[str, ...] = _shades()
