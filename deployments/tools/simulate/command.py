"""`headrace simulate`: runs a scenario on virtual time and prints the outcome.

No server is started and no model loaded: a minute of traffic takes seconds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console

from deployments.tools.console.progress_bar import SimulatedTimeBar
from deployments.tools.simulate.simulated import show, show_fifo
from deployments.tools.simulate.simulation import SimulateOptions, prepare


def simulate(
    path: Path, options: SimulateOptions, *, as_json: bool = False, plot: Path | None = None
) -> int:
    """Run the scenario, and what it is compared with; print the results. Returns the exit code.
    Raises ScenarioErrors, SettingsErrors, TraceError and NoPlots."""
    if plot is not None:
        from deployments.tools.simulate.plots import must_be_there, write

        must_be_there(plot)
    simulation = prepare(path, options)
    if simulation.left_out:
        print(f"not simulated: {', '.join(simulation.left_out)}", file=sys.stderr)
    with SimulatedTimeBar(simulation.scenario.run_s, Console(stderr=True)) as advance:
        result = simulation.run(advance)
        fifo = simulation.run(advance, fifo=True) if options.fifo else None
    if as_json:
        also = {"fifo": fifo.as_json()} if fifo is not None else {}
        print(json.dumps({**result.as_json(), **also}))
    else:
        show(simulation.title, result)
        if fifo is not None:
            show_fifo(fifo)
    if plot is not None:
        write(result, plot, simulation.path.stem)
    return 0
