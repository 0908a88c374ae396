"""Keeping transformers and the hub library from talking where only attnscope should."""

from __future__ import annotations

import logging
import os
import warnings


def quiet_transformers() -> None:
    """Silence their notes and progress bars; what went wrong still arrives as an exception."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    logging.getLogger("huggingface_hub").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module=r"transformers\..*")
