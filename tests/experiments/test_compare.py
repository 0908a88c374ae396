"""compare: which variants stand beside a model, and what the rows of a document say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import attnscope
from attnscope.errors import UsageError
from attnscope.experiments.compare import CompareResult, compare
from attnscope.experiments.known import known_shapes as known_models
from attnscope.models.shapes import known_shape
from attnscope.render.compare import compare_table

KEYS = {
    *("model", "variant", "n_layers", "n_heads", "n_kv_heads", "d_head", "dtype", "batch"),
    *("context", "kv_bytes_per_token", "kv_bytes", "kv_bytes_allocated", "ratio_to_mha"),
    *("attention_parameters", "attention_flops_per_token", "decode_flops_per_byte"),
}


def variants(result: CompareResult) -> list[tuple[str, int | None, bool]]:
    return [(row.variant, row.n_kv_heads, row.as_is) for row in result.rows]


def test_without_arguments_it_is_the_classic_example() -> None:
    result = compare()
    assert variants(result) == [("MHA", 32, False), ("GQA", 8, True), ("MQA", 1, False)]
    assert [row.kv_bytes for row in result.rows] == [4 * 2**30, 2**30, 2**27]
    assert [row.ratio_to_mha for row in result.rows] == [1, 0.25, 0.03125]
    assert [row.decode_flops_per_byte for row in result.rows] == [1, 4, 32]
    assert [row.attention_bytes for row in result.rows] == [2**32, 2_684_354_560, 2_214_592_512]


def test_weights_are_those_of_each_twin_and_are_taken_off() -> None:
    mha, gqa, _ = compare(memory="24GiB").rows
    assert gqa.weights_bytes == 2 * 8_030_261_248
    assert mha.weights_bytes == gqa.weights_bytes + mha.attention_bytes - gqa.attention_bytes
    for row in (mha, gqa):
        assert row.weights_bytes is not None
        room = 24 * 2**30 - row.weights_bytes
        assert row.longest_context == room // (16 * row.kv_bytes_per_token) * 16
        assert row.largest_batch == room // row.kv_bytes_allocated


def test_what_is_not_known_of_the_weights_is_not_taken_off() -> None:
    row = compare("gemma-3-27b").rows[1]
    assert row.as_is
    assert row.weights_bytes is None
    assert row.longest_context == 24 * 2**30 // (16 * row.kv_bytes_per_token) * 16


def test_weights_that_fill_the_memory_leave_no_room() -> None:
    row = compare("llama-3-70b").rows[1]
    assert (row.longest_context, row.largest_batch) == (0, 0)


@pytest.mark.parametrize(
    ("name", "kv_heads", "wanted"),
    [
        ("gpt2", None, [("MHA", 12, True), ("GQA", 3, False), ("MQA", 1, False)]),
        ("gemma-2b", None, [("MHA", 8, False), ("GQA", 2, False), ("MQA", 1, True)]),
        ("gpt2-xl", None, [("MHA", 25, True), ("GQA", 5, False), ("MQA", 1, False)]),
        (
            "deepseek-v2-lite",
            None,
            [("MHA", 16, False), ("GQA", 4, False), ("MQA", 1, False), ("MLA", None, True)],
        ),
        ("llama-3-8b", "4,4", [("MHA", 32, False), ("GQA", 8, True), ("GQA", 4, False)]),
        ("llama-3-8b", [32, 8], [("MHA", 32, False), ("GQA", 8, True)]),
    ],
)
def test_twins(
    name: str, kv_heads: str | list[int] | None, wanted: list[tuple[str, int | None, bool]]
) -> None:
    assert variants(compare(name, kv_heads=kv_heads)) == wanted


def test_one_number_of_heads_may_stand_alone() -> None:
    assert compare("gpt2", kv_heads=3).rows == compare("gpt2", kv_heads="3").rows


def test_latent_attention_has_no_key_value_heads_anywhere() -> None:
    document = compare("deepseek-v3").to_json()
    assert document["model"]["n_kv_heads"] is document["rows"][-1]["n_kv_heads"] is None
    listed = {shape["name"]: shape for shape in known_models().to_json()["shapes"]}
    assert listed["deepseek-v3"]["n_kv_heads"] is None
    assert listed["bert-base"]["encoder"]
    assert not listed["gpt2"]["encoder"]


def test_defaults_that_a_config_left_open_are_said(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "hidden_size": 512}))
    result = compare(config=path)
    (note,) = result.to_json()["notes"]
    assert "leaves out num_hidden_layers, num_attention_heads: taken are the defaults" in note
    assert note in " ".join(compare_table(result, 200).plain.split("\n"))
    assert compare().to_json()["notes"] == []


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("llama-3-8b",), "Both in pages, in 24.00 GiB beside the weights"),
        (("gemma-3-27b",), "Both in pages, in 24.00 GiB; activations"),
        (("deepseek-v3",), "keys of 192 and values of 128 a head). Keys and values of its twins"),
    ],
)
def test_the_legend_says_what_the_numbers_count(names: tuple[str, ...], told: str) -> None:
    assert told in compare_table(compare(*names), 1000).plain


def test_several_models_stand_as_they_are() -> None:
    result = compare("gpt2", "llama-2-7b", "gpt2", model="meta-llama/Meta-Llama-3-8B")
    assert [row.model for row in result.rows] == ["gpt2", "llama-2-7b", "llama-3-8b"]
    assert all(row.as_is for row in result.rows)
    assert {row.context for row in result.rows} == {1024}  # what the least of them was made for
    assert result.to_json()["model"] is None
    both = compare("gpt2", "llama-2-7b", kv_heads="1")
    assert [row.variant for row in both.rows] == ["MHA", "MQA"] * 2


def test_every_context_has_its_rows() -> None:
    result = compare("gemma-3-1b", context="4k,32k", batch=3)
    assert [row.context for row in result.rows] == [4096] * 3 + [32768] * 3
    model = [row for row in result.rows if row.as_is]
    assert model[1].kv_bytes == 3 * 145_752_064


def test_the_document_has_the_agreed_keys() -> None:
    document = compare(context="1e12").to_json()
    assert document["schema"] == "attnscope.compare/1"
    assert document["conversion"] is None
    assert {"attnscope", "model", "settings", "rows"} <= set(document)
    for row in document["rows"]:
        assert set(row) >= KEYS
    assert document["rows"][1]["kv_bytes"] == 131_072 * 10**12
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    sources = {report["source"] for report in document["published"]}
    assert len(sources) == 3
    assert any(r["gqa"] > r["mha"] for r in document["published"])  # the good
    assert any(r["mha"] - r["gqa"] > 3 for r in document["published"])  # and the bad


def test_the_frame_keeps_integers_of_any_size() -> None:
    frame = compare("deepseek-v3", context="1e12", batch="1e6").to_frame()
    assert frame["kv_bytes"].iloc[-1] == 70_272 * 10**18
    assert frame["n_kv_heads"].tolist() == [128, 32, 1, None]


def test_an_encoder_keeps_no_cache() -> None:
    for row in compare("bert-base").rows:
        assert (row.kv_bytes_per_token, row.kv_bytes, row.kv_bytes_allocated) == (0, 0, 0)
        assert row.ratio_to_mha is row.decode_flops_per_byte is row.longest_context is None
        assert row.largest_batch is None
        assert row.prefill_flops > 0


def test_quantised_caches_count_their_scales_and_leave_the_weights() -> None:
    whole, eight, four = (compare(dtype=d).rows[1] for d in ("bfloat16", "int8", "int4"))
    assert eight.kv_bytes / whole.kv_bytes == (128 + 8) / 256
    assert four.kv_bytes / whole.kv_bytes == (64 + 8) / 256
    assert eight.weights_bytes == whole.weights_bytes
    finer = compare(dtype="int8", group_size=64)
    assert finer.rows[1].kv_bytes / whole.kv_bytes == (128 + 4) / 256
    assert finer.settings.to_json()["scale_group"] == 64
    assert compare(dtype="int8", weights_dtype="fp8").rows[1].weights_bytes == 8_030_261_248
    single = compare(dtype="float32").rows[1]
    assert single.weights_bytes == 4 * 8_030_261_248


def test_windows_kept_or_not() -> None:
    full, window = (
        compare("mistral-7b-v0.1", context="32k", sliding=s) for s in ("full", "window")
    )
    assert full.rows[1].kv_bytes == window.rows[1].kv_bytes == 2**29
    assert full.rows[1].kv_bytes_allocated == 2**32
    assert window.rows[1].kv_bytes_allocated == 131_072 * (4096 + 16)
    assert window.rows[1].longest_context is None  # however long, it takes no more


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"kv_heads": "3"}, "share 3 key/value heads evenly"),
        ({"kv_heads": "two"}, "Cannot read 'two' as key/value heads"),
        ({"kv_heads": [2.5]}, r"Cannot read \[2.5\] as key/value heads"),
        ({"kv_heads": []}, "as key/value heads"),
        ({"context": 1.5}, "Cannot read '1.5' as a number of tokens"),
        ({"context": []}, "name one at least"),
        ({"batch": True}, "Cannot read 'True'"),
        ({"memory": 1.5}, "24GiB"),
        ({"memory": -1}, "24GiB"),
        ({"context": 0}, "at least 1"),
        ({"batch": 0}, "at least 1"),
        ({"page_size": 0}, "at least 1"),
        ({"dtype": "int9"}, "Did you mean 'int8'"),
        ({"weights_dtype": "float"}, "Unknown dtype 'float'"),
        ({"group_size": 32}, "belongs to int8 or int4"),
        ({"sliding": "no"}, "full or window"),
        ({"memory": "lots"}, "24GiB"),
        ({"config": "no/such.json"}, "There is no config 'no/such.json'"),
    ],
)
def test_what_makes_no_sense_is_told(options: dict[str, object], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        compare(**options)  # type: ignore[arg-type]


def test_a_config_file_or_its_directory(tmp_path: Path) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_size": 64}))
    for given in (tmp_path, tmp_path / "config.json"):
        row = compare(config=given, context=16).rows[0]
        assert (row.variant, row.as_is, row.kv_bytes) == ("MHA", True, 2 * 2 * 64 * 2 * 16)


def test_from_python_without_torch(tmp_path: Path) -> None:
    result = attnscope.compare("llama-3-8b", context="4k")
    assert result.plot(tmp_path / "a.svg").is_file()
    program = (
        "import sys\n"
        "import attnscope\n"
        "attnscope.compare().to_json()\n"
        "heavy = {'torch', 'transformers', 'pandas', 'matplotlib', 'numpy', 'huggingface_hub'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_rest_of_a_hub_model_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A known model by its hub id: its row is enough."""
    monkeypatch.setattr("attnscope.models.find.find_config", lambda *_: pytest.fail("asked"))
    assert compare(model="Qwen/Qwen3-8B").shapes == (known_shape("qwen3-8b"),)
