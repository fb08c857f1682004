"""How do the descriptions of a model's groups combine into one description of the model?

The first group that was described says what the model takes and gives. A group that takes or gives
anything else is left out, with the reason. What may differ between groups (costs, batches, slots,
caches) is kept by group. For what may not differ (the longest row, edges that a compiled backend
fixes) the narrowest holds. Pure; the anchor calls it as replicas of each group come up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from deployments.contract.description import Generating, GroupDescription, ModelDescription

_MUST_EQUAL = (
    "task", "inputs", "outputs", "lengths_input", "lengths_axis", "mask_input", "optional_inputs",
    "tokenizer_digest", "embed_output", "embed_width", "image", "classes", "pads",
)  # fmt: skip


def combined(
    parts: Mapping[str, ModelDescription], after_s: Mapping[str, float]
) -> tuple[ModelDescription, dict[str, str]]:
    """The combined description, and for each group that is left out, the reason.

    `parts`: what a replica of each group said, at least one, in the order in which they came.
    `after_s`: for every group in the settings, in their order, its wait as a reserve, or 0 if it is
    none. Version and digest are the first part's; the caller replaces them.
    """
    base = next(iter(parts.values()))
    refused: dict[str, str] = {}
    edges = _fixed_edges(parts.values())
    for name, part in parts.items():
        reason = _unlike(base, part) or _other_edges(part, edges)
        if reason:
            refused[name] = reason
    kept = {name: part for name, part in parts.items() if name not in refused}
    groups = tuple(_group(n, kept[n], reserve_s) for n, reserve_s in after_s.items() if n in kept)
    return _narrowest(base, list(kept.values()), groups), refused


def version_of(versions: Sequence[str]) -> str:
    """The version of a model from its groups' own versions: 12 hex digits over all of them, or the
    one version that they share."""
    if len(set(versions)) == 1:
        return versions[0]
    return hashlib.sha256(" ".join(versions).encode()).hexdigest()[:12]


def _group(name: str, part: ModelDescription, after_s: float) -> GroupDescription:
    core = part.scheduling.core
    most = core.max_size if part.max_rows is None else min(core.max_size, part.max_rows)
    return GroupDescription(
        name=name,
        digest=part.digest,
        platform=part.platform,
        precision=part.precision,
        device=part.device,
        slots=part.scheduling.slots,
        max_size=most,
        after_s=after_s,
        profile=part.profile,
        profile_from=part.profile_from,
        generating=part.generating,
    )


def _narrowest(
    base: ModelDescription, parts: Sequence[ModelDescription], groups: tuple[GroupDescription, ...]
) -> ModelDescription:
    # `shaped`: a group whose backend is compiled for fixed lengths. Its edges go before all others.
    shaped = next((part for part in parts if _is_fixed(part)), None)
    short = min(parts, key=lambda part: part.max_length)
    edges = shaped or (short if short.max_length < base.max_length else base)
    core = replace(base.scheduling.core, max_size=max(group.max_size for group in groups))
    if shaped is not None:
        core = replace(core, buckets=shaped.scheduling.core.buckets)
    return replace(
        base,
        max_length=short.max_length,
        bucket_edges=edges.bucket_edges,
        max_rows=None,
        scheduling=replace(base.scheduling, core=core, slots=max(group.slots for group in groups)),
        generating=_engines([part.generating for part in parts if part.generating is not None]),
        groups=groups,
    )


def _engines(engines: Sequence[Generating]) -> Generating | None:
    """What holds for every engine. Prompts share blocks only if all engines cut them alike."""
    if not engines:
        return None
    blocks = {engine.block_tokens for engine in engines}
    return replace(
        engines[0],
        context_tokens=min(engine.context_tokens for engine in engines),
        block_tokens=blocks.pop() if len(blocks) == 1 else 0,
    )


def _unlike(base: ModelDescription, part: ModelDescription) -> str:
    """Why the group's answers could not stand for the other groups'; "" if they can."""
    if (base.generating is None) is not (part.generating is None):
        return "it generates, or the others do"
    differs = [name for name in _MUST_EQUAL if getattr(base, name) != getattr(part, name)]
    return f"its {' and '.join(differs)} differ from the other groups'" if differs else ""


def _fixed_edges(parts: Iterable[ModelDescription]) -> tuple[int, ...] | None:
    return next((part.bucket_edges for part in parts if _is_fixed(part)), None)


def _other_edges(part: ModelDescription, edges: tuple[int, ...] | None) -> str:
    if not _is_fixed(part) or part.bucket_edges == edges:
        return ""
    return f"it is compiled for the lengths {part.bucket_edges}, another group for {edges}"


def _is_fixed(part: ModelDescription) -> bool:
    return part.scheduling.core.buckets.fixed_shapes
