"""Which gateway of a fleet leads: it alone runs rounds of moves, and orders them. Placement needs no leader.

Without Kubernetes, the least name among the gateways that hear each other leads. Two parts of a fleet that do not hear
each other have a leader each: a request that both move is moved twice at worst, since holders refuse what is moving.
With Kubernetes a Lease decides (`lease`).
"""

from __future__ import annotations

from collections.abc import Iterable


def least_leads(me: str, peers: Iterable[str]) -> bool:
    """Whether this gateway leads among those that it hears, by their names."""
    return all(me <= peer for peer in peers)
