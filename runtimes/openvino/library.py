"""The import of OpenVINO, kept from reporting its use.

`import openvino` sends an event through the package `openvino_telemetry` unless that package cannot
be imported; OpenVINO then falls back to its own stub. There is no setting for it in code, so the
package is hidden from the interpreter before OpenVINO is first imported.

Nothing else happens here. Source: `openvino/tools/ovc/telemetry_utils.py` of OpenVINO 2026.4.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from runtimes.errors import MissingBackend


def library() -> Any:
    """The `openvino` module. Raises `MissingBackend` where it is not installed."""
    if "openvino" not in sys.modules:
        # None makes the import system raise ImportError for that name.
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        return importlib.import_module("openvino")
    except ImportError as error:
        raise MissingBackend(
            f"the openvino runtime needs its package: pip install 'headrace[openvino]' ({error})"
        ) from error
