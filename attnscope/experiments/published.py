"""What others measured when key/value heads were shared: good and bad, each with its source."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Report:
    """One line of a published comparison. Scores are per cent; more is better."""

    what: str
    mha: float
    gqa: float
    mqa: float
    source: str
    paper: str

    def to_json(self) -> dict[str, Any]:
        """As it stands in the document."""
        return asdict(self)


_AINSLIE = ("Ainslie et al. 2023, table 1", "arXiv 2305.13245")
_TOUVRON = ("Touvron et al. 2023, table 18", "arXiv 2307.09288")
_DEEPSEEK = ("DeepSeek-AI 2024, table 8", "arXiv 2405.04434")

PUBLISHED = (
    Report("T5-XXL, seven tasks", 47.2, 47.1, 46.6, *_AINSLIE),
    Report("30B, TriviaQA", 44.7, 46.2, 42.8, *_TOUVRON),
    Report("30B, MMLU", 28.0, 26.9, 26.5, *_TOUVRON),
    Report("7B, MMLU", 45.2, 41.2, 37.9, *_DEEPSEEK),
    Report("7B, BBH", 37.0, 35.6, 33.2, *_DEEPSEEK),
)

CAUTION = (
    "Quality is not computed here, and what others measured differs. T5-XXL was converted, and "
    "trained further with 5 % of its pre-training compute; the 30B and 7B models were trained so "
    "from the start, with about as many parameters. None of it says what your model would lose."
)
