"""How all processes of a cluster log: gateways say it, the others take it up while they run.

A gateway that starts writes `gateway.log.level` and `format` into the cluster's store; a change of
them replaces the gateways. Every other process begins as its environment says, which is as old as
Serve's controller, and looks at the store on a thread of its own. So no model's replica restarts
for a log level. The debug lines of a process's first moments may be missing.
"""

from __future__ import annotations

import contextlib
import threading

from deployments.process import cluster_store, logs

_KEY = "log"
_LOOK_S = 5.0


def publish(level: str, form: str) -> None:
    """Write it for all processes. A store that is away costs no gateway its start."""
    with contextlib.suppress(cluster_store.StoreError):
        cluster_store.put(_KEY, f"{level} {form}".encode("ascii"))


def follow(model: str = "") -> None:
    """Log as the environment says, and from then on as the gateways do. `model`: as in
    `logs.configure`. For processes that are connected to a cluster."""
    logs.configure_from_environment(model)
    threading.Thread(target=_follow, args=(model,), name="log-choice", daemon=True).start()


def _follow(model: str) -> None:
    seen: bytes | None = None
    for_ever = threading.Event()
    while True:
        seen = look(seen, model)
        for_ever.wait(_LOOK_S)


def look(seen: bytes | None, model: str = "") -> bytes | None:
    """Take up what gateways say if it is not what was `seen`; what they say."""
    try:
        said = cluster_store.get(_KEY)
    except cluster_store.StoreError:
        return seen  # the next look finds it
    if said is not None and said != seen:
        level, form = said.decode("ascii").split()
        logs.configure(level, form, model=model)
    return said
