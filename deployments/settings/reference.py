"""Which runtimes can be a model's reference, and what `accept.against` names."""

from __future__ import annotations

from runtimes import catalog
from runtimes.errors import LoadError
from runtimes.source import SourceKind

PREFERRED: dict[SourceKind, tuple[str, ...]] = {
    SourceKind.HUGGING_FACE: ("torch", "onnxruntime", "openvino"),
    SourceKind.ONNX: ("onnxruntime", "openvino"),
    SourceKind.OPENVINO_IR: ("openvino",),
    SourceKind.TORCH_EXPORT: ("torch",),
}


class CannotVerify(LoadError):
    """There is nothing to compare with, or what was asked for cannot be; says what would do."""


def named(against: str, *, here: bool = True) -> tuple[str, str]:
    """Runtime and precision. Raises `CannotVerify`. `here`: it must be installed."""
    runtime, _, precision = against.partition(":")
    if runtime in catalog.names() and not any(runtime in able for able in PREFERRED.values()):
        raise CannotVerify(
            f"{against!r} can be no reference; {', '.join(PREFERRED[SourceKind.HUGGING_FACE])} can"
        )
    try:
        catalog.check(runtime, {}, precision or "fp32")
    except LoadError as error:
        raise CannotVerify(f"{against!r} is no RUNTIME or RUNTIME:PRECISION: {error}") from error
    missing = catalog.available(runtime) if here else None
    if missing:
        raise CannotVerify(missing)
    return runtime, precision or "fp32"
