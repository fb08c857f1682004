"""Which models should each pool replica hold now?

Those whose waiting work dedicated replicas cannot take in time, the most urgent first, each on the
replica that holds it already, else on the one with the most room. A resident goes only for one that
is urgent, never with work, while it is being loaded, or before its residency is over; of those that
may go, the one whose loss costs least a byte: rate x load time / bytes (GDSF, Cherkasova 1998).
Decides, and loads nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autoscaling.settings import PoolTerms
from autoscaling.types import PoolReading, ResidentReading


@dataclass(frozen=True, slots=True)
class ResidentWant:
    """urgent_s: work waiting that dedicated replicas cannot take in time; rate: offered work a
    second expected within load_s, the seconds of a load; size_bytes: 0 where not known;
    dedicated: hot replicas of the model's own."""

    model: str
    urgent_s: float = 0.0
    rate: float = 0.0
    load_s: float = 1.0
    size_bytes: int = 0
    dedicated: int = 0


def choose_residents(
    pool: Mapping[str, PoolReading],
    wants: Mapping[str, ResidentWant],
    terms: PoolTerms,
    now: float,
) -> dict[str, tuple[str, ...]]:
    """By pool replica the models that it should hold, those that stay included."""
    held = {name: [each.model for each in reading.residents] for name, reading in pool.items()}
    free = {name: reading.free_bytes for name, reading in pool.items()}
    urgent = sorted(wants.values(), key=lambda each: (-each.urgent_s, each.model))
    for want in urgent:
        if want.urgent_s <= 0.0 or any(want.model in models for models in held.values()):
            continue
        for name in sorted(pool, key=lambda each: (-free[each], each)):
            victims = _victims(pool[name], want.size_bytes - free[name], wants, terms, now)
            if victims is None:
                continue
            for victim in victims:
                held[name].remove(victim.model)
                free[name] += victim.size_bytes
            held[name].append(want.model)
            free[name] -= want.size_bytes
            break
    return {name: tuple(models) for name, models in held.items()}


def _victims(
    reading: PoolReading,
    missing_bytes: int,
    wants: Mapping[str, ResidentWant],
    terms: PoolTerms,
    now: float,
) -> list[ResidentReading] | None:
    """Who goes for so many bytes; None: not enough may go."""
    going: list[ResidentReading] = []
    for each in sorted(reading.residents, key=lambda one: _worth(one, wants)):
        if missing_bytes <= 0:
            break
        stays_s = max(terms.residency_s, terms.residency_loads * each.load_s)
        wanted = each.model in wants and wants[each.model].urgent_s > 0.0
        if each.serves and not each.busy and not wanted and now - each.since >= stays_s:
            going.append(each)
            missing_bytes -= each.size_bytes
    return going if missing_bytes <= 0 else None


def _worth(resident: ResidentReading, wants: Mapping[str, ResidentWant]) -> float:
    want = wants.get(resident.model)
    return (want.rate * want.load_s if want else 0.0) / max(1, resident.size_bytes)
