"""`headrace simulate`: run a scenario on virtual time and print what came of it.

Nothing is served and nothing loaded: a minute of traffic takes seconds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console

from deployments.tools.console.progress_bar import SimulatedTimeBar
from deployments.tools.console.simulated import show
from deployments.tools.simulate.simulation import SimulateOptions, prepare


def simulate(
    path: Path, options: SimulateOptions, *, as_json: bool = False, plot: Path | None = None
) -> int:
    """The exit code. Raises ScenarioErrors, SettingsErrors, TraceError and NoPlots."""
    if plot is not None:
        from deployments.tools.simulate.plots import must_be_there, write

        must_be_there(plot)
    simulation = prepare(path, options)
    if simulation.left_out:
        print(f"not simulated: {', '.join(simulation.left_out)}", file=sys.stderr)
    with SimulatedTimeBar(simulation.scenario.run_s, Console(stderr=True)) as advance:
        result = simulation.run(advance)
        beside = simulation.run(advance, fifo=True) if options.fifo else None
    if as_json:
        object_ = result.as_json()
        if beside is not None:
            object_["fifo"] = beside.as_json()
        print(json.dumps(object_))
    else:
        show(simulation.title, result, beside)
    if plot is not None:
        write(result, plot, simulation.path.stem)
    return 0
