"""Starts `headrace serve` for a bench, with given settings and on free ports.

All ports are free ones (also HAProxy's two and the metrics port), so that a bench never meets
another server. The server is ready when `/readyz` says so: every declared model is hot. A process
of ours that outlives the server fails the bench. Cache and state are under `out/bench`, not in the
user's home, so that a bench can start cold.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from loadtests.benches.launched import Launch, RunningServer, free_port, launched

SETTINGS_DIR = Path("out/bench/settings")
HOME_DIR = Path("out/bench/home")

Settings = dict[str, Any]


def example(name: str) -> Settings:
    """The settings of `examples/NAME.yaml`."""
    settings: Settings = yaml.safe_load(Path("examples", f"{name}.yaml").read_text())
    return settings


def changed(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> Settings:
    """A copy with `changes` applied, by dotted path: `{"models.minilm.precision": "bf16"}`."""
    result: Settings = copy.deepcopy(dict(settings))
    for path, value in changes.items():
        *parents, leaf = path.split(".")
        section = result
        for parent in parents:
            section = section.setdefault(parent, {})
        section[leaf] = value
    return result


def on_free_ports(settings: Mapping[str, Any]) -> Settings:
    names = ("port", "metrics_port", "haproxy_stats_port", "haproxy_metrics_port")
    return changed(settings, {f"gateway.{name}": free_port() for name in names})


def command_line() -> list[str]:
    """The installed `headrace`, or the same entry point if it is not installed."""
    installed = Path(sys.executable).with_name("headrace")
    if installed.exists():
        return [str(installed)]
    return [sys.executable, "-c", "from deployments.cli import main; main(prog_name='headrace')"]


@contextmanager
def headrace(
    settings: Mapping[str, Any], *, name: str = "headrace", home: Path = HOME_DIR
) -> Iterator[RunningServer]:
    """Yields the running server. `home`: for cache and state; an empty one makes a cold start."""
    written = on_free_ports(settings)
    SETTINGS_DIR.mkdir(parents=True, exist_ok=True)
    file = SETTINGS_DIR / f"{name}.yaml"
    file.write_text(yaml.safe_dump(written, sort_keys=False))
    url = f"http://127.0.0.1:{written['gateway']['port']}"
    environ = {
        "XDG_CACHE_HOME": str(home.absolute() / "cache"),
        "XDG_STATE_HOME": str(home.absolute() / "state"),
    }
    launch = Launch(
        name=name,
        command=[*command_line(), "serve", str(file)],
        url=url,
        ready_url=f"{url}/readyz",
        environ=environ,
        strict=True,
    )
    with launched(launch) as running:
        yield running
