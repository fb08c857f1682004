"""`headrace simulate`: run a scenario on virtual time and print what came of it.

Nothing is served and nothing loaded: a minute of traffic takes seconds.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rich.console import Console

from deployments.tools.console.simulated import Advance, show
from deployments.tools.simulate.play import Asked, prepare


def simulate(path: Path, asked: Asked, *, as_json: bool = False, plot: Path | None = None) -> int:
    """The exit code. Raises ScenarioErrors, SettingsErrors, TraceError and NoPlots."""
    if plot is not None:
        from deployments.tools.simulate.plots import must_be_there, write

        must_be_there(plot)
    play = prepare(path, asked)
    if play.left_out:
        print(f"not simulated: {', '.join(play.left_out)}", file=sys.stderr)
    with Advance(play.scenario.run_s, Console(stderr=True)) as advance:
        played = play.run(advance)
        beside = play.run(advance, fifo=True) if asked.fifo else None
    if as_json:
        object_ = played.as_json()
        if beside is not None:
            object_["fifo"] = beside.as_json()
        print(json.dumps(object_))
    else:
        show(play.title, played, beside)
    if plot is not None:
        write(played.summary, plot, play.path.stem)
    return 0
