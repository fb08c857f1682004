"""What must not change unseen: writes it (`make oracles`) or compares it (`make check-oracles`).

Everything here is observable behaviour: scheduling decisions, simulated outcomes, HTTP answers,
names of metrics, settings and command-line options. A refactoring leaves every file under `stored/`
as it is; a change of behaviour stores them anew, and the diff of the stored files shows what
changed.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.oracles import (
    event_logs,
    help_pages,
    http_answers,
    metric_list,
    settings_page,
    simulations,
)

STORED = Path(__file__).parent / "stored"
Stored = Mapping[str, bytes]
PARTS: dict[str, Callable[[], Stored]] = {
    "help": help_pages.pages,
    "settings": settings_page.pages,
    "metrics": metric_list.pages,
    "http": http_answers.pages,
    "simulate": simulations.pages,
}
EVENTS = "events"
"""Logs of what dispatchers were told: written and compared with what is simulated, alone where that
is asked for."""
_LINES_SHOWN = 40


def write(parts: list[str]) -> int:
    for part in [each for each in parts if each != EVENTS]:
        folder, pages = STORED / part, PARTS[part]()
        for old in folder.glob("*"):
            old.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        for name, page in pages.items():
            (folder / name).write_bytes(page)
        print(f"{part}: {len(pages)} files written")
    if {"simulate", EVENTS} & set(parts):
        print(f"events: {event_logs.record()} logs written")
    return 0


def check(parts: list[str]) -> int:
    differing = 0
    for part in [each for each in parts if each != EVENTS]:
        folder, pages = STORED / part, PARTS[part]()
        stored = {path.name: path.read_bytes() for path in folder.glob("*")}
        for name in sorted(stored.keys() | pages.keys()):
            if stored.get(name) != pages.get(name):
                differing += 1
                _show(f"{part}/{name}", stored.get(name, b""), pages.get(name, b""))
        print(f"{part}: {len(pages)} files compared", flush=True)
    if {"simulate", EVENTS} & set(parts):
        compared, wrong = event_logs.replay()
        differing += len(wrong)
        print(f"events: {compared} logs replayed", *wrong, sep="\n  ")
    print(f"{differing} differ" if differing else "all identical")
    return 1 if differing else 0


def _show(name: str, stored: bytes, found: bytes) -> None:
    diff = difflib.unified_diff(
        stored.decode().splitlines(),
        found.decode().splitlines(),
        f"stored/{name}",
        name,
        lineterm="",
    )
    for number, line in enumerate(diff):
        if number == _LINES_SHOWN:
            print("…")
            return
        print(line[:300])


if __name__ == "__main__":
    act, *chosen = sys.argv[1:]
    sys.exit({"write": write, "check": check}[act](chosen or list(PARTS)))
