"""How much memory does one request take, and each row more?

By this process's own peak of resident memory, which Linux counts and lets it reset: that of the
first batch of its kind, before warm-up has made the allocator keep what it once had. A device's
memory is not looked at, nor anything on other systems.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_SELF = Path("/proc/self")
_RESET_PEAK = "5"


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. `loaded`: resident once the model is; `request`: peak above that of the first request
    of one longest row; `row`: what each further row of the largest batch added; `rows` of it."""

    loaded: int
    request: int
    row: float = 0.0
    rows: int = 1


def measured(
    request: Callable[[], object], batch: Callable[[], object], rows: int
) -> Memory | None:
    """Runs one request, then a batch of `rows` of them; None where the system does not tell."""
    loaded = _resident("VmRSS")
    alone = _peak_of(request)
    if loaded is None or alone is None:
        return None
    together = _peak_of(batch) if rows > 1 else None
    if together is None:
        return Memory(loaded, alone - loaded)
    return Memory(loaded, alone - loaded, max(0.0, (together - alone) / (rows - 1)), rows)


def _peak_of(action: Callable[[], object]) -> int | None:
    try:
        (_SELF / "clear_refs").write_text(_RESET_PEAK)
    except OSError:
        return None
    action()
    return _resident("VmHWM")


def _resident(field: str) -> int | None:
    try:
        lines = (_SELF / "status").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(found[0]) * 1024 if found else None
