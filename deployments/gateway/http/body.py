"""The limits of request bodies: bytes on the wire, inflated, and held by all requests together.

Bytes are counted as read and as inflated, of bodies that did not arrive whole with their headers;
those small ones are not counted. A request that would exceed the limit on all is refused and may
come again; a body that is alone is always let in, so that the limit never forbids what
`max_body_bytes` allows. One gzip member or zlib stream is taken, which is what HTTP clients send;
anything after it is refused (a body of many tiny members would be work without end). What parsing
makes of a body is not counted: the pool's few workers bound that.

Source: RFC 1950; RFC 1952; RFC 9110 §8.4.1.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf, prod

from deployments.contract.description import ModelDescription
from deployments.contract.errors import SOON_S, BadRequest, BodyTooLarge, Overloaded
from deployments.gateway.tenancy.rates import QuotaKey, SharedBound

_NUMBER_BYTES = 32  # the longest FP64 has 24 characters; and a comma, and indentation
_SLACK_BYTES = 262_144  # names, shapes, parameters, outputs
_SLACK_NUMBERS = 4096
_PROMPT_BYTES, _BYTES_PER_TOKEN = 4 << 20, 64
_MAX_TEXTS, _TEXT_BYTES_PER_TOKEN = 2048, 16  # on average, of many texts; languages have 2 to 5


@dataclass(frozen=True, slots=True)
class BodyBound:
    """`numbers`: that a body of JSON may hold. `largest`: what follows, as a refusal calls it."""

    size_bytes: float = inf
    numbers: float = inf
    largest: str = ""

    def check_bytes(self, size: int) -> None:
        """Raises BodyTooLarge."""
        if size > self.size_bytes:
            raise BodyTooLarge(
                f"the body has {size} bytes, more than any request of {self.largest}: "
                f"{self.size_bytes:.0f}"
            )

    def check_numbers(self, count: int) -> None:
        """Raises BodyTooLarge."""
        if count > self.numbers:
            raise BodyTooLarge(
                f"the body holds {count} numbers or more, which is more than any request of "
                f"{self.largest}: {self.numbers:.0f}"
            )


UNBOUNDED = BodyBound()


def bound_of(d: ModelDescription, *, numbers: bool) -> BodyBound:
    """`numbers`: the body is a request of tensors; else of texts, or of lists of tokens.

    What is larger than any request that the model could take is refused before it is read. As many
    rows as may wait at once (`queue.max_rows`), each as long as the model takes (`lengths.max`): so
    many numbers, or tokens of text. Prompts of what generates are bounded by the tokens that a
    replica holds. Where the model says nothing (an axis of any size, BYTES, images, texts that it
    cuts) there is no bound here, and those of `gateway.limits` stand alone.
    """
    if d.generating is not None:
        most = _PROMPT_BYTES + _BYTES_PER_TOKEN * d.generating.cache_tokens
        return BodyBound(most, inf, f"{d.generating.cache_tokens} tokens, which '{d.name}' holds")
    rows = d.scheduling.core.max_queue_rows
    largest = f"{rows} rows of {d.max_length}, which '{d.name}' takes (queue.max_rows, lengths.max)"
    if numbers:
        row = sum(_numbers(d, spec.datatype, spec.shape[1:]) for spec in d.inputs)
        numbers_in_all = rows * row + _SLACK_NUMBERS
        return BodyBound(_NUMBER_BYTES * numbers_in_all + _SLACK_BYTES, numbers_in_all, largest)
    if d.image is not None or d.truncate:
        return UNBOUNDED
    most = min(rows, _MAX_TEXTS) * d.max_length * _TEXT_BYTES_PER_TOKEN
    return BodyBound(most + _SLACK_BYTES, inf, largest)


def widest(models: Iterable[ModelDescription], *, numbers: bool) -> BodyBound:
    """For a body that names its model itself: one of these. `numbers`: as in `bound_of`."""
    bounds = [bound_of(d, numbers=numbers) for d in models]
    return max(bounds, key=lambda bound: bound.size_bytes, default=UNBOUNDED)


def _numbers(d: ModelDescription, datatype: str, axes: tuple[int, ...]) -> float:
    """Of one row of one input; inf: its shape does not say. Of images, callers may send others."""
    if datatype == "BYTES" or d.image is not None:
        return inf
    free = [axis for axis, size in enumerate(axes, 1) if size == -1]
    if free and (d.lengths_input is None or free != [d.lengths_axis]):
        return inf
    return prod(d.max_length if size == -1 else size for size in axes)


# As Apache's mod_reqtimeout: slower than any line that people use. The grace is for a connection's
# first packets, one of which may have to be sent again.
MIN_BYTES_PER_S = 500.0
SLOW_GRACE_S = 5.0
_SMALL_ARRIVING = 256  # of requests that say a word or two
_READ_BYTES, _STEP_BYTES = 65_536, 1 << 20
# By what `Content-Encoding` calls them. Of deflate the form that has a head: zlib's own.
COMPRESSIONS = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """`max_bytes` on the wire, `max_inflated_bytes` after gzip, `timeout_s` for the whole body;
    `room`: what all bodies share; `limit_name`: what a refusal calls `max_bytes`. `arriving`: those
    that are being read. `min_bytes_per_s`: how slowly, after the first `grace_s`, 0: as may be."""

    max_bytes: int
    max_inflated_bytes: int
    timeout_s: float
    room: BodyRoom
    limit_name: str = "gateway.limits.max_body_bytes"
    arriving: ArrivingBodies = field(default_factory=lambda: ArrivingBodies(_SMALL_ARRIVING))
    min_bytes_per_s: float = 0.0
    grace_s: float = 0.0

    def due_s(self, size_bytes: int) -> float:
        """When more must have come of a body of which so much has, from its beginning."""
        if not self.min_bytes_per_s:
            return self.timeout_s
        return min(self.timeout_s, self.grace_s + size_bytes / self.min_bytes_per_s)

    def within(self, bound: BodyBound) -> BodyLimits:
        """These, and what the model could take."""
        if bound.size_bytes >= self.max_bytes:
            return self
        name = f"any request of {bound.largest}"
        return replace(self, max_bytes=int(bound.size_bytes), limit_name=name)


def small_body(limit_name: str) -> BodyLimits:
    """Of a request that says a word or two: 4 KiB, in 10 s."""
    return BodyLimits(4096, 4096, 10.0, BodyRoom(1 << 20), limit_name)


class BodyRoom:
    """What large bodies under way may hold together, and answers that were not taken yet, each
    tenant its share of it; `held_bytes`: they do. Whoever takes or keeps gives back, whatever the
    request's ending."""

    def __init__(self, limit_bytes: int) -> None:
        self._bytes = SharedBound(limit_bytes)

    @property
    def held_bytes(self) -> int:
        return self._bytes.used

    def take(self, quota_key: QuotaKey, size_bytes: int, own_bytes: int) -> None:
        """As `check`. Raises Overloaded, having taken nothing."""
        self.check(quota_key, size_bytes, own_bytes)
        self._bytes.add(quota_key, size_bytes)

    def check(self, quota_key: QuotaKey, size_bytes: int, own_bytes: int) -> None:
        """`own_bytes`: what this request holds already. Raises Overloaded."""
        others = self.held_bytes - own_bytes
        if others and not self._bytes.fits(quota_key, size_bytes):
            raise Overloaded(
                "the gateway holds too many large bodies and answers "
                "(gateway.limits.max_held_bytes)",
                retry_after_s=SOON_S,
                reason="bodies_full",
            )

    def keep(self, quota_key: QuotaKey, size_bytes: int) -> None:
        """What is held already: nobody is asked."""
        self._bytes.add(quota_key, size_bytes)

    def give(self, quota_key: QuotaKey, size_bytes: int) -> None:
        self._bytes.give(quota_key, size_bytes)


class ArrivingBodies:
    """Bodies that are being read, each tenant its share of `limit`."""

    def __init__(self, limit: int) -> None:
        self._bodies = SharedBound(limit)

    def begin(self, quota_key: QuotaKey) -> None:
        """Raises Overloaded."""
        if not self._bodies.fits(quota_key, 1):
            raise Overloaded(
                "too many bodies are arriving at the gateway (half of gateway.limits.max_requests)",
                retry_after_s=SOON_S,
                reason="arriving_full",
            )
        self._bodies.add(quota_key, 1)

    def end(self, quota_key: QuotaKey) -> None:
        self._bodies.give(quota_key, 1)


class Inflation:
    """One compressed body on its way to what it holds: it is measured a step at a time, keeping
    nothing, and inflated once its size is known to be allowed and to fit. `size_bytes`: measured so
    far; `encoding`: one of `COMPRESSIONS`.

    A step is some milliseconds on a thread. Raises BadRequest for anything but one whole stream,
    and BodyTooLarge as soon as there are more bytes than `limits` allow, or more commas than
    `bound` has numbers: a million of them fit a kilobyte.
    """

    def __init__(
        self,
        body: bytes | memoryview,
        limits: BodyLimits,
        bound: BodyBound = UNBOUNDED,
        encoding: bytes = b"gzip",
    ) -> None:
        self._body, self._limits, self._bound = memoryview(body), limits, bound
        self._name, self._wbits = encoding.decode(), COMPRESSIONS[encoding]
        self._stream = zlib.decompressobj(wbits=self._wbits)
        self._at = self._commas = self.size_bytes = 0

    @property
    def is_measured(self) -> bool:
        return self._stream.eof

    def measure(self) -> None:
        """Goes on by `_STEP_BYTES` at most."""
        ahead: bytes | memoryview = self._stream.unconsumed_tail
        if not ahead:
            ahead = self._body[self._at : self._at + _READ_BYTES]
            self._at += len(ahead)
        try:
            part = self._stream.decompress(ahead, _STEP_BYTES)
        except zlib.error:
            raise BadRequest(
                f"The body is not valid {self._name}, which its Content-Encoding claims."
            ) from None
        self.size_bytes += len(part)
        self._commas += part.count(b",")
        self._check(went_on=bool(ahead or part))

    def _check(self, *, went_on: bool) -> None:
        most = self._limits.max_inflated_bytes
        if self.size_bytes > most:
            raise BodyTooLarge(f"The body inflates to more than {most} bytes.")
        self._bound.check_bytes(self.size_bytes)
        self._bound.check_numbers(self._commas)
        if self._stream.eof and (self._stream.unused_data or self._at < len(self._body)):
            raise BadRequest(
                f"The {self._name} body has data after its end; send a single {self._name} member."
            )
        if not self._stream.eof and not went_on:
            raise BadRequest(f"The {self._name} body is incomplete.")

    def take(self) -> bytes:
        """What it holds."""
        return zlib.decompress(self._body, self._wbits, max(self.size_bytes, 1))
