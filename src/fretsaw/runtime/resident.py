"""Resident memory of this process: the most since a moment, not since its start."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

CLEAR, STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")
FORGET_PEAK = "5"
"""Sets the mark of the highest resident memory back to what is resident now (Linux, proc(5))."""

UNIT = 1024


def watch_peak() -> Callable[[], int]:
    """Begin to watch: each call of what is returned gives the peak since, bytes.

    It is that of the largest single process: this one, or a child that has ended meanwhile and was
    larger than those before. Where the system keeps no mark that can be set back, it is the peak
    since this process began.
    """
    child_before = _children()
    try:
        CLEAR.write_text(FORGET_PEAK)
    except OSError:
        return lambda: max(_whole(), _grown(child_before))
    return lambda: max(_since_mark(), _grown(child_before))


def resident_bytes() -> int:
    """Resident now; where the system does not tell, the most so far."""
    lines = STATUS.read_text().splitlines() if STATUS.exists() else []
    now = next((line for line in lines if line.startswith("VmRSS:")), None)
    return int(now.split()[1]) * UNIT if now else _whole()


def _since_mark() -> int:
    lines = STATUS.read_text().splitlines()
    mark = next((line for line in lines if line.startswith("VmHWM:")), None)
    return int(mark.split()[1]) * UNIT if mark else _whole()


def _whole() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT


def _children() -> int:
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * UNIT


def _grown(before: int) -> int:
    """Memory of the largest child that has ended, if it is a new one."""
    now = _children()
    return now if now > before else 0
