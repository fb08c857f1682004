"""Both sides of a connection make sure of each other, or say why not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.contract.channel import handshake
from deployments.contract.channel.frames import MAX_HANDSHAKE_BYTES
from deployments.contract.channel.handshake import (
    Challenge,
    GatewayHandshake,
    Hello,
    Proof,
    Refused,
    ReplicaHandshake,
    new_key,
    reason_of,
    refusal,
)

KEY, OTHER_KEY = new_key(), new_key()


def gateway(key: bytes = KEY, **more: Any) -> GatewayHandshake:
    return GatewayHandshake(key, "gw", "rep", **more)


def replica(key: bytes = KEY, **more: Any) -> ReplicaHandshake:
    return ReplicaHandshake(key, "rep", **more)


def body(message: bytes) -> memoryview:
    return memoryview(message)


def challenged(one: GatewayHandshake, other: ReplicaHandshake) -> memoryview:
    return body(other.challenge(body(one.hello())))


def changed(message: memoryview, kind: Any, **fields: Any) -> memoryview:
    """The same message with other fields."""
    said = msgspec.structs.replace(msgspec.msgpack.decode(message, type=kind), **fields)
    return body(msgspec.msgpack.encode(said))


def test_two_that_know_the_key_agree() -> None:
    ours, theirs = gateway(), replica()
    theirs.check(body(ours.prove(challenged(ours, theirs))))
    assert theirs.gateway == "gw"


def test_keys_and_challenges_are_never_the_same_twice() -> None:
    assert len({new_key() for _ in range(8)}) == 8
    hellos = [msgspec.msgpack.decode(gateway().hello(), type=Hello) for _ in range(8)]
    challenges = [
        msgspec.msgpack.decode(challenged(gateway(), replica()), type=Challenge) for _ in range(8)
    ]
    assert len({each.nonce for each in (*hellos, *challenges)}) == 16


def test_neither_key_nor_anything_made_of_it_alone_is_sent() -> None:
    ours, theirs = gateway(), replica()
    hello = ours.hello()
    challenge = theirs.challenge(body(hello))
    said = hello + challenge + ours.prove(body(challenge))
    assert KEY not in said
    again = replica()
    assert again.challenge(body(hello)) != challenge


def test_a_replica_with_another_key_is_found_out_before_anything_is_proved_to_it() -> None:
    ours = gateway()
    with pytest.raises(Refused, match="the replica does not know its key"):
        ours.prove(challenged(ours, replica(OTHER_KEY)))


def test_a_gateway_with_another_key_is_refused_though_it_trusts_whoever_answers() -> None:
    class Trusting(GatewayHandshake):
        def prove(self, message: memoryview) -> bytes:
            said = msgspec.msgpack.decode(message, type=Challenge)
            right = handshake._proof(self._key, b"replica", self._hello, said.version, said.nonce)
            return super().prove(changed(message, Challenge, proof=right))

    ours, theirs = Trusting(OTHER_KEY, "gw", "rep"), replica()
    with pytest.raises(Refused, match="the gateway does not know the replica's key"):
        theirs.check(body(ours.prove(challenged(ours, theirs))))


def test_the_replicas_own_proof_sent_back_proves_nothing() -> None:
    theirs = replica()
    said = msgspec.msgpack.decode(challenged(gateway(), theirs), type=Challenge)
    with pytest.raises(Refused):
        theirs.check(body(msgspec.msgpack.encode(Proof(said.proof))))


@pytest.mark.parametrize("keep", [0, 1, 16, 31])
def test_a_part_of_a_proof_is_none(keep: int) -> None:
    ours, theirs = gateway(), replica()
    proof = msgspec.msgpack.decode(ours.prove(challenged(ours, theirs)), type=Proof).proof
    with pytest.raises(Refused):
        theirs.check(body(msgspec.msgpack.encode(Proof(proof[:keep]))))
    ours, theirs = gateway(), replica()
    challenge = challenged(ours, theirs)
    proof = msgspec.msgpack.decode(challenge, type=Challenge).proof
    with pytest.raises(Refused):
        ours.prove(changed(challenge, Challenge, proof=proof[:keep]))


def test_a_message_that_ends_too_soon_or_not_is_refused() -> None:
    ours = gateway()
    hello, challenge = ours.hello(), challenged(ours, replica())
    for end in range(len(hello)):
        with pytest.raises(Refused, match="cannot be read"):
            replica().challenge(body(hello[:end]))
    for end in range(len(challenge)):
        with pytest.raises(Refused):
            ours.prove(challenge[:end])
    with pytest.raises(Refused):
        replica().challenge(body(hello + b"\0"))


@pytest.mark.parametrize("size", [0, 1, 31, 33])
def test_a_challenge_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(Refused, match="challenge"):
        replica().challenge(changed(body(gateway().hello()), Hello, nonce=bytes(size)))


def test_a_gateway_without_a_name_is_refused() -> None:
    with pytest.raises(Refused, match="names no gateway"):
        replica().challenge(changed(body(gateway().hello()), Hello, gateway=""))


# ---- versions and names -------------------------------------------------------------------------


def test_the_highest_version_that_both_speak_is_taken() -> None:
    ours, theirs = gateway(versions=(1, 2, 3)), replica(versions=(2, 3, 4))
    challenge = challenged(ours, theirs)
    assert msgspec.msgpack.decode(challenge, type=Challenge).version == 3
    theirs.check(body(ours.prove(challenge)))


@pytest.mark.parametrize("versions", [(), (0,), (3, 4)])
def test_a_gateway_of_other_versions_hears_which_are_spoken(versions: tuple[int, ...]) -> None:
    with pytest.raises(Refused, match="speaks version 1, 2 of the channel"):
        challenged(gateway(versions=versions), replica(versions=(1, 2)))


def test_a_version_that_was_not_offered_is_refused() -> None:
    ours = gateway(versions=(1, 2))
    challenge = challenged(ours, replica(versions=(2,)))
    with pytest.raises(Refused, match="version 9, which was not offered"):
        ours.prove(changed(challenge, Challenge, version=9))


def test_nobody_between_them_can_have_them_take_an_older_version() -> None:
    ours, theirs = gateway(versions=(1, 2)), replica(versions=(1, 2))
    weaker = changed(body(ours.hello()), Hello, versions=(1,))
    with pytest.raises(Refused, match="does not know its key"):
        ours.prove(body(theirs.challenge(weaker)))


def test_a_replica_that_took_over_an_address_is_not_taken_for_its_predecessor() -> None:
    with pytest.raises(Refused, match="this is replica other, not 'rep'"):
        challenged(gateway(), ReplicaHandshake(KEY, "other"))


@pytest.mark.parametrize("field", ["gateway", "replica"])
def test_names_changed_on_the_way_are_found_out(field: str) -> None:
    ours = gateway()
    theirs = ReplicaHandshake(KEY, "else" if field == "replica" else "rep")
    hello = changed(body(ours.hello()), Hello, **{field: "else"})
    with pytest.raises(Refused, match="does not know its key"):
        ours.prove(body(theirs.challenge(hello)))


# ---- order, and what was overheard --------------------------------------------------------------


def test_a_second_hello_is_refused() -> None:
    ours, theirs = gateway(), replica()
    challenged(ours, theirs)
    with pytest.raises(Refused, match="a second hello"):
        challenged(ours, theirs)


def test_a_proof_before_a_hello_is_refused() -> None:
    ours, theirs = gateway(), replica()
    proof = body(ours.prove(challenged(ours, theirs)))
    with pytest.raises(Refused, match="before a hello"):
        replica().check(proof)
    refused = replica(versions=(9,))
    with pytest.raises(Refused):
        challenged(ours, refused)
    with pytest.raises(Refused, match="before a hello"):
        refused.check(body(msgspec.msgpack.encode(Proof(b""))))


def test_an_overheard_proof_is_of_no_use_on_another_connection() -> None:
    ours, theirs = gateway(), replica()
    hello = body(ours.hello())
    proof = body(ours.prove(body(theirs.challenge(hello))))
    theirs.check(proof)
    again = replica()
    again.challenge(hello)
    with pytest.raises(Refused):
        again.check(proof)


def test_an_overheard_challenge_is_of_no_use_to_who_plays_the_replica() -> None:
    ours, later = gateway(), gateway()
    challenge = challenged(ours, replica())
    ours.prove(challenge)
    with pytest.raises(Refused):
        later.prove(challenge)


# ---- what comes instead -------------------------------------------------------------------------


@given(st.binary(max_size=300))
def test_whatever_comes_instead_is_refused_and_nothing_else(garbage: bytes) -> None:
    theirs = replica()
    challenged(gateway(), theirs)
    for take in (replica().challenge, gateway().prove, theirs.check, reason_of):
        with pytest.raises(Refused):
            take(body(garbage))


def test_a_name_that_is_no_text_is_refused() -> None:
    hello = gateway().hello().replace(b"\xa2gw", b"\xa2g\xff")
    with pytest.raises(Refused, match="cannot be read"):
        replica().challenge(body(hello))


@pytest.mark.parametrize("mark", [b"\x91", b"\x81"])
def test_a_hello_within_a_thousand_others_is_refused(mark: bytes) -> None:
    for hello in (mark * 4096, b"\x81\xa1x" + mark * 4000):
        with pytest.raises(Refused, match="cannot be read"):
            replica().challenge(body(hello))


def test_a_hello_that_lies_about_its_size_takes_no_memory_for_it() -> None:
    many = b"\xdd" + b"\xff" * 4  # a list of four thousand million versions
    fields = {"gateway": "gw", "replica": "rep", "nonce": bytes(32)}
    rest = b"".join(
        msgspec.msgpack.encode(name) + msgspec.msgpack.encode(value)
        for name, value in fields.items()
    )
    for hello in (b"\x84" + rest + b"\xa8versions" + many, many, b"\xdf\xff\xff\xff\xff"):
        with pytest.raises(Refused, match="cannot be read"):
            replica().challenge(body(hello))


def test_a_reason_is_read_as_it_was_written_and_fits_into_a_handshake() -> None:
    assert reason_of(body(refusal("too late"))) == "too late"
    long = changed(body(gateway().hello()), Hello, replica="x" * 4000)
    with pytest.raises(Refused) as caught:
        replica().challenge(long)
    assert len(refusal(str(caught.value))) < MAX_HANDSHAKE_BYTES
