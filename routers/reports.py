"""Is what a replica says of itself possible?

A number that cannot be true (not a number, negative, longer than a batch can take) is replaced by
one that says nothing, so that no account, average or prediction is spoilt by it for good: one NaN
in a start tag, and a flow is never found again. What is possible is believed, however odd; odd
times are the cost model's and the outliers' business.
"""

from __future__ import annotations

from dataclasses import replace

from routers.types import FlowWork, Report

MOST_S = 1e6
_MOST_VIRTUAL_S = 1e15


def believable(report: Report, predicted_s: float) -> Report:
    """The report, or one without what cannot be; `predicted_s` stands in for its service time."""
    scalars = (report.retry_in_s, report.transport_s, report.free_in_s)
    if (
        _is_time(report.service_s)
        and all(map(_is_time, scalars))
        and all(map(_is_virtual, report.virtual_time))
        and all(map(_is_work, report.served))
        and all(map(_is_work, report.waiting))
    ):
        return report
    virtual = report.virtual_time
    return replace(
        report,
        service_s=report.service_s if _is_time(report.service_s) else predicted_s,
        retry_in_s=_or_none(report.retry_in_s),
        transport_s=_or_none(report.transport_s),
        free_in_s=_or_none(report.free_in_s),
        virtual_time=tuple(each if _is_virtual(each) else 0.0 for each in virtual),
        served=tuple(filter(_is_work, report.served)),
        waiting=tuple(filter(_is_work, report.waiting)),
    )


def _is_time(seconds: float) -> bool:
    return 0.0 <= seconds <= MOST_S  # of a NaN neither is true


def _is_virtual(seconds: float) -> bool:
    return 0.0 <= seconds <= _MOST_VIRTUAL_S


def _is_work(work: FlowWork) -> bool:
    return work[0] >= 0 and _is_time(work[2])


def _or_none(seconds: float) -> float:
    return seconds if _is_time(seconds) else 0.0
