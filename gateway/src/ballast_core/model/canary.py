"""A canary: one revision that gets a share of the requests while it is watched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

_ALL = 1 << 32


@dataclass(frozen=True, slots=True)
class Canary:
    """Which revision, and how much of the traffic."""

    revision: str
    weight: float
    """Share of the requests, from 0 to 1."""

    def takes(self, request_id: str) -> bool:
        """Whether it is to serve that request.

        A hash of revision and request (BLAKE2b, 32 bits) decides: all gateways, and each retry, decide alike, and the
        next canary tries other requests. Nothing of the client enters, so requests of one session go either way.
        """
        digest = blake2b(f"{self.revision} {request_id}".encode("utf-8", "surrogatepass"), digest_size=4).digest()
        return int.from_bytes(digest, "big") < self.weight * _ALL

    def among(self, revisions: Sequence[str], request_id: str) -> list[str]:
        """Those of the revisions that may serve the request, in their order: the canary alone, or all but it; where
        that leaves none, all."""
        taken = self.takes(request_id)
        return [each for each in revisions if (each == self.revision) is taken] or list(revisions)
