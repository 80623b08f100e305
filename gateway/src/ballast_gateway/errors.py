"""Errors that clients get: status code and body for each reason, in OpenAI's shape.

Both faces answer with these values, so a client sees the same error through either. Statuses follow the
endpoint-picker protocol of the Gateway API Inference Extension (503 no eligible endpoint, 429 shed).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ballast_core.model import RejectReason

REASON_HEADER: Final = "x-ballast-reason"
"""The header with the machine-readable reason of an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiError:
    """One error answer. `body()` and `headers()` go on the wire."""

    status: int
    type: str
    code: str
    message: str
    param: str | None = None
    retry_after_s: int | None = None
    quoteless: str | None = None
    """The message without what the client sent; None: it quotes nothing."""

    @property
    def for_log(self) -> str:
        """The message as it may be logged: what a client sends may be secret."""
        return self.message if self.quoteless is None else self.quoteless

    def body(self) -> bytes:
        """JSON in the shape of OpenAI's errors."""
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()

    def headers(self) -> tuple[tuple[str, str], ...]:
        """All headers but the content length; names in lower case."""
        retry = () if self.retry_after_s is None else (("retry-after", str(self.retry_after_s)),)
        return (("content-type", "application/json"), (REASON_HEADER, self.code), *retry)


_REJECTED: Final[dict[RejectReason, tuple[int, str]]] = {
    RejectReason.NO_ENDPOINTS: (503, "service_unavailable_error"),
    RejectReason.SATURATED: (429, "rate_limit_error"),
    RejectReason.UPSTREAM_FAILED: (503, "service_unavailable_error"),
    RejectReason.UPSTREAM_REFUSED: (502, "service_unavailable_error"),
    RejectReason.RETRY_BUDGET: (503, "service_unavailable_error"),
    RejectReason.BREAKS_ENGINES: (502, "service_unavailable_error"),
}
"""Status and type."""


def rejected(reason: RejectReason, message: str, retry_after_s: float) -> ApiError:
    """The Director rejected the request: 429, 503, or 502 where the same request would fail again.

    Retry-After has whole seconds (RFC 9110).
    """
    status, kind = _REJECTED[reason]
    after_s = None if status == 502 else max(1, round(retry_after_s))
    return ApiError(status=status, type=kind, code=str(reason), message=message, retry_after_s=after_s)


def invalid_request(
    message: str, *, param: str | None = None, code: str = "invalid-request", quoteless: str | None = None
) -> ApiError:
    """The client's fault: 400."""
    return ApiError(
        status=400, type="invalid_request_error", code=code, message=message, param=param, quoteless=quoteless
    )


def model_not_found(model: str, served: Iterable[str]) -> ApiError:
    """The client asked for a model that is not served here: 404."""
    known = ", ".join(repr(name) for name in served)
    return ApiError(
        status=404,
        type="invalid_request_error",
        code="model-not-found",
        message=f"the model {model!r} does not exist here; served: {known}",
        param="model",
        quoteless=f"this model does not exist here; served: {known}",
    )


class BodyLimitNames(NamedTuple):
    """What refusals call the bounds on bodies, so that whoever runs the process knows what to set."""

    whole: str
    """Of any body."""
    text: str
    """Of one without images or other media."""


GATEWAY_LIMITS: Final = BodyLimitNames("this gateway's limits.maxBodyBytes", "this gateway's limits.maxTextBodyBytes")


def body_too_large(limit_bytes: int, limit_name: str = GATEWAY_LIMITS.whole, *, text: bool = False) -> ApiError:
    """More body than a limit allows; `text`: than one for bodies without media: 413."""
    without = " without images or other media" if text else ""
    return ApiError(
        status=413,
        type="invalid_request_error",
        code="body-too-large",
        message=f"the request body{without} is larger than {limit_bytes} bytes, {limit_name}",
    )


def client_limit(what: str, limit: int, setting: str) -> ApiError:
    """One client has all of its share: 429."""
    return ApiError(
        status=429,
        type="rate_limit_error",
        code="client-limit",
        message=f"{what} would pass {limit}, the limits.{setting} of this gateway; wait until earlier requests end",
        retry_after_s=1,
    )


def invalid_api_key() -> ApiError:
    """No key, or one that is not known, or a token that is not good: 401."""
    return ApiError(
        status=401,
        type="invalid_request_error",
        code="invalid-api-key",
        message="this needs an API key or token that is good here, as `Authorization: Bearer KEY`",
    )


TENANT_LIMIT: Final = "tenant-limit"
"""Code of what a tenant's share does not let in."""


def tenant_limit(what: str, limit: int, retry_after_s: int) -> ApiError:
    """A tenant has all of its share: 429."""
    return ApiError(
        status=429,
        type="rate_limit_error",
        code=TENANT_LIMIT,
        message=f"this API key's tenant may have {limit} {what}; come back later",
        retry_after_s=retry_after_s,
    )


def bodies_full(limit_bytes: int) -> ApiError:
    """Bodies in flight have all the memory that they may take: 503."""
    return ApiError(
        status=503,
        type="service_unavailable_error",
        code="bodies-full",
        message=f"request bodies in flight would take more than {limit_bytes} bytes, the limits.maxBodiesBytes here",
        retry_after_s=1,
    )


def internal_error() -> ApiError:
    """A fault of the gateway itself: 500. The log names it."""
    return ApiError(
        status=500, type="internal_error", code="internal-error", message="the gateway failed to handle the request"
    )


def not_found(path: str, known: Sequence[str] = ()) -> ApiError:
    """No route: 404."""
    hint = f"; known: {', '.join(known)}" if known else ""
    return ApiError(
        status=404,
        type="invalid_request_error",
        code="not-found",
        message=f"there is no {path!r} here{hint}",
        quoteless="/metrics is on the admin port" if path == "/metrics" else f"there is no such path here{hint}",
    )


def method_not_allowed(method: str, path: str, allowed: str) -> ApiError:
    """The route has other methods: 405."""
    return ApiError(
        status=405,
        type="invalid_request_error",
        code="method-not-allowed",
        message=f"{path} takes {allowed}, not {method}",
    )


def headers_too_large(limit_bytes: int) -> ApiError:
    """More headers than `limits.maxHeaderBytes`: 431."""
    return ApiError(
        status=431,
        type="invalid_request_error",
        code="headers-too-large",
        message=f"the request's headers are larger than {limit_bytes} bytes, the limit of this gateway",
    )


def request_timeout(limit: str) -> ApiError:
    """The client began a request and did not send it in time: 408."""
    return ApiError(
        status=408,
        type="invalid_request_error",
        code="request-timeout",
        message=f"the request was not sent in time: {limit}",
    )


def unsupported(status: int, message: str, *, code: str = "unsupported") -> ApiError:
    """Legal HTTP that this gateway does not speak. 4xx also where RFC 9110 has 501 or 505: 5xx are our own faults."""
    return ApiError(status=status, type="invalid_request_error", code=code, message=message)


def body_encoded() -> ApiError:
    """A content coding: engines ignore the header, so what it hides would reach them unread."""
    return unsupported(415, "send the body without Content-Encoding")


def without_preflight() -> ApiError:
    """A page of another origin has its reader's browser send a body that needs no preflight: 415."""
    return unsupported(415, "from a page, send the body with Content-Type: application/json")


def cancelled() -> ApiError:
    """Stopped by order: 503, or an event in a stream that has begun."""
    message = "the request was cancelled by those who run this service"
    return ApiError(status=503, type="service_unavailable_error", code="cancelled", message=message)


def gateway_shutdown() -> ApiError:
    """This gateway ends; another one, or its successor, answers: 503, or an event in a stream that has begun."""
    return ApiError(
        status=503,
        type="service_unavailable_error",
        code="gateway-shutdown",
        message="this gateway is shutting down; retry",
        retry_after_s=1,
    )


def deadline_exceeded(seconds: float) -> ApiError:
    """The request's deadline passed before its answer was whole: 504."""
    return ApiError(
        status=504,
        type="timeout_error",
        code="deadline-exceeded",
        message=f"the answer was not whole within {seconds:g} s, the deadline of this request",
    )


def upstream_broke(message: str) -> ApiError:
    """The engine failed in the middle of an answer, too late to try another one: 502."""
    return ApiError(status=502, type="service_unavailable_error", code="upstream-broke", message=message)
