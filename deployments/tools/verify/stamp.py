"""`headrace fingerprint`: what will be done to a model's inputs here, printed or stored beside it.

Run with `--write` where the model is known to be right, its `preprocessing.json` then travels with
the artifact; or the file is written by whoever trained it, who knows best.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from deployments.replica.artifacts.local_model import local_file
from deployments.settings import preprocessing_support
from deployments.settings.made import cache_dir
from deployments.settings.reference import CannotVerify
from deployments.settings.remote_source import is_remote, shown
from deployments.tools.verify.command import chosen, shown_progress
from runtimes import fingerprint


def stamp(file: Path, name: str, *, write: bool) -> int:
    """The exit code. Raises SettingsErrors for a file that is wrong, a stored fingerprint that
    disagrees included: what is stored is never overwritten by what contradicts it."""
    model = chosen(file, name)
    if model.source is None:
        raise CannotVerify(f"models.{name} has no artifact: there is nothing to store it with")
    if write and is_remote(model.source):
        raise CannotVerify(
            f"models.{name} is fetched from {shown(model.source)}: nothing can be stored beside it "
            "from here; store it where the artifact is made, and its digest anew"
        )
    with shown_progress(name) as note:
        source = local_file(model.source, cache_dir(), note)
    does = preprocessing_support.supported_preprocessing(model, source)
    if not does:
        raise CannotVerify(f"models.{name} gets its tensors as they come: nothing is done to them")
    click.echo(json.dumps(does, indent=2))
    if write:
        stored = fingerprint.read(source)
        click.echo(f"stored in {fingerprint.write(source, stored | does)}", err=True)
    return 0
