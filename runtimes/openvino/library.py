"""Imports OpenVINO without its telemetry.

`import openvino` sends an event through the package `openvino_telemetry`. If that package cannot be
imported, OpenVINO uses a stub of its own. OpenVINO has no switch for this in code, so this module
hides the package from Python's import system before OpenVINO's first import.

Source: `openvino/tools/ovc/telemetry_utils.py` of OpenVINO 2026.4.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from runtimes.errors import MissingBackend


def library() -> Any:
    """The `openvino` module. Raises `MissingBackend` if it is not installed."""
    if "openvino" not in sys.modules:
        # None makes the import system raise ImportError for that name.
        sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
    try:
        return importlib.import_module("openvino")
    except ImportError as error:
        raise MissingBackend(
            f"the openvino runtime needs its package: pip install 'headrace[openvino]' ({error})"
        ) from error
