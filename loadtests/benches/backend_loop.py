"""Runs a backend in a loop with sorted, full batches, without a server, in a separate process.

`python -m deployments.tools.profile.backend_loop` runs the models of a settings file in turn and
prints a record for each turn: tokens and rows a second, padding. Artifacts are staged below
`out/bench`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from loadtests.benches.server import HOME_DIR, SETTINGS_DIR, Settings


def looped(
    settings: Settings,
    models: Sequence[str],
    lengths: Sequence[int],
    seconds: float,
    rounds: int = 1,
) -> Iterator[dict[str, Any]]:
    """Yields a record after each turn; its `model` names the model. Raises RuntimeError."""
    SETTINGS_DIR.mkdir(parents=True, exist_ok=True)
    file, rows = SETTINGS_DIR / "loop.yaml", SETTINGS_DIR / "lengths.txt"
    file.write_text(yaml.safe_dump(settings))
    rows.write_text("\n".join(map(str, lengths)))
    command = [sys.executable, "-m", "deployments.tools.profile.backend_loop", str(file), *models]
    command += ["--lengths", str(rows), "--seconds", str(seconds), "--rounds", str(rounds)]
    environ = {**os.environ, "XDG_CACHE_HOME": str(Path(HOME_DIR, "cache").absolute())}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as loop:
        assert loop.stdout is not None
        for line in loop.stdout:
            yield json.loads(line)
    if loop.returncode:
        raise RuntimeError(f"the loop ended with {loop.returncode}")
