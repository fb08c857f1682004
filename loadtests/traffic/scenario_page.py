"""Writes `docs/scenarios.md`, the manual's page of the scenario format, from the format's classes.

`python -m loadtests.traffic.scenario_page` rewrites the page. A test compares the page with the
classes, so that it stays current.
"""

from __future__ import annotations

from pathlib import Path

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from loadtests.traffic.scenario import Scenario, TenantPart
from loadtests.traffic.scenario_faults import DevicePart, FaultsPart
from loadtests.traffic.scenario_scaling import ScalingPart
from loadtests.traffic.scenario_traffic import ArrivalsPart, LengthsPart
from yaml_document.section import Section
from yaml_document.shape import expected, fields_below, place_of

PAGE = Path(__file__).parents[2] / "docs" / "scenarios.md"
_INTRODUCTION = """# Scenarios

A scenario describes a load: which tenants send requests, at what rates, with what lengths, for how
long, and what breaks meanwhile. It names a settings file, which says what is served.
[simulator.md](simulator.md) shows how to run one. The load generator runs the same scenarios
against a real server; fields that say *simulated*, and `faults`, matter only to the simulator.

Rates are requests a second over all gateways; lengths are tokens. Points in time are seconds from
the end of the warm-up.

This page is written by `python -m loadtests.traffic.scenario_page` from the format's classes.
"""
_CHAPTERS: tuple[tuple[str, str, type[Section]], ...] = (
    ("The file", "", Scenario),
    (
        "arrivals",
        "When requests are sent: the scenario's `arrivals`, or those of one tenant.",
        ArrivalsPart,
    ),
    (
        "lengths",
        "The lengths of rows. Exactly one of `fixed`, `bands`, `lognormal`, `exponential`, "
        "`empirical` and `column` must be set. `output` has the same settings.",
        LengthsPart,
    ),
    ("tenants.&lt;name&gt;", "The callers of one tenant.", TenantPart),
    (
        "device",
        "The simulated device of a model that runs batches. A batch of B rows, padded to L tokens, "
        "takes `base_ms` + `per_request_ms` · B + `per_token_us` · B · L.",
        DevicePart,
    ),
    (
        "scaling",
        "How fast simulated replicas start, if the autoscaler decides about their number.",
        ScalingPart,
    ),
    ("faults", "What breaks in a simulation.", FaultsPart),
)
_ON_THEIR_OWN = tuple(part for _, _, part in _CHAPTERS)


def page() -> str:
    parts = [_INTRODUCTION]
    for title, text, part in _CHAPTERS:
        rows = "\n".join(
            _row(name, field) for name, field in fields_below(part, closed=_ON_THEIR_OWN)
        )
        table = f"| setting | value | default | what it is |\n|---|---|---|---|\n{rows}\n"
        parts.append("\n\n".join(each for each in (f"## {title}", text, table) if each))
    return "\n".join(parts)


def _row(name: str, field: FieldInfo) -> str:
    value = expected(place_of(field))
    return f"| `{name}` | {value} | {_default(field)} | {field.description} |"


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "required" if field.default_factory is None else ""
    if field.default is None:
        return "unset"
    if field.default == () or field.default == "":
        return "none"
    shown = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
    return f"`{shown.lower() if isinstance(field.default, bool) else shown}`"


if __name__ == "__main__":
    PAGE.write_text(page())
