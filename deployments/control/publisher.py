"""Publishes what Serve's list says to the processes that serve: tenants, scaling, numbers by hand.

They read it from the cluster's key-value store, and take up a change while they run. What was
published stays when the list goes: a gateway without tenants would let everybody in.
"""

from __future__ import annotations

import json
import logging

import ray
import yaml

from deployments.contract.listed import Control
from deployments.control.dashboard import ClusterError
from deployments.control.plan import OPENS, lists_keys
from deployments.control.scaling import store
from deployments.control.scaling.scaling_terms import published_scaling
from deployments.process import actors, adapters_store, audit, tenants_store
from deployments.process.audit import AuditLine
from deployments.settings.plain import SettingsErrors, settings_digest
from deployments.settings_files.load import parse_tenants, tenants_text
from yaml_document.mistakes import Mistake

_ANSWER_S = 10.0  # for the autoscaler
logger = logging.getLogger("headrace.control")


def publish(control: Control) -> None:
    """Publish what has changed. Raises SettingsErrors; then what was published before stays."""
    scaling = published_scaling(control)
    text = _tenants(control)
    store.put(store.DOCUMENT, scaling.text())
    adapters_store.publish(control.adapters)
    for key_hash in control.revoked:
        tenants_store.revoke(key_hash)
    if text is None:
        return
    # Once a deployment: a process that starts anew must not undo what an operator has set since.
    # `turn` makes each `freeze` a deployment.
    deployed = {"tenants": control.tenants, "priorities": list(control.priorities),
                "auth": control.auth, "turn": control.turn}  # fmt: skip
    before = tenants_store.fetch() or ""
    tenants_store.publish_deployed(text, settings_digest(deployed))
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
        replicas = control.pins.get(name)
        if before.get(name) != replicas and (complaint := _pin(name, replicas)):
            logger.warning("replicas of %s by hand: %s", name, complaint)
    store.put(store.PINS, json.dumps(dict(control.pins)))


def _pin(name: str, replicas: int | None) -> str:
    """What the autoscaler has against the number; "" if nothing. It keeps the number, also over its
    own restarts, until it is told to decide again."""
    model, _, group = name.partition("/")
    try:
        asked = actors.running_autoscaler().pin.remote(model, group, replicas)
        return str(ray.get(asked, timeout=_ANSWER_S))
    except (ValueError, ray.exceptions.RayError) as away:
        raise ClusterError(
            f"the autoscaler is away ({type(away).__name__}); try again in some seconds"
        ) from None


def _tenants(control: Control) -> str | None:
    """The text to publish; None if a path names the tenants."""
    if control.tenants is None:
        return None
    tenants = parse_tenants(yaml.safe_dump(control.tenants), "tenants", control.priorities)
    before = yaml.safe_load(tenants_store.fetch() or "") or {}
    if control.auth is None and lists_keys(before) and not tenants.lists_keys:
        raise SettingsErrors([Mistake("tenants", 0, "", OPENS)])
    return tenants_text(tenants)
