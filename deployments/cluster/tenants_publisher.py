"""The Serve application that carries what other processes take up while they run: its constructor
publishes the tenants and what the file says of scaling, then it idles.

So both travel in the same list of applications as everything else, and changing them restarts
neither gateways nor models. When the application goes, what it published stays: a gateway that is
left without tenants would let everybody in.
"""

from __future__ import annotations

from typing import Any

from deployments.contract import tenants_store
from deployments.contract.scaling import document, store
from deployments.settings.load import parse_tenants, settings_digest

_SCALING = "scaling"


class TenantsPublisher:
    def __init__(self, args: dict[str, Any]) -> None:
        """`args`: {"scaling": text of a `ScalingDocument`}, and unless a path names the tenants
        {"tenants": text of a tenants file, "priorities": the gateway's}. Raises SettingsErrors:
        Serve then shows what is wrong, and what was published before stays."""
        tenants = {name: value for name, value in args.items() if name != _SCALING}
        if tenants:
            parse_tenants(tenants["tenants"], "tenants", tenants["priorities"])
        document.parse(args[_SCALING])
        store.put(store.DOCUMENT, args[_SCALING])
        if tenants:
            tenants_store.publish_deployed(tenants["tenants"], settings_digest(tenants))
