"""The one error of the API server's client."""

from __future__ import annotations

import re
from typing import Final

_AWAY: Final = frozenset({0, 429, 503, 504})
"""No answer, too many requests, and what says that the server is not there for anybody."""
_STORE: Final = re.compile(r"etcd|leader changed|request timed out|stopping|shutting down", re.IGNORECASE)
"""In a 5xx: the server's own trouble, whatever the request."""


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
        """Whether it says nothing about the request, which may succeed later, unchanged.

        Other 5xx come of the request: the server answers 500 where it cannot read a quantity of the object, or where a
        webhook that judges the object fails.
        """
        return self.status in _AWAY or (self.status >= 500 and _STORE.search(str(self)) is not None)
