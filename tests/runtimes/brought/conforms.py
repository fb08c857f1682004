"""The package's own tests."""

from pathlib import Path

import pytest

from runtimes.catalog import create
from runtimes.testing import LONGEST, MAX_SIZE, LengthSuite, RuntimeSuite
from runtimes.types import RuntimeSettings


@pytest.fixture
def running(tmp_path: Path):
    settings = RuntimeSettings(
        "w", "waterwheel", None, cache_dir=tmp_path, max_length=LONGEST, edges=(16, LONGEST),
        max_size=MAX_SIZE, options={"weight": 0.5},
    )  # fmt: skip
    made = create(settings)
    made.load()
    made.warm()
    yield made
    made.close()


class TestWheel(RuntimeSuite):
    pass


class TestLengths(LengthSuite):
    def takes_every_id(self, limits):
        return True
