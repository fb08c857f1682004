"""`headrace check --fingerprint`: shows how a model's inputs are prepared, or also stores that.

Run with `--write` on a machine where the model's answers are known to be right: the file
`preprocessing.json` then travels with the artifact. Better still, the training script writes it.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from deployments.replica.artifacts.local_model import local_file
from deployments.settings.reference import CannotVerify
from deployments.settings.remote_source import is_remote, redacted
from deployments.settings_files import preprocessing_support
from deployments.settings_files.made import cache_dir
from deployments.tools.console.progress_bar import shown_progress
from deployments.tools.verify.command import chosen
from runtimes import fingerprint


def show(file: Path, name: str, *, write: bool) -> int:
    """Print the fingerprint; with `write`, store it. Returns the exit code. Raises SettingsErrors,
    also if a stored fingerprint disagrees: it is never overwritten. Raises CannotVerify."""
    model = chosen(file, name)
    if model.source is None:
        raise CannotVerify(f"models.{name} has no artifact to store a fingerprint beside")
    if write and is_remote(model.source):
        raise CannotVerify(
            f"models.{name} is fetched from {redacted(model.source)}: nothing can be stored beside "
            "it from here; store it where the artifact is made, and update the source's digest"
        )
    with shown_progress(name) as note:
        source = local_file(model.source, cache_dir(), note)
    does = preprocessing_support.supported_preprocessing(model, source)
    if not does:
        raise CannotVerify(f"models.{name} gets its tensors unchanged: it has no fingerprint")
    click.echo(json.dumps(does, indent=2))
    if write:
        stored = fingerprint.read(source)
        click.echo(f"stored in {fingerprint.write(source, stored | does)}", err=True)
    return 0
