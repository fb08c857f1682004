"""`headrace simulate --json` for every shipped scenario, three seeds each, byte for byte.

Long scenarios are shortened; faults that they time later than that do not happen then, so those
that are about a fault keep enough seconds to see it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from subprocess import run

SCENARIOS = Path(__file__).parents[2] / "loadtests" / "scenarios"
SEEDS = (1, 2, 3)
SHORT_S = 12
KEPT_S = {
    "replica-killed": 40,
    "rolling-change": 50,
    "burst": 40,
    "idle-then-spike": 45,
    "chaos": 25,
    "spike-cold": 90,
    "spike-pool": 90,
    "scale-to-zero": 150,
}


def pages() -> Mapping[str, bytes]:
    runs = [(name, seed) for name in names() for seed in SEEDS]
    with ProcessPoolExecutor() as pool:
        outcomes = list(pool.map(simulated, runs))
    return {f"{name}-{seed}.json": text for (name, seed), text in zip(runs, outcomes, strict=True)}


def names() -> list[str]:
    """Scenarios, not the settings files that lie beside them."""
    every = sorted(SCENARIOS.glob("*.yaml"))
    return [path.stem for path in every if "\nsettings:" in "\n" + path.read_text()]


def shortened(name: str) -> list[str]:
    """Changes to the scenario, as `--set` takes them."""
    return [f"duration_s={KEPT_S.get(name, SHORT_S)}", "warmup_s=2"]


def simulated(one: tuple[str, int]) -> bytes:
    name, seed = one
    changes = [part for change in shortened(name) for part in ("--set", change)]
    command = [sys.executable, "-m", "deployments.cli", "simulate", name, "--json"]
    ended = run([*command, "--seed", str(seed), *changes], capture_output=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"{name}: {ended.stderr.decode()}")
    return ended.stdout
