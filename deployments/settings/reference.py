"""Which runtimes can be a model's reference, and which one does `accept.against` name?"""

from __future__ import annotations

from runtimes import catalog
from runtimes.errors import LoadError
from runtimes.source import SourceKind

# For each kind of artifact: the runtimes that can be its reference, the most trusted first.
PREFERRED: dict[SourceKind, tuple[str, ...]] = {
    SourceKind.HUGGING_FACE: ("torch", "onnxruntime", "openvino"),
    SourceKind.ONNX: ("onnxruntime", "openvino"),
    SourceKind.OPENVINO_IR: ("openvino",),
    SourceKind.TORCH_EXPORT: ("torch",),
}


class CannotVerify(LoadError):
    """No reference can be had as asked; the message says what would work."""


def parse_reference(against: str, *, here: bool = True) -> tuple[str, str]:
    """(runtime, precision) that `accept.against` names. `here`: the runtime must be installed.
    Raises `CannotVerify`."""
    runtime, _, precision = against.partition(":")
    if runtime in catalog.names() and not any(runtime in able for able in PREFERRED.values()):
        raise CannotVerify(
            f"{against!r} cannot be a reference; must be one of "
            f"{', '.join(PREFERRED[SourceKind.HUGGING_FACE])}"
        )
    try:
        catalog.check(runtime, {}, precision or "fp32")
    except LoadError as error:
        raise CannotVerify(
            f"{against!r} is not valid; must be RUNTIME or RUNTIME:PRECISION: {error}"
        ) from error
    missing = catalog.available(runtime) if here else None
    if missing:
        raise CannotVerify(missing)
    return runtime, precision or "fp32"
