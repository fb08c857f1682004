"""Publishes what Serve's list says to the processes that serve: tenants, scaling, numbers by hand.

They read it from the cluster's key-value store, and take up a change while they run. What was
published stays when the list goes: a gateway without tenants would let everybody in.
"""

from __future__ import annotations

import json
import logging

import yaml

from deployments.contract.listed import Control
from deployments.control.dashboard import ClusterError
from deployments.control.manual_target import ManualTarget, set_target
from deployments.control.plan import OPENS
from deployments.control.scaling import store
from deployments.control.scaling.scaling_terms import scaling_told
from deployments.process import audit, tenants_store
from deployments.process.audit import AuditLine
from deployments.settings.plain import SettingsErrors, settings_digest
from deployments.settings_files.load import parse_tenants, tenants_text
from yaml_document.mistakes import Mistake

logger = logging.getLogger("headrace.control")


def publish(control: Control) -> None:
    """Publish what has changed. Raises SettingsErrors; then what was published before stays."""
    scaling = scaling_told(control)
    text = _tenants(control)
    store.put(store.DOCUMENT, scaling.text())
    for key_hash in control.revoked:
        tenants_store.revoke(key_hash)
    if text is None:
        return
    before = tenants_store.fetch() or ""
    tenants_store.publish_deployed(text, _deployment(control))
    after = tenants_store.fetch() or ""
    if before != after:
        source = "Serve's list of applications"
        audit.record(
            AuditLine("a deployment", "publish", "tenants", source, audit.digest(before),
                      audit.digest(after))
        )  # fmt: skip


def pin(control: Control) -> None:
    """Hand on the numbers of replicas that have changed since the last time. The autoscaler keeps
    them. Raises ClusterError if it is away."""
    before: dict[str, int] = json.loads(store.get(store.PINS) or "{}")
    for name in before.keys() | control.pins.keys():
        if before.get(name) != (replicas := control.pins.get(name)):
            model, _, group = name.partition("/")
            answer = set_target(ManualTarget(model, group, replicas))
            if answer.get("away"):
                raise ClusterError(answer["error"])
            if complaint := answer.get("error"):
                logger.warning("replicas of %s by hand: %s", name, complaint)
    store.put(store.PINS, json.dumps(dict(control.pins)))


def _tenants(control: Control) -> str | None:
    """The text to publish; None if a path names the tenants."""
    if control.tenants is None:
        return None
    tenants = parse_tenants(yaml.safe_dump(control.tenants), "tenants", control.priorities)
    before = tenants_store.fetch() or ""
    if control.auth is None and _listed_keys(before) and not tenants.lists_keys:
        raise SettingsErrors([Mistake("tenants", 0, "", OPENS)])
    return tenants_text(tenants)


def _deployment(control: Control) -> str:
    """Published once a deployment: a process that starts anew must not undo what an operator has
    set since. `turn` makes each `freeze` a deployment."""
    given = {"tenants": control.tenants, "priorities": list(control.priorities),
             "auth": control.auth, "turn": control.turn}  # fmt: skip
    return settings_digest(given)


def _listed_keys(published: str) -> bool:
    """Whether the tenants that were published before list any key. Their text was valid for
    whoever published it, perhaps another version of Headrace."""
    before = (yaml.safe_load(published) or {}).get("tenants", {})
    return any(tenant.get("keys") is not None for tenant in before.values())
