"""Arguments and help of the commands on models that need no server (`try`, `verify`, `record`,
`profile`, `stage`) and of the groups `key`, `rollout`, `cluster` and `plan`; types of arguments,
and calls.

Other modules do the work; they are imported when a command runs, so that `--help` is instant.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import click

from deployments.tools.where import Where, reaches

FILE = click.Path(path_type=Path)


class ReplicaNumber(click.ParamType[int | None]):
    """A number of replicas, or `auto`, which is None."""

    name = "N|auto"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | None:
        if value == "auto":
            return None
        if not (isinstance(value, int) or str(value).isdecimal()):
            self.fail(
                f"{value!r} is not a number of replicas; must be 0 or more, or auto", param, ctx
            )
        return int(value)


class Duration(click.ParamType[int]):
    """`90s`, `10m`, `2h` or `1d`, in seconds; a bare number is seconds."""

    name = "DURATION"
    _UNITS: ClassVar = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        number, unit = (value[:-1], value[-1:]) if value[-1:] in self._UNITS else (value, "s")
        if not (number.isdecimal() and int(number) > 0):
            self.fail(f"{value!r} is not a duration; must be like 90s, 10m, 2h or 1d", param, ctx)
        return int(number) * self._UNITS[unit]


def function(module: str, name: str) -> Callable[..., Any]:
    """The named function. Its module is imported now, not earlier, so that `--help` is instant."""
    from importlib import import_module

    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


def call(module: str, name: str, *args: Any, **kwargs: Any) -> None:
    """Call a function that returns an exit code, and exit with that code."""
    sys.exit(function(module, name)(*args, **kwargs))


def say_version(context: click.Context, _: click.Parameter, is_asked: bool) -> None:
    """Print the package's version, and whether its scheduling core is interpreted or compiled."""
    if not is_asked or context.resilient_parsing:
        return
    from importlib.metadata import version
    from importlib.util import find_spec

    spec = find_spec("routers.batch.scheduler")
    is_python = spec is None or str(spec.origin).endswith(".py")
    core = "interpreted" if is_python else "compiled"
    click.echo(f"headrace, version {version('headrace')}, core {core}")
    context.exit()


def built_in_example() -> Path:
    """The path of the installed `minilm.yaml`, the default settings file."""
    from importlib.resources import files

    return Path(str(files("examples").joinpath("minilm.yaml")))


_LIMIT = click.FloatRange(min=0)
_SHARE = click.FloatRange(0, 1)


@click.command(epilog="Example: headrace verify own.yaml iris --against torch")
@click.argument("file", type=FILE)
@click.argument("model")
@click.option("--against", metavar="RUNTIME[:PRECISION]", help="Reference; unset, see the docs.")
@click.option("--artifact", type=FILE, help="Artifact of the reference; unset, MODEL's own.")
@click.option("--samples", type=click.IntRange(200), help="Least number of rows to compare.")
@click.option("--samples-file", type=FILE, help="The rows: .jsonl, .npz or a recorded folder.")
@click.option("--seed", type=click.IntRange(0), help="Seed of the random rows.")
@click.option("--max-abs", type=_LIMIT, help="Largest absolute error allowed.")
@click.option("--mean-abs", type=_LIMIT, help="Largest mean absolute error allowed.")
@click.option("--max-rel", type=_LIMIT, help="Largest relative error allowed.")
@click.option("--mean-rel", type=_LIMIT, help="Largest mean relative error allowed.")
@click.option("--cosine", type=click.FloatRange(-1, 1), help="Least cosine similarity of a row.")
@click.option("--top1", type=_SHARE, help="Least share of rows with the same best class.")
@click.option(
    "--layers", is_flag=True, help="Find the first tensor inside that drifts, and a remedy."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def verify(file: Path, model: str, **options: Any) -> None:
    """Compare MODEL with a reference, length bucket by length bucket (docs/verify.md).

    Bounds left out are the model's `accept`, or 1e-3 of absolute and relative error.
    """
    call("deployments.tools.verify.command", "run", file, model, options)


@click.command(
    "try", epilog="""Example: headrace try own.yaml iris '{"flower": [5.1, 3.5, 1, 0]}'"""
)
@click.argument("file", type=FILE)
@click.argument("model")
@click.argument("rows", nargs=-1, metavar="[ROW]...")
def try_model(file: Path, model: str, rows: tuple[str, ...]) -> None:
    """Load MODEL in this process and run each ROW through it, without a server.

    A ROW is the JSON of one instance, as `:predict` takes it. Without any, a made-up row runs. It
    is what the network itself takes: for a model of texts tokens, such as {"input_ids": [101,
    102]}, for one of images pixels. A server takes texts and images (docs/serve-your-model.md).
    """
    call("deployments.tools.trying", "try_model", file, model, rows)


@click.command(epilog="Example: headrace record own.yaml iris --to recorded")
@click.argument("file", type=FILE)
@click.argument("model")
@click.option("--to", type=click.Path(path_type=Path), help="Folder for the joined files.")
def record(file: Path, model: str, to: Path | None) -> None:
    """Join what gateways recorded of MODEL (models.<name>.record), for calibration and replay."""
    call("deployments.tools.record", "show", file, model, to)


@click.command(epilog="Example: headrace stage own.yaml")
@click.argument("file", type=FILE)
@click.option(
    "--convert",
    is_flag=True,
    help="Also convert the files as backends do, by loading each model that needs no GPU.",
)
def stage(file: Path, convert: bool) -> None:
    """Bring the files of FILE's models to this node's cache, before a replica needs them.

    Files that are there are not fetched again; interrupted ones are resumed. It is safe to run
    while replicas start. Relative paths are below $HEADRACE_SOURCES, else beside FILE.
    """
    call("deployments.tools.stage", "stage", file, convert=convert)


@click.command(epilog="Example: headrace profile own.yaml minilm --compare torch,openvino")
@click.argument("file", type=FILE)
@click.argument("model", required=False)
@click.option(
    "--seconds",
    type=click.FloatRange(1, 86_400),
    default=60.0,
    show_default=True,
    help="How long to measure, besides loading and warm-up.",
)
@click.option(
    "--lengths",
    type=FILE,
    help="Lengths of rows: one a line, a recording (.csv, .jsonl) or a scenario.",
)
@click.option(
    "--compare", metavar="RUNTIME[:PRECISION],…", help="Find the fastest backend instead."
)
@click.option("--dry-run", is_flag=True, help="Store nothing for serve.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
@click.option("--seed", type=int, default=0, help="Seed of every random choice.")
def profile(file: Path, compare: str | None, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Measure what MODEL's batches cost on this machine, and store the profile for serve.

    MODEL may be left out if FILE has only one.
    """
    from deployments.tools.profile.measure import ProfileOptions

    if options["seconds"] != options["seconds"]:
        raise click.BadParameter("is nan; must be a number of seconds", param_hint="--seconds")
    wanted, module = ProfileOptions(file, **options), "deployments.tools.profile"
    if compare is None:
        call(f"{module}.command", "profile", wanted, dry_run=dry_run, as_json=as_json)
    else:
        names = [name.strip() for name in compare.split(",")]
        call(f"{module}.compare", "compare", wanted, names, as_json=as_json)


GPU_NAMES = (
    "a30", "a100-40", "a100-80", "h100-80", "h100-94", "gh200-96", "h200-141", "b200-180",
    "gh200-144", "gb200-186", "b300-269", "gb300-278",
)  # fmt: skip


def _pairs(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    """Parses a repeated option of the form `NAME=VALUE`."""
    found = {}
    for value in values:
        name, equals, right = value.partition("=")
        if not name or not equals or not right:
            raise click.BadParameter(f"{value!r} must be {param.metavar}", ctx, param)
        found[name] = right
    return found


def _mib(ctx: click.Context, param: click.Parameter, values: Sequence[str]) -> dict[str, int]:
    found = {}
    for name, right in _pairs(ctx, param, values).items():
        if not right.isdecimal() or int(right) < 1:
            said = f"{right!r} must be a whole number of MiB, at least 1"
            raise click.BadParameter(said, ctx, param)
        found[name] = int(right)
    return found


def _gpu_counts(values: Sequence[str], gpus: Sequence[str]) -> dict[str, int]:
    """Of each GPU model in `--gpus` how many there are; the model may be left out if it is one."""
    found = {}
    for value in values:
        name, _, number = value.rpartition("=")
        if not number.isdecimal() or not (name or len(gpus) == 1):
            form = "N" if len(gpus) == 1 else "GPU=N"
            raise click.BadParameter(f"{value!r} must be {form}", param_hint="--gpus")
        found[name or gpus[0]] = int(number)
    return found


@click.group()
def plan() -> None:
    """What to ask a cluster for."""


@plan.command(epilog="Example: headrace plan mig own.yaml --gpu h100-80")
@click.argument("file", type=FILE)
@click.option(
    "--gpu", multiple=True, type=click.Choice(GPU_NAMES), required=True, metavar="GPU",
    help=f"The GPUs' model; repeatable, for fleets: {', '.join(GPU_NAMES)}.",
)  # fmt: skip
@click.option(
    "--gpus", multiple=True, metavar="[GPU=]N",
    help="How many there are; unset, what it takes. Repeatable, for fleets.",
)  # fmt: skip
@click.option(
    "--per-node", type=click.IntRange(1), default=8, show_default=True, help="GPUs of a node."
)
@click.option(
    "--need", "need_mib", multiple=True, metavar="MODEL=MIB", callback=_mib,
    help="Memory that a replica was seen to take, all in; repeatable.",
)  # fmt: skip
@click.option(
    "--on", "profiles", multiple=True, metavar="MODEL=[GPU:]PROFILE", callback=_pairs,
    help="The slice to take, instead of the cheapest that holds it, or only the GPU; repeatable.",
)  # fmt: skip
@click.option(
    "--usable", multiple=True, metavar="[GPU:]PROFILE=MIB", callback=_mib,
    help="A slice's memory as a node says (nvidia-smi mig -lgip); repeatable.",
)  # fmt: skip
@click.option(
    "--margin", type=click.FloatRange(0, 400), default=10.0, show_default=True,
    help="On top of what nobody measured, in %.",
)  # fmt: skip
@click.option("--surge", is_flag=True, help="Slices for what starts while a model changes, too.")
@click.option("--values", type=FILE, help="The chart's values in force: their groups stay first.")
@click.option(
    "--devices", type=click.Choice(("plugin", "dra", "gke")), default="plugin", show_default=True,
    help="How pods get slices: of the device plugin, by claims, or as GKE offers them.",
)  # fmt: skip
@click.option("--to", type=FILE, help="Write values, layout and groups into this folder.")
def mig(file: Path, to: Path | None, margin: float, gpus: Sequence[str], **options: Any) -> None:
    """Pack FILE's replicas onto MIG slices: who goes where, what is wasted, who has no place.

    MODEL may be MODEL/GROUP. Exit code 1: a replica has no place (docs/mig.md).
    """
    from deployments.tools.plan.manifests import MigRequest
    from deployments.tools.plan.mig import plan_mig

    request = MigRequest(margin=margin / 100, gpus=_gpu_counts(gpus, options["gpu"]), **options)
    sys.exit(plan_mig(file, request, to=to))


_LAYERS = click.Choice(["image", "node", "config"])


@click.group()
def key() -> None:
    """Keys of tenants and of operators (docs/security.md)."""


@key.command(epilog="Example: headrace key new own.yaml --tenant acme --id laptop --expires 90d")
@click.option("--tenant", metavar="NAME", help="The tenant that the key is for.")
@click.option(
    "--operator", is_flag=True, help="Make an operator's key: it sees all, and cannot run a model."
)
@click.option("--id", metavar="ID", help="Name of the key; unset, its hash's beginning.")
@click.option("--expires", "lives_s", type=Duration(), help="The key ends after: 12h, 90d.")
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="MODEL",
    help="The key is only for this model, or `model:adapter`; repeatable.",
)
@click.argument("file", type=FILE, required=False)
def new(file: Path | None, tenant: str | None, operator: bool, **options: Any) -> None:
    """Make a key. Its hash goes into the settings; the key itself goes to the tenant.

    FILE: write the hash into this settings or tenants file.
    """
    if operator and (tenant or options["models"]):
        raise click.UsageError("--operator cannot be combined with --tenant or --model")
    if file is not None and not operator and tenant is None:
        raise click.UsageError("FILE needs --tenant NAME or --operator, to say whose key it is")
    from deployments.tools.keys import NewKey

    call("deployments.tools.keys", "new", NewKey(tenant, operator, **options), file)


@key.command("list", epilog="Example: headrace key list --url http://GATEWAY:8000")
@click.argument("file", type=FILE, required=False)
@reaches()
def list_keys(file: Path | None, where: Where) -> None:
    """Show all keys of FILE, or of a running server: id, owner, state and expiry."""
    if file is not None and where != Where():
        raise click.UsageError("the keys are FILE's, or a server's; must be one of them")
    call("deployments.tools.keys", "show", file, where)


@key.command(epilog="Example: headrace key revoke laptop own.yaml")
@click.argument("name", metavar="ID")
@click.argument("file", type=FILE, required=False)
@click.option(
    "--release",
    metavar="NAMESPACE/RAYSERVICE",
    help="A RayService on Kubernetes: all of its clusters, and those to come (with kubectl).",
)
@reaches()
def revoke(name: str, file: Path | None, release: str | None, where: Where) -> None:
    """Revoke a key, by its id or hash, at a running server: at once, while its cluster lives.

    With FILE the key is removed from that settings or tenants file, and a server is told only if
    --port or --url names one. On Kubernetes use --url and --release: the first ends the key at once
    where callers are answered, the other within two minutes in all clusters of the RayService.
    """
    call("deployments.tools.keys", "revoke", name, file, where, release)


@key.command(
    epilog="Example: headrace key carry --url https://HOST --release headrace/demo-headrace"
)
@click.argument("file", type=FILE, required=False)
@click.option(
    "--release",
    metavar="NAMESPACE/RAYSERVICE",
    required=True,
    help="The RayService on Kubernetes (with kubectl).",
)
@reaches(address="keys revoked at a gateway are not seen there; --url and --port show them")
def carry(file: Path | None, release: str, where: Where) -> None:
    """Revoke for a RayService what is revoked at a server: its next cluster would not know.

    FILE: the tenants in force there, for hashes that gateways of earlier versions do not tell.
    """
    call("deployments.tools.keys", "carry", file, where, release)


@click.group()
def rollout() -> None:
    """Rollouts: new versions that replace a model's live one step by step (docs/rollouts.md)."""


_NO_ROLLOUTS = "gateways decide no rollouts; --address can, and --port on the server's machine"


@rollout.command("status", epilog="Example: headrace rollout status minilm")
@click.argument("model", required=False)
@reaches(url=_NO_ROLLOUTS)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of lines.")
def rollout_status(model: str | None, where: Where, as_json: bool) -> None:
    """Show rollouts: those under way, and the last one of each model.

    On a cluster their counts are of the beginning of the present step.
    """
    call("deployments.tools.watching", "rollouts", model, where, as_json=as_json)


@rollout.command(epilog="Example: headrace rollout promote minilm")
@click.argument("model")
@reaches(url=_NO_ROLLOUTS)
def promote(model: str, where: Where) -> None:
    """Let MODEL's new version replace the live one now, without its remaining steps."""
    call("deployments.tools.change", "promote", model, where)


@rollout.command(epilog='Example: headrace rollout abort minilm --reason "wrong answers"')
@click.argument("model")
@click.option("--reason", default="", help="Why, for the audit log.")
@reaches(url=_NO_ROLLOUTS)
def abort(model: str, reason: str, where: Where) -> None:
    """Remove MODEL's new version; the live version goes on unchanged."""
    call("deployments.tools.change", "abort", model, reason, where)


@rollout.command(epilog="Example: headrace rollout back minilm")
@click.argument("model")
@reaches(url=_NO_ROLLOUTS)
def back(model: str, where: Where) -> None:
    """Replace MODEL's version by the one that ran before it, at once.

    Each call goes one version further back. A server knows the last five since it started.
    """
    call("deployments.tools.change", "back", model, where)


@click.group()
def cluster() -> None:
    """Nodes of a Ray cluster: what they need, and whether they have it (docs/cluster.md)."""


@cluster.command(epilog='Example: eval "$(headrace cluster env own.yaml)" && ray start --head')
@click.argument("file", type=FILE, required=False)
@click.option(
    "--layer", "layers", multiple=True, type=_LAYERS, help="Only this layer's; repeatable."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of shell.")
def env(file: Path | None, layers: tuple[str, ...], as_json: bool) -> None:
    """Print the variables to export on a node before `ray start`, for FILE's gateway."""
    call("deployments.tools.cluster", "env", file, layers, as_json)


@cluster.command(epilog="Example: headrace cluster check own.yaml --address http://HEAD:8265")
@click.argument("file", type=FILE, required=False)
@click.option(
    "--address",
    metavar="URL",
    help="The cluster's dashboard; unset, $RAY_API_SERVER_ADDRESS or this machine's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def check(file: Path | None, address: str | None, as_json: bool) -> None:
    """Check whether every node of a Ray cluster can serve FILE; show what is wrong."""
    call("deployments.tools.cluster", "check", file, address, as_json)


@click.group()
def adapter() -> None:
    """Adapters of a model that runs: added, taken out, listed (docs/generation.md)."""


_NO_ADAPTERS = "gateways bring in no files; --address can, and --port on the server's machine"


@adapter.command("add", epilog="Example: headrace adapter add llm law adapters/law")
@click.argument("model")
@click.argument("name")
@click.argument("source")
@reaches(url=_NO_ADAPTERS)
def add_adapter(model: str, name: str, source: str, where: Where) -> None:
    """Let requests ask for MODEL:NAME, an adapter whose files are at SOURCE.

    SOURCE is as in a settings file. With the name of an adapter that there is, its new source.
    """
    call("deployments.tools.change", "add_adapter", model, name, source, where)


@adapter.command("remove", epilog="Example: headrace adapter remove llm law")
@click.argument("model")
@click.argument("name")
@reaches(url=_NO_ADAPTERS)
def remove_adapter(model: str, name: str, where: Where) -> None:
    """Let nobody ask for MODEL:NAME any more; what runs goes on."""
    call("deployments.tools.change", "remove_adapter", model, name, where)


@adapter.command("list", epilog="Example: headrace adapter list llm")
@click.argument("model")
@reaches(url=_NO_ADAPTERS)
def list_adapters(model: str, where: Where) -> None:
    """List MODEL's adapters with their sources."""
    call("deployments.tools.change", "list_adapters", model, where)


COMMANDS = (try_model, verify, record, profile, stage, key, rollout, adapter, cluster, plan)
