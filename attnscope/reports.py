"""Reports that need no model to be loaded: `attnscope.compare(...)`, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnscope.experiments import compare as compare_experiment
from attnscope.experiments import compare_result


class CompareResult(compare_result.CompareResult):
    """Bytes and FLOPs of each variant: `to_frame()`, `to_json()`, and a picture."""

    def plot(self, path: str | Path) -> Path:
        """Draw the cache against the context, or bars for several models: .png, .svg or .pdf.

        Of a converted model, the damage against the memory.
        """
        if self.conversion is not None:
            from attnscope.render.damage import draw_damage

            draw_damage(Path(path), self)
            return Path(path)
        from attnscope.render.memory import draw_compare

        draw_compare(Path(path), self)
        return Path(path)


def compare(*names: str, **options: Any) -> CompareResult:
    """A model beside its MHA, GQA and MQA twins, by names as `attnscope compare` lists them.

    Options, as on the command line: `model` (a checkpoint, of which only the config is read),
    `config` (a config.json), `revision`; `kv_heads` of the twins (8, "8,4,1" or a list), `context`
    (8192, "4k,32k" or a list), `batch`, `dtype` of the cache (float32, bfloat16, float16, fp8,
    int8, int4), `weights_dtype`, `group_size` (numbers that share a scale), `page_size` (tokens),
    `sliding` (full or window), `memory` ("24GiB" or bytes), `progress`. Raises UsageError for
    amounts that make no sense, CheckpointError for a config that cannot be read.
    """
    return CompareResult(**vars(compare_experiment.compare(*names, **options)))
