"""What fits: requests that cannot are refused beforehand, with the estimate, not killed by the system."""

import os
from pathlib import Path

from hadaflow.base.errors import InputError

_BYTES = 8  # of a double
_SHARE = 0.9  # of the free memory that may be asked for
_ALWAYS_THERE = 2**26  # bytes that are not worth a look at what is free


def available_memory() -> float:
    """Bytes of memory that a new request may use, also inside a container with a limit of its own."""
    return min(_left_in_container(), _left_in_machine())


def _left_in_container() -> float:
    try:
        limit, used = (
            Path("/sys/fs/cgroup", name).read_text() for name in ("memory.max", "memory.current")
        )
        return float(limit) - float(used)
    except (OSError, ValueError):  # none, or the word "max"
        return float("inf")


def _left_in_machine() -> float:
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return float(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, OSError, ValueError):
        return float("inf")


def require_memory(numbers: float, what: str, instead: str) -> float:
    """Bytes of so many doubles; refused if they do not fit. `instead` says what would."""
    needed = numbers * _BYTES
    if needed < _ALWAYS_THERE:
        return needed
    free = available_memory()
    if needed > _SHARE * free:
        raise InputError(
            f"{what} would take about {in_words(needed)} of memory, but {in_words(free)} are "
            f"available: {instead}."
        )
    return needed


def in_words(size: float) -> str:
    """A number of bytes for a person."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.3g} {unit}"
        size /= 1000
    raise AssertionError
