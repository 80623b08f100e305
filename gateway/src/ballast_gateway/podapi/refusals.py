"""Why a call of the pod API is refused: statuses and codes, in OpenAI's shape."""

from __future__ import annotations

from ballast_api.signatures import NotSigned
from ballast_gateway.errors import ApiError


class OrderRefused(Exception):
    """An order that cannot be followed; `error` is the answer."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message)
        self.error = error


def _error(status: int, code: str, message: str, param: str | None = None) -> ApiError:
    kind = "service_unavailable_error" if status >= 500 else "invalid_request_error"
    return ApiError(status=status, type=kind, code=code, message=message, param=param)


def not_signed(why: NotSigned) -> ApiError:
    """No signature, or none that is taken: 401."""
    return _error(401, "unauthorized", str(why))


def too_many_readers(most: int) -> ApiError:
    """No room for one more reader of events: 503."""
    return _error(503, "too-many-readers", f"{most} readers listen already")


def no_own_list() -> ApiError:
    """A gateway finds endpoints by itself: 405."""
    return _error(405, "own-inventory", "this gateway finds its endpoints by itself")


def unknown_request(request_id: str) -> OrderRefused:
    """Nothing of this id is held: 404."""
    return OrderRefused(_error(404, "unknown-request", f"no request {request_id[:200]!r} is held here", "request_id"))


def ambiguous(request_id: str) -> OrderRefused:
    """Several requests have this id: 409."""
    return OrderRefused(
        _error(409, "ambiguous", f"several requests have the id {request_id[:200]!r}: name `by`, who decided", "by")
    )


def not_movable() -> OrderRefused:
    """Its state cannot be carried over, or it has not begun: 409."""
    return OrderRefused(_error(409, "not-movable", "its state cannot be carried to another endpoint now", "request_id"))


def moving() -> OrderRefused:
    """A move is under way: 409."""
    return OrderRefused(_error(409, "moving", "the request is being moved", "request_id"))


def not_there(endpoint: str) -> OrderRefused:
    """It has no leg there that may be left: 409."""
    return OrderRefused(_error(409, "not-there", f"no leg that may be left is on {endpoint[:200]!r}", "endpoint"))


def unknown_target(target: str) -> OrderRefused:
    """No endpoint of the inventory: 422."""
    return OrderRefused(_error(422, "unknown-target", f"{target[:200]!r} is not in the inventory", "target"))


def unusable_target(target: str) -> OrderRefused:
    """An endpoint that takes no decodes, or none now: 422."""
    return OrderRefused(_error(422, "unusable-target", f"{target[:200]!r} takes no decodes now", "target"))
