"""The versions of models in Serve's list of applications: each one's application, and what the
autoscaler is told of it, which travels with the tenants (`TenantsPublisher`).

The autoscaler is told of the last file's models as they are written, and apart from them of what
else runs: canaries, and live versions that are not the file's. Pure: lists in, lists out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypedDict

from deployments.contract.app_names import TENANTS_APP, model_app
from deployments.contract.rollout.terms import canary_of
from deployments.control.differences import Applications

_VERSIONS = "versions"  # argument of the tenants' application


class ListedVersion(TypedDict):
    """One version of a model, as the list has it."""

    application: Mapping[str, Any]  # the model's application
    scaling: Mapping[str, Any]  # the model's settings among those that the autoscaler is told


def lists(applications: Applications, name: str) -> bool:
    """Whether a model of this name, or a canary, is to run."""
    return model_app(name) in applications


def version_of(applications: Applications, name: str) -> ListedVersion:
    """The version that runs as the model of this name, or as its canary."""
    told = {**_told_of_file(applications), **_told_besides(applications)}
    return ListedVersion(application=applications[model_app(name)], scaling=told.get(name, {}))


def with_version(
    applications: Applications, name: str, version: ListedVersion
) -> dict[str, Mapping[str, Any]]:
    """The list with this version as the model of this name, or as its canary."""
    listed = {**applications, model_app(name): version["application"]}
    told = {**_told_besides(applications), name: version["scaling"]}
    if version["scaling"] == _told_of_file(applications).get(name):
        del told[name]
    return _telling_besides(listed, told)


def without_canary(applications: Applications, model: str) -> dict[str, Mapping[str, Any]]:
    name = canary_of(model)
    listed = {app: each for app, each in applications.items() if app != model_app(name)}
    left = {n: section for n, section in _told_besides(applications).items() if n != name}
    return _telling_besides(listed, left)


def _told_of_file(applications: Applications) -> Mapping[str, Any]:
    """By model: its section of the last file that was deployed."""
    found: Mapping[str, Any] = _arguments(applications).get("scaling", {}).get("models", {})
    return found


def _told_besides(applications: Applications) -> Mapping[str, Any]:
    """By model or canary: what holds instead, or besides."""
    found: Mapping[str, Any] = _arguments(applications).get(_VERSIONS, {})
    return found


def _telling_besides(
    applications: Applications, versions: Mapping[str, Any]
) -> dict[str, Mapping[str, Any]]:
    args = {name: each for name, each in _arguments(applications).items() if name != _VERSIONS}
    if versions:
        args[_VERSIONS] = versions
    return {**applications, TENANTS_APP: {**applications[TENANTS_APP], "args": args}}


def _arguments(applications: Applications) -> Mapping[str, Any]:
    found: Mapping[str, Any] = applications.get(TENANTS_APP, {}).get("args", {})
    return found
