"""attnscope: see what the attention heads of a pretrained model do."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from attnscope.api import Model, load
    from attnscope.reports import compare

__all__ = ["Model", "__version__", "compare", "load"]


def __getattr__(name: str) -> object:
    """Import the library only when it is used, so that the command line starts at once."""
    if name in ("load", "Model"):
        from attnscope import api

        return getattr(api, name)
    if name == "compare":
        from attnscope import reports

        return reports.compare
    raise AttributeError(f"module 'attnscope' has no attribute {name!r}")
