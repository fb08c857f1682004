"""Where do backends' compilers keep what they made, so that the next start need not wait for it?

In the cache folder, beside what is staged: torch's compiler knows only its own environment
variable, read when it first compiles, so this process has to set it before a model is loaded.
Whoever has set it already keeps it.
"""

from __future__ import annotations

import os
from pathlib import Path

_TORCH = "TORCHINDUCTOR_CACHE_DIR"


def keep_in(cache_dir: Path) -> None:
    """Before any model of this process is loaded."""
    os.environ.setdefault(_TORCH, str(cache_dir / "torch-compiled"))
