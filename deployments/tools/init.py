"""`headrace init`: a settings file to start from, with what its settings mean as comments; and what
`headrace check` says of scaling.

It is made from the descriptions of the settings themselves, and serves as it is: a pretended device
stands for the model. Lines that begin with `# ` and a setting show what a file may also say.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import click
from pydantic.fields import FieldInfo

from autoscaling.sentences import explain
from deployments.control.scaling.scaling_terms import scaling_document
from deployments.settings.gateway import GatewaySettings
from deployments.settings.model import ModelSettings
from deployments.settings.remote_source import is_url
from deployments.settings.scaling import ModelScalingSettings
from deployments.settings.tenant import TenantSettings
from deployments.settings.tree import Settings
from deployments.settings_files.sources import resolve
from runtimes import fingerprint
from yaml_document.section import Section
from yaml_document.shape import fields_below

_WIDE = 96
_HEAD = """Settings of one Headrace server. `headrace check {name}` says what is wrong with them,
`headrace serve {name}` serves them; docs/settings.md has all settings. A line with `#` before
a setting is an example, or shows a default."""
# What stands in the file, chapter by chapter: a setting and its value. `# `: as a comment.
_CHAPTERS: tuple[tuple[str, str, type[Section], dict[str, str]], ...] = (
    ("models", "own", ModelSettings, {
        "runtime": "synthetic", "# source": "models/own.onnx", "task": "tensors",
        "slo.latency_ms": "100", "lengths.max": "512", "batch.max_size": "32",
        "replicas.count": "1", "# rollout.steps_percent": "[5, 25, 50]",
    }),
    ("tenants", "default", TenantSettings, {
        "weight": "1", "# keys": "[] # `headrace key new {name} --tenant default` adds one",
    }),
    ("gateway", "", GatewaySettings, {"port": "8000", "# host": "0.0.0.0"}),
)  # fmt: skip


def init(path: Path) -> int:
    """Write the file. Returns the exit code: 1 if it exists or cannot be written."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text(path.name))
    except FileExistsError:
        click.echo(f"{path} exists already, and is left as it is; name another file", err=True)
        return 1
    except OSError as fault:
        click.echo(f"{path} cannot be written: {fault.strerror or fault}", err=True)
        return 1
    click.echo(f"{path}: serve it with `headrace serve {path}`, then put your own model into it")
    return 0


def text(name: str) -> str:
    """The whole file. `name`: its name."""
    lines = [*_comment(_HEAD.format(name=name), "")]
    for chapter, each, section, chosen in _CHAPTERS:
        lines += ["", *_comment(Settings.model_fields[chapter].description or "", "")]
        lines.append(f"{chapter}:")
        if each:
            lines.append(f"  {each}:")
        values = {path: value.format(name=name) for path, value in chosen.items()}
        lines += _settings(values, dict(fields_below(section)), "    " if each else "  ")
    return "\n".join(lines) + "\n"


def _settings(chosen: dict[str, str], fields: dict[str, FieldInfo], indent: str) -> Iterator[str]:
    for path, value in chosen.items():
        mark = "# " if path.startswith("# ") else ""
        path = path.removeprefix("# ")
        section, _, name = path.rpartition(".")
        yield from _comment(fields[path].description or "", indent)
        if section:
            yield f"{indent}{mark}{section}: {{{name}: {value}}}"
        else:
            yield f"{indent}{mark}{name}: {value}"


def _comment(words: str, indent: str) -> Iterator[str]:
    yield from textwrap.wrap(
        words, _WIDE, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ",
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def scaling_lines(settings: Settings) -> Iterator[str]:
    """What each model's scaling policy does, of models that have a range of replicas or a `scaling`
    section. A fixed number needs no explanation."""
    terms = scaling_document(settings).settings.models
    for name, model in settings.models.items():
        views = model.views() or {"": model}
        decided = any(view.replicas.least < view.replicas.most for view in views.values())
        if decided or model.scaling != ModelScalingSettings():
            yield f"{name}:"
            yield from (f"  {sentence}" for sentence in explain(terms[name]))


def text_lines(settings: Settings) -> Iterator[str]:
    """Which models would take texts if their files on this machine had a tokeniser."""
    for name, model in settings.models.items():
        source = model.source
        if source is None or is_url(source) or model.runtime in ("python", "synthetic"):
            continue
        if model.task not in ("embed", "classify") or model.image is not None:
            continue
        if fingerprint.beside(resolve(source), "tokenizer.json") is None:
            yield (
                f"{name}: has no tokenizer.json beside its weights, so it takes token ids and no "
                "texts; add the model's own for texts"
            )
