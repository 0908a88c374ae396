"""The house itself: no import climbs a floor, and the command line starts without torch."""

from __future__ import annotations

import ast
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import attnscope

PACKAGE = Path(attnscope.__file__).parent

# A file imports only from floors below its own (or beside it, on its own floor).
FLOORS = ("attention", "models", "scoring", "experiments", "render", "cli")
GROUND = ("errors", "types", "plain", "config_files", "files")  # below every floor
ROOF = ("api", "reports", "results", "__init__")  # the library's front door, above experiments
TOP = ("__main__",)


def _floor(module: str) -> int:
    name = module.removeprefix("attnscope.").split(".")[0] if "." in module else "__init__"
    if name in GROUND:
        return 0
    if name in TOP:
        return len(FLOORS) + 1
    if name in ROOF:
        return FLOORS.index("render") + 1
    return FLOORS.index(name) + 1


def _imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.startswith("attnscope.")}


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: p.name)
def test_no_import_climbs(path: Path) -> None:
    own = ".".join(["attnscope", *path.relative_to(PACKAGE).with_suffix("").parts])
    for imported in _imports(path):
        if imported.split(".")[1] in ("__version__", "load", "Model", "compare"):
            continue  # names of the package itself, not modules
        assert _floor(imported) <= _floor(own), f"{own} imports {imported}, which lies above it"


def test_every_module_has_a_floor() -> None:
    known = {*FLOORS, *GROUND, *ROOF, *TOP}
    assert {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py"} <= known
    assert {path.parent.name for path in PACKAGE.glob("*/__init__.py")} <= known


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from attnscope.cli.app import run\n"
        "run(['--help'])\n"
        "heavy = {'torch', 'transformers', 'pandas', 'matplotlib', 'numpy', 'safetensors'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_help_starts_at_once() -> None:
    """Under 0.3 s (of processor time) more than importing what it is built on."""
    bare = [sys.executable, "-c", "import typer, rich"]
    ours = [sys.executable, "-m", "attnscope", "--help"]
    extra = [_seconds(ours) - _seconds(bare) for _ in range(5)]
    assert statistics.median(extra) < 0.3


def _seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
