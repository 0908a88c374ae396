"""bench: what inspecting costs against only running the model, on this machine.

Each way of running has a process of its own, kept alive with the weights loaded; the parent asks
them in turn, round after round, so that a machine that slows down slows all of them.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import attnscope
from attnscope.errors import AttnscopeError, RunError, UsageError
from attnscope.types import Progress, no_progress

if TYPE_CHECKING:
    from collections.abc import Callable

    from pandas import DataFrame
    from torch import Tensor

PLAIN = "plain"
WAYS = (PLAIN, "dense", "blocked", "eager")
ROUNDS = 5


@dataclass(frozen=True)
class BenchRow:
    """One way at one length: median seconds of a forward pass, the process's peak memory in it."""

    what: str
    length: int
    seconds: float
    peak_bytes: int
    time_ratio: float  # median of the ratios to `plain` of the same round
    memory_ratio: float


@dataclass(frozen=True)
class BenchResult:
    """Every way at every length; ratios are to the plain forward of the same length."""

    model: dict[str, Any]
    settings: dict[str, Any]
    rows: tuple[BenchRow, ...]

    def to_json(self) -> dict[str, Any]:
        """The `attnscope.bench/1` document."""
        return {
            "schema": "attnscope.bench/1",
            "attnscope": attnscope.__version__,
            "model": self.model,
            "settings": self.settings,
            "rows": [asdict(row) for row in self.rows],
        }

    def to_frame(self) -> DataFrame:
        """One row per way and length."""
        from pandas import DataFrame

        return DataFrame([asdict(row) for row in self.rows])


def bench(
    name: str,
    lengths: Sequence[int],
    *,
    ways: Sequence[str] = WAYS,
    rounds: int = ROUNDS,
    seed: int = 0,
    progress: Progress = no_progress,
) -> BenchResult:
    """Time one text of each length through every way, `rounds` times in turn.

    plain: transformers' sdpa, nothing kept. eager: transformers' eager with its weights returned.
    dense, blocked: ours, answering every question that `heads` asks.
    """
    asked = [PLAIN, *(way for way in ways if way != PLAIN)]
    rows: list[BenchRow] = []
    described, vocabulary, limit = _describe(name)
    too_long = [length for length in lengths if limit is not None and length > limit]
    if too_long:
        raise UsageError(
            f"The model has {limit} positions: {too_long[0]} tokens are too many. "
            "Give shorter texts with --length."
        )
    with _workers(name, asked, vocabulary, seed) as workers:
        for length in lengths:
            seconds: dict[str, list[float]] = {way: [] for way in asked}
            peaks: dict[str, int] = {}
            for turn in range(rounds + 1):  # the first is a warm-up
                for way in asked:
                    progress(f"{length} tokens, round", turn, rounds)
                    took, peak = _ask(workers[way], length)
                    if turn:
                        seconds[way].append(took)
                        peaks[way] = max(peak, peaks.get(way, 0))
            rows += _rows(length, seconds, peaks)
    settings = {"seed": seed, "rounds": rounds, "lengths": [*lengths], "threads": _threads()}
    return BenchResult(described, settings, tuple(rows))


def _rows(
    length: int, seconds: dict[str, list[float]], peaks: dict[str, int]
) -> Iterator[BenchRow]:
    for way, taken in seconds.items():
        ratios = [ours / plain for ours, plain in zip(taken, seconds[PLAIN], strict=True)]
        yield BenchRow(
            way,
            length,
            statistics.median(taken),
            peaks[way],
            statistics.median(ratios),
            peaks[way] / peaks[PLAIN],
        )


def _describe(name: str) -> tuple[dict[str, Any], int, int | None]:
    """The `model` entry, vocabulary and positions, from a proven load that is let go again."""
    from attnscope.models.load import load

    model = load(name)
    return model.describe(), model.shape.vocab_size, model.shape.max_positions


def _threads() -> int:
    import torch

    return torch.get_num_threads()


@contextmanager
def _workers(
    name: str, ways: Sequence[str], vocabulary: int, seed: int
) -> Iterator[dict[str, Connection]]:
    """A process for each way, each with the model loaded."""
    context = multiprocessing.get_context("spawn")
    processes, waiting = [], {}
    try:
        for way in ways:
            here, there = context.Pipe()
            given = (name, way, vocabulary, seed, there)
            process = context.Process(target=_work, args=given, daemon=True)
            process.start()
            there.close()
            processes.append(process)
            waiting[way] = here
        for here in waiting.values():
            _receive(here)  # it has loaded
        yield waiting
    finally:
        for connection in waiting.values():
            connection.close()  # a worker that is waiting sees it and ends
        for process in processes:
            process.join(timeout=5)
            process.terminate()


def _ask(connection: Connection, length: int) -> tuple[float, int]:
    connection.send(length)
    took, peak = _receive(connection)
    return float(took), int(peak)


def _receive(connection: Connection) -> Any:
    try:
        answer = connection.recv()
    except EOFError as error:
        raise RunError("A benchmark process ended early: not enough memory?") from error
    if isinstance(answer, AttnscopeError):
        raise answer
    return answer


def _work(name: str, way: str, vocabulary: int, seed: int, connection: Connection) -> None:
    """The life of a worker: load, say so, then run a text of each length that is asked for."""
    import torch

    # The parent hears the interrupt, and ends its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run = _ours(name, way) if way in ("dense", "blocked") else _transformers(name, way)
        connection.send("loaded")
        while True:
            length = connection.recv()
            generator = torch.Generator().manual_seed(seed)
            ids = torch.randint(vocabulary, (1, length), generator=generator)
            _reset_peak()
            started = time.perf_counter()
            run(ids)
            took = time.perf_counter() - started
            connection.send((took, _peak()))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except AttnscopeError as error:
        connection.send(error)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        connection.send(RunError(f"The {way} forward failed: {reason[:200]}"))


def _ours(name: str, way: str) -> Callable[[Tensor], object]:
    """Our attention, with every question that `heads` asks."""
    from attnscope.attention.lens import Lens
    from attnscope.attention.multihead import BLOCK_ROWS
    from attnscope.models.load import load
    from attnscope.models.text import batch_of
    from attnscope.scoring.scan import questions

    model = load(name)

    def run(ids: Tensor) -> object:
        model.set_block_rows(ids.shape[1] if way == "dense" else BLOCK_ROWS)
        batch = batch_of([model.reader.from_ids(ids[0].tolist())]).to(model.device)
        return model.run(batch, Lens(questions(batch, model.shape)))

    return run


def _transformers(name: str, way: str) -> Callable[[Tensor], object]:
    """The model as transformers runs it by itself, without its language-model head."""
    import torch
    from transformers import AutoModel

    from attnscope.models.quiet import quiet_transformers
    from attnscope.models.sources import resolve

    quiet_transformers()
    network = AutoModel.from_pretrained(
        resolve(name).directory,
        attn_implementation="sdpa" if way == PLAIN else "eager",
        dtype=torch.float32,
        local_files_only=True,
    ).eval()

    def run(ids: Tensor) -> object:
        with torch.inference_mode():
            return network(input_ids=ids, use_cache=False, output_attentions=way != PLAIN)

    return run


def _reset_peak() -> None:
    """Forget the peak so far (loading took more than running does), where the system can."""
    with (
        contextlib.suppress(OSError),
        open("/proc/self/clear_refs", "w", encoding="ascii") as control,
    ):
        control.write("5")


def _peak() -> int:
    """The most memory held since the last reset, in bytes (where the system tells)."""
    import resource

    try:
        return _status("VmHWM")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _status(name: str) -> int:
    with open("/proc/self/status", encoding="ascii") as status:
        line = next(line for line in status if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
