"""The planted checkpoints through the public command: the labels that must be, and no other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attnscope.cli.app import run
from attnscope.scoring.passages import bundled_passages
from tests import planted, planted_words
from tests.test_planted import STORY, TEXTS, WRITE

pytestmark = pytest.mark.usefixtures("shared_cache")
TEXT = "The chef dropped the glass bowl on a tile floor, because it was slippery."
NAMES = list(WRITE)
PLACES = {
    "punctuation": ["punctuation"],
    "induction": ["first-token"],
    "copy": ["first-token"],
    "first": ["first-token"],
}


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    known = [*(passage.text for passage in bundled_passages()), TEXT, *TEXTS]
    made = {name: tmp_path_factory.mktemp(f"known-{name}") for name in NAMES}
    for name, directory in made.items():
        WRITE[name](directory, known)
    return made


def document(
    capsys: pytest.CaptureFixture[str], directory: Path, *arguments: str
) -> dict[str, Any]:
    assert run(["heads", *arguments, "--model", str(directory), "-F", "json", "-q"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return dict(json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} in JSON")))


def check(found: dict[str, Any]) -> None:
    """Exactly the planted labels, and what each head is said to rest on."""
    for entry in found["heads"]:
        head = planted.HEADS[entry["layer"]][entry["head"]]
        assert set(entry["labels"]) == head.labels, head.name
        assert len(entry["labels"]) == len(head.labels), head.name
        assert entry["rests_on"] == PLACES.get(head.name, []), head.name
        assert [place["on"] for place in entry["resting"]] == entry["rests_on"], head.name
    assert len(found["heads"]) == planted.N_LAYERS * planted.N_HEADS


@pytest.mark.parametrize("seed", ["0", "7"])
@pytest.mark.parametrize("name", NAMES)
def test_on_the_battery(
    name: str, seed: str, directories: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, directories[name], TEXT, "--seed", seed)
    assert found["labels_from"] == "battery"
    battery = found["settings"]["battery"]
    assert battery["text"]["texts"] == len(bundled_passages())
    assert battery["text"]["cut"] == battery["text"]["links_skipped"] == 0
    assert (battery["sequences"], battery["length"], battery["seed"]) == (32, 50, int(seed))
    check(found)


@pytest.mark.parametrize("name", NAMES)
def test_on_a_file_of_texts(
    name: str,
    directories: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No battery: thirty ordinary texts are enough; of ten the bounds are too wide for all."""
    path = tmp_path / "texts.txt"
    texts = [TEXT, STORY, *(passage.text.replace("\n", " ") for passage in bundled_passages()[:30])]
    path.write_text("\n".join(texts) + "\n")
    found = document(capsys, directories[name], "--file", str(path), "--no-battery")
    assert found["labels_from"] == "texts"
    assert found["texts"] == len(texts)
    assert all(entry["battery"] is None for entry in found["heads"])
    check(found)


@pytest.mark.parametrize("name", NAMES)
def test_every_corpus_stands_in_for_the_passages(
    name: str,
    directories: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "texts.jsonl"
    texts = [STORY, *(passage.text for passage in bundled_passages()[10:40])]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    found = document(capsys, directories[name], "--corpus", str(path))
    assert found["labels_from"] == "battery"
    assert found["settings"]["battery"]["text"]["texts"] == len(texts)
    check(found)


@pytest.mark.parametrize("name", NAMES)
def test_exact_heads_score_one(
    name: str, directories: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    roles = {
        "previous": ("previous_token", "battery"),
        "two back": ("second_previous", "battery"),
        "itself": ("current_token", "battery"),
        "first": ("first_token", "battery"),
        "induction": ("induction", "battery"),
        "induction or long words": ("induction", "battery"),
        "copy": ("duplicate_token", "battery"),
        "copy or itself": ("duplicate_token", "battery"),
    }
    for entry in document(capsys, directories[name], TEXT)["heads"]:
        planted_name = planted.HEADS[entry["layer"]][entry["head"]].name
        if planted_name in roles:
            role, where = roles[planted_name]
            numbers = entry[where][role]
            for key in ("raw", "lift", "low", "high", "bound"):
                assert numbers[key] == pytest.approx(1, abs=0.005), (planted_name, key)
        if planted_name == "uniform":
            for role, numbers in entry["battery"].items():
                if numbers is not None and role not in ("broad", "coreference"):
                    assert abs(numbers["lift"]) < 1e-3, role
                    assert numbers["sink_free"] is None or numbers["sink_free"] == pytest.approx(
                        numbers["sink_free_chance"], abs=1e-3
                    )


@pytest.mark.parametrize("name", NAMES)
def test_resting_says_on_what_and_how_much_is_moved(
    name: str, directories: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for entry in document(capsys, directories[name], TEXT)["heads"]:
        for place in entry["resting"]:
            if place["on"] == "first-token":
                bos = planted_words.BOS if name == "llama" else "a word"
                assert place["is"] == bos
                # Layer 1 sees a first position whose code the norm has left nothing of.
                assert place["value_norm_ratio"] < 0.1
            else:
                assert place["is"] is None
                assert place["value_norm_ratio"] == pytest.approx(1, abs=0.1)
            assert place["raw"] > 0.4
            assert place["lift"] > 0.4
