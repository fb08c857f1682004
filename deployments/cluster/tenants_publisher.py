"""The Serve application that carries the tenants: its constructor publishes them, then it idles.

So tenants travel in the same list of applications as everything else, and changing them restarts
neither gateways nor models. When the application goes, what it published stays: a gateway that is
left without tenants would let everybody in.
"""

from __future__ import annotations

from typing import Any

from deployments.contract import tenants_store
from deployments.settings.load import parse_tenants, settings_digest


class TenantsPublisher:
    def __init__(self, args: dict[str, Any]) -> None:
        """`args`: {"tenants": text of a tenants file, "priorities": the gateway's}. Raises
        SettingsErrors: Serve then shows what is wrong, and what was published before stays."""
        parse_tenants(args["tenants"], "tenants", args["priorities"])
        tenants_store.publish_deployed(args["tenants"], settings_digest(args))
