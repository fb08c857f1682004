"""Does the live view say how it goes, of all processes together, and only on a terminal?"""

import io

from rich.console import Console

from loadtests.live_view import LiveView
from loadtests.results.record import TenantLengthStats
from loadtests.workers import Glimpse


def cell(offered: int, latency_s: float, **reasons: int) -> TenantLengthStats:
    found = TenantLengthStats(offered=offered, in_slo=offered // 2, reasons=dict(reasons))
    found.rejected = reasons.get("503", 0)
    for _ in range(offered - sum(reasons.values())):
        found.latency.add(latency_s)
    return found


def drawn(*glimpses: Glimpse) -> str:
    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    view = LiveView("ragged", 10.0, 70.0, console)
    console.print(view.drawn(list(glimpses)))
    return console.file.getvalue()


def test_processes_add_up_by_tenant_with_what_was_not_answered():
    one = Glimpse(20.0, {"chat": cell(1000, 0.01), "crawl": cell(100, 0.5, **{"503": 30})})
    other = Glimpse(20.4, {"chat": cell(500, 0.01), "crawl": cell(100, 0.5, timeout=5)})
    said = drawn(one, other)
    chat, crawl, whole = (
        next(line for line in said.splitlines() if line.startswith(name)).split()
        for name in ("chat", "crawl", "all")
    )
    assert chat[1:4] == ["1,500", "50.00%", "0"]
    assert crawl[1:5] == ["200", "50.00%", "30", "5"]
    assert whole[1] == "1,700"
    assert "not answered: 30 503, 5 timeout" in said
    assert "20 of 70 s" in said


def test_nothing_is_drawn_where_there_is_no_terminal():
    console = Console(file=io.StringIO(), force_terminal=False)
    with LiveView("ragged", 0.0, 1.0, console) as view:
        view([Glimpse(0.5, {"chat": TenantLengthStats()})])
    assert console.file.getvalue() == ""
