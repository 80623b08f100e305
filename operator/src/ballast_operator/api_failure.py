"""The one error of the API server's client."""

from __future__ import annotations


class ApiFailure(Exception):
    """The API server refused a request, or gave no answer. `str()` is its message."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status = status
        """HTTP status; 0 when there was no answer."""
        self.reason = reason
        """Kubernetes' reason, such as `NotFound`."""
        super().__init__(message)

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later, unchanged."""
        return self.status in (0, 429) or self.status >= 500
