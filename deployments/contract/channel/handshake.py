"""How a gateway and a replica authenticate each other before anything else is sent.

The replica makes a key when it starts. Ray Serve hands the key to gateways that ask: the cluster's
own calls are trusted, whoever reaches the port is not. The key never travels on the connection.
Each side sends a random challenge and proves with HMAC-SHA256 over both challenges and both names
that it knows the key, so nothing that was overheard is of use later.

The gateway names the protocol versions that it speaks, and the replica takes the highest that it
knows. The gateway also names the replica that it wants, so that a replica that took over an address
is not taken for its predecessor. Does no I/O.
Source: FIPS 198-1 (HMAC); challenge and response as in RFC 2195, made mutual.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from deployments.contract.codec import SPOKEN

KEY_BYTES = NONCE_BYTES = 32
HANDSHAKE_LIMIT_S = 5.0
M = TypeVar("M", bound=msgspec.Struct)


class Refused(Exception):
    """The other side is not who it should be, or speaks another version; the message says which."""


class Hello(msgspec.Struct, frozen=True):
    """Gateway to replica, first."""

    versions: tuple[int, ...]
    gateway: str
    replica: str
    nonce: bytes


class Challenge(msgspec.Struct, frozen=True):
    """Replica to gateway: the version it takes, and its proof."""

    version: int
    nonce: bytes
    proof: bytes


class Proof(msgspec.Struct, frozen=True):
    """Gateway to replica."""

    proof: bytes


class Refusal(msgspec.Struct, frozen=True):
    """Replica to gateway: why it refuses."""

    reason: str


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


class GatewayHandshake:
    """The gateway's side of one connection. `version`: the one that both sides speak, known once
    the replica has taken it."""

    def __init__(
        self, key: bytes, gateway: str, replica: str, versions: Sequence[int] = SPOKEN
    ) -> None:
        self.version = 0
        self._key = key
        nonce = secrets.token_bytes(NONCE_BYTES)
        self._hello = Hello(tuple(versions), gateway, replica, nonce)

    def hello(self) -> bytes:
        return msgspec.msgpack.encode(self._hello)

    def prove(self, body: memoryview) -> bytes:
        """The answer to the replica's challenge. Raises Refused if the replica does not know the
        key, or takes a version that was not offered."""
        challenge = _read(body, Challenge)
        if challenge.version not in self._hello.versions:
            raise Refused(f"the replica takes version {challenge.version}, which was not offered")
        expected = _proof(self._key, b"replica", self._hello, challenge.version, challenge.nonce)
        if not hmac.compare_digest(expected, challenge.proof):
            raise Refused("the replica does not know its key")
        self.version = challenge.version
        proof = _proof(self._key, b"gateway", self._hello, challenge.version, challenge.nonce)
        return msgspec.msgpack.encode(Proof(proof))


class ReplicaHandshake:
    """The replica's side of one connection. `version` is as in `GatewayHandshake`, known once the
    gateway has said hello."""

    def __init__(self, key: bytes, replica: str, versions: Sequence[int] = SPOKEN) -> None:
        self.version = 0
        self._key = key
        self._replica = replica
        self._versions = versions
        self._hello: Hello | None = None
        self._expected = b""

    @property
    def gateway(self) -> str:
        """The gateway's name; "" before its hello."""
        return self._hello.gateway if self._hello is not None else ""

    def challenge(self, body: memoryview) -> bytes:
        """The answer to a hello. Raises Refused if this replica cannot serve that gateway."""
        if self._hello is not None:
            raise Refused("a second hello")
        self._hello = hello = _read(body, Hello)
        if hello.replica != self._replica:
            raise Refused(f"this is replica {self._replica}, not {hello.replica[:64]!r}")
        if not hello.gateway or len(hello.nonce) != NONCE_BYTES:
            raise Refused("the hello names no gateway, or its challenge has another length")
        common = set(hello.versions) & set(self._versions)
        if not common:
            spoken = ", ".join(map(str, self._versions))
            raise Refused(f"this replica speaks version {spoken} of the channel")
        version, nonce = max(common), secrets.token_bytes(NONCE_BYTES)
        self.version = version
        self._expected = _proof(self._key, b"gateway", hello, version, nonce)
        own = _proof(self._key, b"replica", hello, version, nonce)
        return msgspec.msgpack.encode(Challenge(version, nonce, own))

    def check(self, body: memoryview) -> None:
        """Raises Refused if the gateway has not proved that it knows the key."""
        if not self._expected:
            raise Refused("a proof before a hello")
        if not hmac.compare_digest(self._expected, _read(body, Proof).proof):
            raise Refused("the gateway does not know the replica's key")


def reason_of(body: memoryview) -> str:
    """Why the replica refused. Raises Refused for a body that cannot be read."""
    return _read(body, Refusal).reason


def refusal(reason: str) -> bytes:
    """The body of a REFUSED frame."""
    return msgspec.msgpack.encode(Refusal(reason))


def _read(body: memoryview, kind: type[M]) -> M:
    try:
        return msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
        raise Refused(f"a {kind.__name__.lower()} that cannot be read: {fault}") from fault


def _proof(key: bytes, side: bytes, hello: Hello, version: int, nonce: bytes) -> bytes:
    said = msgspec.msgpack.encode(
        (side, version, hello.gateway, hello.replica, hello.versions, hello.nonce, nonce)
    )
    return hmac.digest(key, said, "sha256")
