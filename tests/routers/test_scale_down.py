"""A replica that is taken away finishes what it has, and nothing else waits for it."""

from routers.api.requests import LeaseEnd, Tokens
from tests.routers.conftest import sent


def test_what_waits_goes_elsewhere_while_the_victim_finishes(start):
    driver = start(max_size=1)
    driver.replicas("old", "new")
    first, second = sent(driver.arrive(1)), sent(driver.arrive(2))
    victim = next(lease for lease in (*first, *second) if lease.replica_id == "new")
    stays = next(lease for lease in (*first, *second) if lease.replica_id == "old")
    driver.replicas("old")
    assert driver.arrive(3) == []
    assert [lease.replica_id for lease in sent(driver.close(stays))] == ["old"]
    assert driver.dispatcher.snapshot(driver.now).leases == 2
    assert sent(driver.close(victim)) == []
    (left,) = driver.dispatcher.snapshot(driver.now).replicas
    assert (left.replica_id, left.drift) == ("old", 0)


def test_what_a_victim_returns_unstarted_waits_no_longer_than_for_the_others(start):
    driver = start(max_size=1)
    driver.replicas("old", "new", capacity=2)
    leases = {}
    for number in range(1, 5):
        for lease in sent(driver.arrive(number)):
            leases.setdefault(lease.replica_id, []).append(lease)
    driver.replicas("old", capacity=2)
    assert sent(driver.close(leases["new"][1], LeaseEnd.BUSY)) == []
    again = sent(driver.close(leases["old"][0]))
    assert [lease.replica_id for lease in again] == ["old"]
    assert again[0].rows == leases["new"][1].rows
    assert sent(driver.close(leases["new"][0])) == []
    assert len(driver.dispatcher.snapshot(driver.now).replicas) == 1


def test_a_stream_goes_on_to_its_end_at_a_victim(start):
    from routers.api.settings import GenerationParameters

    driver = start(generation=GenerationParameters(output_tokens=10), bucket_edges=(1000,))
    driver.streams("new", capacity=1000)
    (lease,) = sent(driver.generate(1, 100, 50))
    driver.moves(lease, 100, 1)
    driver.streams("old", capacity=1000)
    assert [each.replica_id for each in sent(driver.generate(2, 100, 50))] == ["old"]
    driver.moves(lease, 100, 20)
    driver.close(lease, tokens=Tokens(100, 0, 20))
    (left,) = driver.dispatcher.snapshot(driver.now).replicas
    assert left.replica_id == "old"
