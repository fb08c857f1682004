"""What is left of requests that are gone: nothing that the garbage collector must find."""

import gc

import pytest

from routers.state.rows import Row


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def rows_in_memory():
    return sum(isinstance(each, Row) for each in gc.get_objects())


@pytest.mark.slow
@pytest.mark.usefixtures("no_collector")
def test_rows_of_answered_and_cancelled_requests_are_freed_at_once(start):
    before = rows_in_memory()
    driver = start()
    driver.replicas("a")
    (lease,) = driver.arrive(1, 10, 20)
    driver.arrive(2)
    driver.cancel(2)
    assert rows_in_memory() == before + 2
    driver.close(lease)
    assert rows_in_memory() == before
