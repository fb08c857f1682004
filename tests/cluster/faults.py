"""What a fault cost, measured under load.

Two kinds of callers ask through the ingresses of the nodes that are not hit: those whose requests
may run twice, none of which may fail, and those who say `x-idempotent: false`, who may lose what
was under way on what died, and nothing that they asked for later. What callers of the hit node's
own ingress lose is counted apart. Callers have only one request under way each.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.cluster.headrace_nodes import HeadraceNodes
from tests.cluster.ray_nodes import Node
from tests.cluster.steady_load import Outcome, SteadyLoad

REPORT = "HEADRACE_FAULTS"  # environment: a file that every measured fault adds a line to
SETTLE_S = 3.0
SLOW_S = 1.0
_SHOWN = 6
UNDER_WAY_S = 1.0  # a request that left so long before a fault may have been hit by it


@dataclass(frozen=True, slots=True)
class FaultCost:
    """answered, failed: of requests that may run twice; not_found: 404 among all. lost: of those
    that may not, `lost_later` among them of those that left after the fault. slow_s: until answers
    took less than a second again, from the fault on; longest_s: the longest that one took.
    whole_s: until every replica ran again on a node that runs, from the time when as many nodes
    were there again. slowest: those that took longest, where a second or more, as text."""

    fault: str
    answered: int
    failed: int
    not_found: int
    lost: int
    lost_later: int
    slow_s: float
    longest_s: float
    whole_s: float = 0.0
    reasons: tuple[str, ...] = ()
    slowest: tuple[str, ...] = ()


class Callers:
    """Those of one measurement; a context manager."""

    def __init__(self, nodes: HeadraceNodes, hit: Sequence[Node], model: str) -> None:
        urls = nodes.urls(*hit)
        self.repeatable = SteadyLoad(urls, model, callers=8)
        self.once = SteadyLoad(urls, model, callers=4, headers={"x-idempotent": "false"})
        self.fault_at = 0.0

    @contextmanager
    def asking(self) -> Iterator[Callers]:
        with self.repeatable, self.once:
            time.sleep(SETTLE_S)
            yield self

    def struck(self) -> None:
        """The fault happens now."""
        self.fault_at = time.monotonic()

    def cost(self, fault: str) -> FaultCost:
        every = self.repeatable.outcomes + self.once.outcomes
        lost = self.once.failures
        late = [o for o in every if o.ended_s > self.fault_at and o.took_s > SLOW_S]
        return FaultCost(
            fault,
            answered=self.repeatable.answered,
            failed=len(self.repeatable.failures),
            not_found=sum(o.reason.startswith("404") for o in every),
            lost=len(lost),
            lost_later=sum(o.sent_s > self.fault_at + UNDER_WAY_S for o in lost),
            slow_s=max((o.ended_s - self.fault_at for o in late), default=0.0),
            longest_s=max((o.took_s for o in every if o.ended_s > self.fault_at), default=0.0),
            reasons=tuple(sorted({o.reason for o in self.repeatable.failures + lost})),
            slowest=tuple(self._told(o) for o in sorted(late, key=lambda o: -o.took_s)[:_SHOWN]),
        )

    def _told(self, outcome: Outcome) -> str:
        after_s = outcome.sent_s - self.fault_at
        return f"left {after_s:+.1f} s after it, took {outcome.took_s:.1f} s: {outcome.url}"


def measured(
    nodes: HeadraceNodes, fault: str, strike: Callable[[], None], *hit: Node,
    model: str = "slow", lasts_s: float = 20.0,
) -> FaultCost:  # fmt: skip
    """`strike` makes the fault; `hit`: nodes whose ingress nobody asks, which end after it and are
    replaced. `lasts_s`: how long callers go on."""
    with Callers(nodes, hit, model).asking() as callers:
        callers.struck()
        strike()
        time.sleep(lasts_s)
    for node in hit:
        node.machine.kill()
    whole_s = nodes.heal() if hit else 0.0
    cost = replace(callers.cost(fault), whole_s=whole_s)
    report(cost)
    return cost


def report(cost: FaultCost) -> None:
    """As a line of JSON, where the environment names a file."""
    if path := os.environ.get(REPORT):
        with Path(path).open("a") as file:
            file.write(json.dumps(asdict(cost)) + "\n")
