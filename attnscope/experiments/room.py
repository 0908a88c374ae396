"""Room: how much memory a large result would take, told before it is taken."""

from __future__ import annotations

import os
import resource

from attnscope.errors import RunError

_NAMES = ("bytes", "KiB", "MiB", "GiB", "TiB")


def size(n_bytes: float) -> str:
    """`1536` as `1.5 KiB`."""
    for name in _NAMES:
        if n_bytes < 1024 or name == _NAMES[-1]:
            return f"{n_bytes:.0f} {name}" if name == "bytes" else f"{n_bytes:.1f} {name}"
        n_bytes /= 1024
    raise AssertionError


def free_memory() -> int:
    """Bytes that this process may still take: what the machine has, within the process's limit."""
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    try:
        with open("/proc/meminfo", encoding="ascii") as info:
            free = next(int(x.split()[1]) * 1024 for x in info if x.startswith("MemAvailable"))
    except (OSError, StopIteration):
        pass
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        free = min(free, max(0, limit - _mapped()))
    return free


def check_room(n_bytes: int, what: str, instead: str) -> None:
    """Raise RunError when `what` would take more than is free; `instead` says what to do."""
    free = free_memory()
    if n_bytes > free:
        raise RunError(
            f"{what} would take {size(n_bytes)} of memory, {size(free)} is free. {instead}"
        )


def _mapped() -> int:
    try:
        with open("/proc/self/statm", encoding="ascii") as info:
            return int(info.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
