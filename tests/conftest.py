"""Hypothesis without time limits (machines are noisy), and the same examples each time in CI.

`--hypothesis-profile fuzz` tries 17,000 cases of each test.
"""

from __future__ import annotations

import os
import sys

from hypothesis import settings

# jsonschema would compile a grammar of IRIs when it is imported, for seconds in each process of the
# tests. None of them checks that format.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None, max_examples=17_000)
settings.load_profile("ci" if os.environ.get("CI") else "here")
