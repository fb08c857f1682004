"""`python -m loadtests.benches`: runs the benches of `docs/benchmarks.md` one after another.

Takes about half an hour on two processors, which nothing else should use meanwhile. The comparison
with other servers takes as long again; it runs only by its name or with `make compare`. Arguments
name the benches to run. A bench that misses its bound does not stop the others; the exit code says
whether all bounds held.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from loadtests.benches.document import APART, OF_RUNTIMES, ON_NODES, ORDER, SIMULATED

MODULES = (
    {name: f"loadtests.benches.{name}" for name in ORDER}
    | {name: f"tests.simulation.benches.{name}" for name in SIMULATED}
    | {name: f"tests.runtimes.benches.{name}" for name in OF_RUNTIMES}
    | {name: f"tests.cluster.benches.{name}" for name in ON_NODES}
)


def main(names: Sequence[str]) -> int:
    unknown = [name for name in names if name not in MODULES]
    if unknown:
        print(
            f"there is no bench {', '.join(unknown)}; must be one of {', '.join(MODULES)}",
            file=sys.stderr,
        )
        return 2
    missed = []
    for name in names or [each for each in MODULES if each not in APART]:
        print(f"== {name}", flush=True)
        done = subprocess.run([sys.executable, "-m", MODULES[name]], check=False)
        if done.returncode:
            missed.append(name)
    subprocess.run([sys.executable, "-m", "loadtests.benches.document"], check=True)
    if missed:
        print(f"bounds missed or runs failed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
