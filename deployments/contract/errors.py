"""One table of everything a caller can be refused with: class, status, outcome label, Retry-After.

Foreign exceptions are mapped to these where they enter (HTTP parsing, Ray, a runtime). The shape in
which an error is written is its protocol's business (`gateway/http/protocols`). Messages are
public: they say what is wrong and what would be right, and never show internals.
"""

from __future__ import annotations

import math

_MOST_RETRY_S = 86_400.0


def whole_seconds(retry_after_s: float) -> int:
    """What a `Retry-After` says: rounded up, a day at most (a rate may be next to nothing)."""
    return max(1, math.ceil(min(retry_after_s, _MOST_RETRY_S)))


class HeadraceError(Exception):
    """Base of all public errors. `retry_after_s` > 0 becomes a `Retry-After` header (whole s).

    `reason`: what exactly it was, for metrics and logs, where one code has several causes.
    """

    status = 500
    outcome = "error"
    code = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float = 0.0,
        param: str | None = None,
        reason: str = "",
    ):
        super().__init__(message)
        self.message = message
        self.retry_after_s = retry_after_s
        self.param = param
        self.reason = reason or self.code

    def headers(self) -> list[tuple[bytes, bytes]]:
        if self.retry_after_s <= 0:
            return []
        return [(b"retry-after", b"%d" % whole_seconds(self.retry_after_s))]


class BadRequest(HeadraceError):
    status, outcome, code = 400, "bad_request", "invalid_request"


class TooManyTokens(BadRequest):
    """A text is longer than its model takes. `count`: its tokens, or "at least" so many."""

    def __init__(self, message: str, count: str, *, param: str | None = None):
        super().__init__(message, param=param)
        self.count = count


class ContextTooLong(BadRequest):
    """A prompt, with the output asked for, is longer than the model's context."""

    code = "context_length_exceeded"


class Unauthorized(HeadraceError):
    """`expired_key`: the id of the key it came by, where that has expired; for metrics and logs."""

    status, outcome, code = 401, "unauthorized", "invalid_api_key"

    def __init__(self, message: str, *, reason: str = "", expired_key: str = ""):
        super().__init__(message, reason=reason)
        self.expired_key = expired_key


class Forbidden(HeadraceError):
    status, outcome, code = 403, "forbidden", "forbidden"


class NotFound(HeadraceError):
    status, outcome, code = 404, "not_found", "not_found"


class MethodNotAllowed(HeadraceError):
    status, outcome, code = 405, "bad_request", "method_not_allowed"


class BodyTimeout(HeadraceError):
    """The body did not arrive in time."""

    status, outcome, code = 408, "body_timeout", "request_timeout"


class BodyTooLarge(HeadraceError):
    status, outcome, code = 413, "too_large", "body_too_large"


class UnsupportedMedia(HeadraceError):
    status, outcome, code = 415, "bad_request", "unsupported_media_type"


class RowConvicted(HeadraceError):
    """This very input has ended several replicas: asking again does harm, so no `Retry-After`."""

    status, outcome, code = 422, "convicted", "input_ends_replicas"


class OverOwnLimit(HeadraceError):
    """A tenant is over its own limits."""

    status, outcome, code = 429, "over_limit", "rate_limit_exceeded"


class OutputNotFinite(HeadraceError):
    """The model has answered this row with NaN or infinity, which is no answer; nor would the next
    one be."""

    status, outcome, code = 500, "not_finite", "output_not_finite"


class CallerLeft(HeadraceError):
    """The client disconnected; nobody reads this answer. Not a latency sample."""

    status, outcome, code = 499, "cancelled", "client_closed_request"


class ReaderTooSlow(HeadraceError):
    """The client took its answer in so slowly that keeping it for it had to end. Its headers are
    out: nobody sees the status but logs."""

    status, outcome, code = 499, "too_slow", "client_too_slow"


class Overloaded(HeadraceError):
    """The system is full, draining, or the model has no replica that could answer."""

    status, outcome, code = 503, "shed", "overloaded"


class NotReady(HeadraceError):
    """The model is declared but not ready yet."""

    status, outcome, code = 503, "not_ready", "model_not_ready"


class ReplicaLost(HeadraceError):
    """The replica died or hung and the retry did too (or was not allowed)."""

    status, outcome, code = 503, "lost", "replica_lost"


class RowFailed(HeadraceError):
    """The runtime failed on this very request, alone. Not the caller's input as far as we know."""

    status, outcome, code = 503, "failed", "inference_failed"


class Expired(HeadraceError):
    """The request's time limit passed before it was answered."""

    status, outcome, code = 504, "expired", "deadline_exceeded"
