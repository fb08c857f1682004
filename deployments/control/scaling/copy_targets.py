"""Serve's autoscaling policy for each Headrace application: copies the autoscaler's targets.

Serve calls a policy in its controller, ten times a second, for all deployments of one application.
A policy that raises ends that tick for every application, so this one never raises, waits or logs.
A deployment that it leaves out keeps its target. That holds, too, while no autoscaler decides, and
it keeps the use of a handle from starting a replica of a model that sleeps. Serve pickles the class
with its module by value, so its state is in `target_reader`, which is imported by name.
Source: reading of ray 2.60 `serve/_private/autoscaling_state.py`, `serve/autoscaling_policy.py`.
"""

from __future__ import annotations

from typing import Any


class CopyTargets:
    """Takes no arguments: Serve restarts an application when its policy's arguments change."""

    def __call__(self, contexts: dict[Any, Any]) -> tuple[dict[Any, int], dict[Any, Any]]:
        try:
            from deployments.control.scaling.target_reader import reader

            return reader().copied(contexts), {}
        except Exception:
            return {}, {}
