"""The manual's page of the scenario format, written from the format itself: `docs/scenarios.md`.

`python -m loadtests.traffic.scenario_page` rewrites the page; a test compares it with the format,
so that it cannot fall behind.
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

A scenario says who calls how often with what, for how long, and what breaks meanwhile; the settings
file that it names says what is served. [simulator.md](simulator.md) shows how one is run.
Times in ms are promises to callers or patience, times in s are moments and spans; moments count
from the end of the warm-up. Rates are requests a second over all gateways, lengths are tokens.

This page is written by `python -m loadtests.traffic.scenario_page` from the format itself.
"""
_CHAPTERS: tuple[tuple[str, str, type[Section]], ...] = (
    ("The file", "", Scenario),
    ("arrivals", "When requests come; in a tenant, its own.", ArrivalsPart),
    ("lengths", "How long rows are; exactly one way to draw them.", LengthsPart),
    ("tenants.&lt;name&gt;", "One tenant's callers.", TenantPart),
    ("device", "The simulated device.", DevicePart),
    (
        "scaling",
        "How simulated replicas start, where the settings leave their number to the autoscaler.",
        ScalingPart,
    ),
    ("faults", "What breaks, in simulations.", FaultsPart),
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
