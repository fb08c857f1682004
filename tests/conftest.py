"""Hypothesis without time limits (machines are noisy), and the same examples each time in CI.

`--hypothesis-profile fuzz` tries 17,000 cases of each test.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from deployments.process import log_choice

# Ten thousand tests are a million objects that stay. Looking for cycles among them again and again,
# while they are collected and between them, took a third of the processor time of the unit tests.
gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()


# jsonschema would compile a grammar of IRIs when it is imported, for seconds in each process of the
# tests. None of them checks that format.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("fuzz", deadline=None, max_examples=17_000)
settings.load_profile("ci" if os.environ.get("CI") else "here")


@pytest.fixture(scope="session", autouse=True)
def no_process_follows_the_log_choice() -> Iterator[None]:
    """Actors that tests make in their own process would each leave a thread that changes how it
    logs, for the tests that follow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(log_choice, "_follow", lambda model: None)
        yield
