"""Hypothesis without time limits (machines are noisy), and the same examples each time in CI.

`--hypothesis-profile fuzz` tries 17,000 cases of each test.
"""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None, max_examples=17_000)
settings.load_profile("ci" if os.environ.get("CI") else "here")
