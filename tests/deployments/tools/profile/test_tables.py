"""Do the tables say what was measured, and nothing where nothing was?"""

from __future__ import annotations

from pathlib import Path

import pytest
from made_profiles import IDENTITY, samples, square

from deployments.tools.profile.findings import Findings, Phase, Subject
from deployments.tools.profile.fitting import fit, knees
from deployments.tools.profile.html_page import html
from deployments.tools.profile.lengths import RowLengths
from deployments.tools.profile.overhead import MemoryUse
from deployments.tools.profile.tables import MIB, tables
from loadtests.results.report_table import Table, markdown
from runtimes.footprint import Parameters
from runtimes.types import Limits, RuntimeSettings, TensorSpec

LIMITS = Limits((TensorSpec("ids", "INT64", (-1, -1)),), (), length_input="ids")
SETTINGS = RuntimeSettings("<m>", "openvino", None, Path(), precision="bf16")
SUBJECT = Subject(
    "<m>", SETTINGS, IDENTITY, LIMITS, RowLengths((16, 20, 128), (16, 20, 128), "here", True),
    Parameters(22_700_000, 10_600_000, ("FP32",)), 0.045, 1,
)  # fmt: skip


@pytest.fixture
def found() -> Findings:
    made = Findings(
        SUBJECT, MemoryUse(100 * MIB, 5 * MIB, 0.5 * MIB, 8), spans=[Phase("sweep", 0, 1)]
    )
    made.samples = samples(square(), runs=3)
    made.fitted = fit(made.samples, pads=True, max_size=16, max_tokens=8192)
    assert made.fitted is not None
    made.knees = knees(made.fitted.points, SUBJECT.max_s)
    return made


def one(found: Findings, caption: str) -> Table:
    return next(each for each in tables(found) if caption in each.caption)


def test_the_baseline_has_its_five_figures(found: Findings) -> None:
    figures = dict(one(found, "baseline").rows)
    assert figures["parameters and dtype"] == "22.7 M, stored as FP32, computed in bf16"
    assert str(figures["peak memory of one request"]).startswith("5.0 MiB above 100 MiB loaded")
    assert str(figures["overhead per call"]).startswith("5.00 ms launch in every batch")
    assert figures["preprocessing"] == "no texts"
    assert len(figures) == 5


def test_throughput_by_batch_is_of_the_typical_length(found: Findings) -> None:
    table = one(found, "Throughput")
    assert "rows of 16" in table.caption
    assert [row[0] for row in table.rows] == [1, 4, 16]
    _, runs, p50_ms, *_, tokens_per_s = table.rows[-1]
    assert (runs, p50_ms) == (3, pytest.approx(10.248))
    assert tokens_per_s == pytest.approx(16 * 16 / 0.010248)


def test_stages_and_the_rest_make_up_the_call(found: Findings) -> None:
    for column in zip(*(row[1:] for row in one(found, "Stages").rows), strict=True):
        *parts, call = column[2:]
        assert sum(parts) == pytest.approx(call)


def test_before_anything_is_measured_there_is_the_baseline_alone() -> None:
    (only,) = tables(Findings(SUBJECT))
    assert "| overhead per call | – |" in markdown(only)


def test_the_page_stands_alone_and_escapes_names(found: Findings) -> None:
    page = html(found, ["Stored <nowhere>."])
    assert "<m>" not in page
    assert "Stored &lt;nowhere&gt;." in page
    assert page.count("<svg") >= 3
    assert "http" not in page.replace("http-equiv", "")
