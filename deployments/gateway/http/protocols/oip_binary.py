"""An Open Inference request whose tensors' bytes follow its JSON header in the same body.

`header_length` is the header Inference-Header-Content-Length. Tensors with `binary_data_size` take
their bytes in the order of the inputs; others may keep their data in the JSON. The sizes must add
up to the body exactly. Aligned tensors are views of the body, which must not be changed after.
Answers are written by `oip_json.encode`.

Source: Triton's binary tensor data extension.
"""

from __future__ import annotations

from collections.abc import Callable

from deployments.contract.errors import BadRequest
from deployments.gateway.http.protocols import oip_json
from deployments.gateway.http.protocols.types import InferCall


def decode(
    body: bytes | memoryview,
    header_length: int,
    check_rows: Callable[[int], None] | None = None,
) -> InferCall:
    """The call in `body`, of which the first `header_length` bytes are JSON."""
    view = memoryview(body)
    if not 0 < header_length <= len(view):
        raise BadRequest(
            f"Inference-Header-Content-Length is {header_length}; "
            f"1 to the body's {len(view)} bytes are right."
        )
    return oip_json.parse(view[:header_length], view[header_length:], check_rows)
