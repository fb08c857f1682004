"""The one table of errors that a caller can get: class, HTTP status, outcome label, Retry-After.

Foreign exceptions are mapped to these classes where they enter (HTTP parsing, Ray, a runtime). Each
protocol writes errors in its own format (`gateway/http/protocols`). Messages are public: they say
what is wrong and what would be right, and never show internals.
"""

from __future__ import annotations

import math

# `Retry-After`, in seconds. The one table of its cases:
# SOON_S       a replica was lost, a model failed or was replaced, or the gateway is full
# NOT_READY_S  the server drains, or a model is not ready and nobody knows when it will be
# computed     the model's queue is full, sheds or is late: `routers.shared.admission.retry_after_s`
#              (work that waits over capacity); a tenant's rate: `gateway.tenancy.rates`; a model
#              that starts: `Catalogue`, from the autoscaler's outlook; inputs that end replicas:
#              `gateway.queues.lost_replicas`; a full pool: `gateway.tenancy.fair_thread_pool`
# 0.0: no header, because asking again does not help
SOON_S = 1.0
NOT_READY_S = 2.0
_MAX_RETRY_S = 86_400.0  # a day


def whole_seconds(retry_after_s: float) -> int:
    """The value of a `Retry-After` header: rounded up, at most a day (a rate may be nearly 0)."""
    return max(1, math.ceil(min(retry_after_s, _MAX_RETRY_S)))


class HeadraceError(Exception):
    """Base of all public errors.

    `retry_after_s` > 0 becomes a `Retry-After` header in whole seconds. `param` names the part of
    the request that is wrong. `reason` names the exact cause, for metrics and logs, where one code
    has several causes. `request_id`: of the request that it ends; set by who answers that.
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
        self.request_id = ""

    def headers(self) -> list[tuple[bytes, bytes]]:
        if self.retry_after_s <= 0:
            return []
        return [(b"retry-after", b"%d" % whole_seconds(self.retry_after_s))]


class BadRequest(HeadraceError):
    status, outcome, code = 400, "bad_request", "invalid_request"


class BadText(BadRequest):
    """One of a request's texts, that with this index, cannot be read. `wrong`: why."""

    def __init__(self, index: int, wrong: str):
        super().__init__(f"input[{index}] {wrong}", param="input")
        self.index, self.wrong = index, wrong

    def named(self, name: str) -> BadText:
        """This error, with the name that the text has in its request."""
        self.message, self.param = f"{name} {self.wrong}", name.split("[", 1)[0]
        return self


class TooManyTokens(BadText):
    """A text is longer than its model takes. `count`: its number of tokens, or "at least N"."""

    def __init__(self, index: int, wrong: str, count: str):
        super().__init__(index, wrong)
        self.count = count


class ContextTooLong(BadRequest):
    """The prompt and the output asked for together are longer than the model's context."""

    code = "context_length_exceeded"


class Unauthorized(HeadraceError):
    """`expired_key`: the id of the caller's key if that has expired; for metrics and logs."""

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


class UriTooLong(HeadraceError):
    status, outcome, code = 414, "too_large", "uri_too_long"


class HeadersTooLarge(HeadraceError):
    """The headers are too many, or too large together. Source: RFC 6585 §5."""

    status, outcome, code = 431, "too_large", "headers_too_large"


class UnsupportedMedia(HeadraceError):
    status, outcome, code = 415, "bad_request", "unsupported_media_type"


class RowQuarantined(HeadraceError):
    """This input has ended several replicas. No `Retry-After`: asking again would do harm."""

    status, outcome, code = 422, "quarantined", "input_ends_replicas"


class OverOwnLimit(HeadraceError):
    """The tenant is over its own limits."""

    status, outcome, code = 429, "over_limit", "rate_limit_exceeded"


class OutputNotFinite(HeadraceError):
    """The model answered this row with NaN or infinity. That is no answer, and running the row
    again would give no other."""

    status, outcome, code = 500, "not_finite", "output_not_finite"


class CallerLeft(HeadraceError):
    """The client disconnected, so nobody reads the answer. Not a latency sample."""

    status, outcome, code = 499, "cancelled", "client_closed_request"


class ReaderTooSlow(HeadraceError):
    """The client read its answer too slowly for the gateway to go on holding it. The response's
    headers have been sent already, so only logs show this status."""

    status, outcome, code = 499, "too_slow", "client_too_slow"


class Overloaded(HeadraceError):
    """The system is full or draining, or no replica of the model could answer."""

    status, outcome, code = 503, "shed", "overloaded"


class NotReady(HeadraceError):
    """The model is declared but not ready yet."""

    status, outcome, code = 503, "not_ready", "model_not_ready"


class ReplicaLost(HeadraceError):
    """The replica died or hung, and so did the retry, or no retry was allowed."""

    status, outcome, code = 503, "lost", "replica_lost"


class RowFailed(HeadraceError):
    """The runtime failed on this request even when it ran alone. The caller's input is not known to
    be at fault."""

    status, outcome, code = 503, "failed", "inference_failed"


class OutOfDeviceMemory(RowFailed):
    """No replica's device had the memory for this input alone. No `Retry-After`: whether there will
    be more, nobody knows."""

    code = "out_of_device_memory"


class Expired(HeadraceError):
    """The request's timeout passed before the request was answered."""

    status, outcome, code = 504, "expired", "deadline_exceeded"
