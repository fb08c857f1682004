"""The folders of these tests' own modules, and of the servers that they start."""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).parent
sys.path += [str(_HERE), str(_HERE.parent / "integration")]
