"""Does a record come back as it was kept, and is what is none refused?"""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.results.record import (
    Client,
    Record,
    RecordError,
    Second,
    TenantLengthStats,
    load,
    save,
)


def example() -> Record:
    chat, long = (
        TenantLengthStats(offered=3, in_slo=2, reasons={"503": 1}),
        TenantLengthStats(offered=1),
    )
    for cell, latencies in ((chat, (0.01, 0.02)), (long, (0.3,))):
        for latency_s in latencies:
            cell.latency.add(latency_s)
    return Record(
        name="ragged-mix",
        seconds=2.0,
        slo_ms=100.0,
        edges=(32, 512),
        cells={"chat": {32: chat, 512: TenantLengthStats()}, "batch": {512: long}},
        time_series=[Second(offered=4, answered=3, p50_ms=20.0)],
        batch_sizes={8: 3},
        tokens=60,
        padded_tokens=80,
        client=Client(sent=4),
        checks=[("p95 at most 100 ms", "20 ms", True)],
    )


def test_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "a.json"
    save(example(), path)
    assert load(path) == example()


def test_parts_add_up() -> None:
    record = example()
    assert record.total().offered == 4
    assert record.by_tenant()["chat"].latency.total == 2
    assert record.by_length()[512].latency.total == 1
    assert record.padding == pytest.approx(0.25)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1}', '{"format": 99}'])
def test_what_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(RecordError, match=r"a\.json"):
        load(path)
    with pytest.raises(RecordError, match="cannot be read"):
        load(tmp_path / "missing.json")
