"""How actors of a cluster log: gateways publish it, the others take it up while they run.

A gateway that starts writes `gateway.log.level` and `format` into the cluster's store; a change of
them replaces the gateways. Every other actor begins with its environment, which is as old as
Serve's controller, and reads the store on a thread of its own. So no model's replica restarts for a
log level. The debug lines of a process's first moments may be missing. Not followed by the host
process of `headrace serve` and by process watchdogs, which are no actors.
"""

from __future__ import annotations

import logging
import threading
import time

from deployments.process import cluster_store, logs

_KEY = "log"
_LOOK_S = 5.0
logger = logging.getLogger("headrace.process")


def begin_publishing(level: str, form: str) -> None:
    """Write it for all actors, on a thread: no gateway's start waits for the store. While the store
    is away, try again."""
    args = (level, form)
    threading.Thread(target=_publish, args=args, name="log-choice", daemon=True).start()


def _publish(level: str, form: str) -> None:
    while not publish(level, form):
        time.sleep(_LOOK_S)


def publish(level: str, form: str) -> bool:
    """Whether the store took it."""
    try:
        cluster_store.put(_KEY, f"{level} {form}".encode("ascii"))
    except cluster_store.StoreError as why:
        logger.warning("other processes do not know yet how to log: %s", why)
        return False
    return True


def follow(model: str = "") -> None:
    """Log as the environment says, and from then on as the gateways do. `model`: as in
    `logs.configure`. For processes that are connected to a cluster."""
    logs.configure_from_environment(model)
    threading.Thread(target=_follow, args=(model,), name="log-choice", daemon=True).start()


def _follow(model: str) -> None:
    seen: bytes | None = None
    while True:
        seen = look(seen, model)
        time.sleep(_LOOK_S)


def look(seen: bytes | None, model: str = "") -> bytes | None:
    """Take up what gateways published if it is not what was `seen`, and return it. What cannot be
    meant is logged and otherwise ignored."""
    try:
        said = cluster_store.get(_KEY)
    except cluster_store.StoreError:
        return seen  # the next look finds it
    if said is not None and said != seen:
        try:
            level, form = said.decode("ascii").split()
            logs.configure(level, form, model=model)
        except ValueError as wrong:
            logger.warning("what gateways say of logging is ignored: %s", wrong)
    return said
