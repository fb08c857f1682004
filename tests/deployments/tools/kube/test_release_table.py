from __future__ import annotations

import io
from datetime import timedelta

import pytest
from rich.console import Console

from deployments.tools.kube.release import not_running, rows
from deployments.tools.kube.release_table import age, explain, show
from deployments.tools.kube.types import Snapshot
from tests.deployments.tools.kube.kube_objects import (
    CLUSTER,
    NOW,
    pod,
    ray_cluster,
    ray_service,
    waiting,
)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"), (119, "119 s"), (120, "2 min"), (7_199, "119 min"), (7_200, "2 h"),
        (172_800, "2 d"), (-90, "in 90 s"), (-900, "in 15 min"),
    ],
)  # fmt: skip
def test_an_age_has_one_unit(seconds: int, said: str) -> None:
    assert age(NOW - timedelta(seconds=seconds), NOW) == said


def shown(what, *args) -> str:
    out = io.StringIO()
    what(*args, Console(file=out, width=200))
    return out.getvalue()


def test_what_is_well_needs_one_line_a_pod_and_no_paragraph() -> None:
    said = {name: {"status": "RUNNING"} for name in ("gateway", "model-minilm", "model-small")}
    well = Snapshot(
        ray_service(said), {CLUSTER: ray_cluster()},
        [pod("h", "head"), pod("g", "gateways"), pod("m"), pod("n")],
    )  # fmt: skip
    lines = shown(show, well, rows(well), NOW).splitlines()
    assert len(lines) == 2 + 4
    assert "minilm x1-4, small x2" in lines[-1]
    assert shown(explain, well, None, not_running(well), rows(well), NOW) == "nothing is wrong\n"


def test_a_clusters_successor_and_what_was_not_read_are_said() -> None:
    pods = [pod("[red]m", status=waiting("ContainerCreating"))]
    service = ray_service(pendingServiceStatus={"rayClusterName": "next-one"})
    found = Snapshot(service, {}, pods, unread=("you may not list events",))
    text = shown(show, found, rows(found), NOW)
    assert "next cluster next-one" in text
    assert "[red]m" in text, "names are no markup"
    assert text.endswith("you may not list events\n")
    assert "minilm is not known to Serve yet" in text
