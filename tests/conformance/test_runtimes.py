"""The suites of `runtimes.testing`, run over each backend with every kind of source it takes.

A backend whose package is missing is skipped with the sentence that says what to install.
"""

from __future__ import annotations

from runtime_cases import everything, stacked, texts

from runtimes.testing import LengthSuite, RuntimeSuite, StackedSuite
from runtimes.types import Limits


@everything
class TestEveryRuntime(RuntimeSuite):
    pass


@texts
class TestRowsOfDifferentLengths(LengthSuite):
    def takes_every_id(self, limits: Limits) -> bool:
        return limits.platform in ("headrace_synthetic", "python")


@stacked
class TestRowsOfOneShape(StackedSuite):
    pass
