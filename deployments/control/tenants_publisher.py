"""The Serve application that publishes what other processes take up while they run.

Its constructor publishes the tenants and the scaling settings; then it idles. So both travel in the
same list of applications as everything else, and changing them restarts neither gateways nor
models. When the application is deleted, what it published stays: a gateway without tenants would
let everybody in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from deployments.contract.scaling.document import ScalingDocument
from deployments.control.scaling import store
from deployments.control.scaling.scaling_terms import scaling_document
from deployments.process import audit, logs, tenants_store
from deployments.process.audit import AuditLine
from deployments.settings.load import (
    SettingsErrors,
    parse,
    parse_tenants,
    settings_digest,
    tenants_text,
)
from deployments.settings.model import ModelSettings
from yaml_document.mistakes import Mistake

_SCALING = "scaling"
_VERSIONS = "versions"
_OPENS = (
    "no tenant has a list of keys any more, which would let everybody in; set gateway.auth: open, "
    "if that is meant"
)


class TenantsPublisher:
    """Publishes on construction."""

    def __init__(self, args: dict[str, Any]) -> None:
        """`args`: {"scaling": a settings file's models, their pool and budget}, {"versions": the
        same of canaries, by their names, and of live versions that are not the file's} if there are
        any, and, unless a path names the tenants, {"tenants": the content of a tenants file,
        "priorities": the gateway's, and "auth" if it is set}. All as the user wrote it. Raises
        SettingsErrors; then Serve shows what is wrong, and what was published before stays."""
        scaling = scaling_told(args)
        given = {name: value for name, value in args.items() if name not in (_SCALING, _VERSIONS)}
        if given:
            text = yaml.safe_dump(given["tenants"])
            tenants = parse_tenants(text, "tenants", given["priorities"])
            before, text = tenants_store.fetch() or "", tenants_text(tenants)
            if "auth" not in given and _listed_keys(before) and not tenants.lists_keys:
                raise SettingsErrors([Mistake("tenants", 0, "", _OPENS)])
        store.put(store.DOCUMENT, scaling.text())
        if given:
            tenants_store.publish_deployed(text, settings_digest(given))
            _record(audit.digest(before), audit.digest(tenants_store.fetch() or ""))


def scaling_told(args: Mapping[str, Any]) -> ScalingDocument:
    """What the autoscaler is told by these arguments. Models of `versions` hold instead of the
    file's, or besides. They need not go together with those, as one file's models do: an old live
    version may name a model that the file has no more."""
    settings = parse(args[_SCALING])
    besides = {n: ModelSettings.model_validate(m) for n, m in args.get(_VERSIONS, {}).items()}
    return scaling_document(settings.model_copy(update={"models": {**settings.models, **besides}}))


def _listed_keys(published: str) -> bool:
    """Whether the tenants that were published before list any key. Their text was valid for
    whoever published it, perhaps another version of Headrace."""
    before = (yaml.safe_load(published) or {}).get("tenants", {})
    return any(tenant.get("keys") is not None for tenant in before.values())


def _record(before: str, after: str) -> None:
    """Audit the change, on this process's standard error, where a cluster collects logs."""
    if before != after:
        logs.configure_from_environment()
        source = "Serve's list of applications"
        audit.record(AuditLine("a deployment", "publish", "tenants", source, before, after))
