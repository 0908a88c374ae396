"""verify: our forward against transformers' own eager attention, layer by layer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import attnscope
from attnscope.models.load import Model
from attnscope.models.proof import Parity

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class VerifyResult:
    """What the proof measured, and whether it holds."""

    model: dict[str, Any]
    settings: dict[str, Any]
    parity: Parity

    @property
    def ok(self) -> bool:
        """Is everything within tolerance?"""
        return self.parity.failure is None

    def to_frame(self) -> DataFrame:
        """One row per layer."""
        from pandas import DataFrame

        return DataFrame([asdict(layer) for layer in self.parity.layers])

    def to_json(self) -> dict[str, Any]:
        """The `attnscope.verify/1` document."""
        return {
            "schema": "attnscope.verify/1",
            "attnscope": attnscope.__version__,
            "model": self.model,
            "settings": self.settings,
            "ok": self.ok,
            "tolerance": self.parity.tolerance,
            "layers": [asdict(layer) for layer in self.parity.layers],
            "max_abs_hidden": self.parity.max_abs_hidden,
            "max_abs_logits": self.parity.max_abs_logits,
        }


def verify(model: Model, seed: int = 0) -> VerifyResult:
    """The result of the proof that the model was loaded with."""
    settings = {**model.settings(seed), "tokens": model.parity.n_tokens}
    return VerifyResult(model.describe(), settings, model.parity)
