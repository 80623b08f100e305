"""Whose turn it is: fair queueing between tenants, by virtual time.

Each tenant has a tag: its virtual time, which grows by the work of each of its requests that is served. The waiting
tenant with the smallest tag goes first, so tenants that wait all the time are served the same amount of work, up to one
request. A tenant that begins to wait starts at the tag of the one served last: who has been away has saved nothing
(start-time fair queueing, Goyal et al. 1996).
"""

from __future__ import annotations


class Turns:
    """The tags of all tenants. Work in tokens."""

    def __init__(self) -> None:
        self._tags: dict[str, float] = {}
        self._waiting: dict[str, int] = {}
        """Number of waiting requests of each tenant that has some."""
        self._now = 0.0
        """The tag of the tenant served last."""

    def __len__(self) -> int:
        """Tenants that wait."""
        return len(self._waiting)

    def joins(self, tenant: str) -> None:
        """A request of this tenant begins to wait."""
        waiting = self._waiting.get(tenant, 0)
        self._waiting[tenant] = waiting + 1
        if not waiting:
            self._tags[tenant] = max(self._tags.get(tenant, 0.0), self._now)
            if len(self._tags) > 2 * len(self._waiting) + 64:
                self._tags = {one: tag for one, tag in self._tags.items() if one in self._waiting or tag > self._now}

    def leaves(self, tenant: str) -> None:
        """One of its requests waits no longer."""
        waiting = self._waiting[tenant] - 1
        if waiting:
            self._waiting[tenant] = waiting
            return
        del self._waiting[tenant]
        if not self._waiting:  # nobody waits: all have been served
            self._tags.clear()
            self._now = 0.0

    def served(self, tenant: str, tokens: int) -> None:
        """One of its waiting requests is dispatched; call `leaves` afterwards."""
        tag = self._tags[tenant]
        self._now = max(self._now, tag)
        self._tags[tenant] = tag + tokens

    def tag(self, tenant: str) -> float:
        """The virtual time of a tenant that waits."""
        return self._tags[tenant]
