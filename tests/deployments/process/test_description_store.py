"""What is stored of a model can be read by several threads at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

READERS = """
import sys, threading
from deployments.process import description_store as store

sys.setswitchinterval(1e-6)
together = threading.Barrier(8)

def read():
    together.wait()
    assert store.decode(b"\\x80", "") is None

readers = [threading.Thread(target=read) for _ in range(8)]
for each in readers:
    each.start()
for each in readers:
    each.join()
"""


@pytest.mark.slow
def test_threads_that_read_at_once_do_not_crash_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", READERS], capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr.decode()
