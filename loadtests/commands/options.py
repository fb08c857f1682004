"""What every command that plays a scenario takes: which, to whom, how."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from loadtests.client.protocols import PROTOCOLS
from loadtests.run import InvalidRunOptions, RunOptions
from loadtests.traffic.scenario_file import located

FILE = click.Path(path_type=Path)
_OPTIONS = (
    click.argument("scenario", type=FILE),
    click.option("--url", required=True, help="The server, http(s)://host:port."),
    click.option("--ca", type=FILE, help="PEM file of authorities to trust over https."),
    click.option(
        "--protocol", type=click.Choice(list(PROTOCOLS)), default="oip", show_default=True,
        help="Open Inference Protocol in JSON or binary, OpenAI's, or one described by --adapter.",
    ),
    click.option("--adapter", default="", help="YAML of a `custom` protocol."),
    click.option("--model", default="", help="The model; unset, the scenario's."),
    click.option("--slo-ms", type=float, help="Latency limit, not the settings' or server's."),
    click.option("--ttft-ms", type=float, help="Limit of the first token, as --slo-ms."),
    click.option("--tpot-ms", type=float, help="Limit of the mean time a further token takes."),
    click.option("--seed", type=int, help="Decides every random choice, not the scenario's."),
    click.option(
        "--set", "changes", multiple=True, metavar="PATH=VALUE",
        help="Change the scenario (arrivals.rate=300); repeatable.",
    ),
    click.option("--trace", type=FILE, help="Replay this recording instead of its load."),
    click.option("--header", "headers", multiple=True, help="'name: value'; repeatable."),
    click.option("--key", "keys", multiple=True, metavar="TENANT=KEY", help="Repeatable."),
    click.option("--extra", default="{}", help="JSON laid over each request's body."),
    click.option("--stream/--no-stream", default=True, help="Of completions and chat."),
    click.option("--processes", type=click.IntRange(1, 256), default=1, show_default=True),
    click.option("--connections", type=click.IntRange(1, 65_000), default=4096, show_default=True),
    click.option("--timeout", "timeout_s", type=float, default=30.0, help="Seconds a request."),
)  # fmt: skip


def playing(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds what every command that plays a scenario takes; it gets them as `options`."""

    def translated(**given: Any) -> Any:
        own = {name: given.pop(name) for name in list(given) if name not in _NAMES}
        return command(options=options_of(**given), **own)

    translated.__name__, translated.__doc__ = command.__name__, command.__doc__
    translated.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    for option in reversed(_OPTIONS):
        translated = option(translated)
    return translated


_NAMES = {
    "scenario", "url", "ca", "protocol", "adapter", "model", "slo_ms", "ttft_ms", "tpot_ms", "seed",
    "changes", "trace", "headers", "keys", "extra", "stream", "processes", "connections",
    "timeout_s",
}  # fmt: skip


def options_of(**given: Any) -> RunOptions:
    """Raises InvalidRunOptions."""
    seed = given.pop("seed")
    changes = (*given.pop("changes"), *([f"seed={seed}"] if seed is not None else []))
    try:
        extra = json.loads(given.pop("extra"))
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise InvalidRunOptions("--extra must be a JSON object")
    given["headers"] = _pairs(given["headers"], ":")
    given["keys"] = _pairs(given["keys"], "=")
    given["ca"] = str(given["ca"] or "")
    given["scenario"] = located(given["scenario"])
    return RunOptions(
        **given,
        changes=changes,
        extra=extra,
        command=as_typed(),
    )


def _pairs(given: tuple[str, ...], mark: str) -> dict[str, str]:
    found = {}
    for each in given:
        name, marked, value = each.partition(mark)
        if not marked or not name.strip():
            raise InvalidRunOptions(f"{each!r} must be name{mark}value")
        found[name.strip()] = value.strip()
    return found


def as_typed() -> str:
    """The command line of this process, for the record."""
    if "load" in sys.argv:
        return shlex.join(["headrace", "load", *sys.argv[sys.argv.index("load") + 1 :]])
    return shlex.join(["python", "-m", "loadtests", *sys.argv[1:]])
