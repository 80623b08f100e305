"""A request cut into stretches that different endpoints compute (Libra section 3.1)."""

from __future__ import annotations

from dataclasses import dataclass

from ballast_core.model.endpoints import Endpoint


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of one request's tokens that one endpoint computes: a micro-request in Libra's words.

    Positions count prompt and output tokens from the first prompt token. A cut at P is plain disaggregation, one below
    P leaves the rest of the prompt to the next segment, one above P moves the decode at a planned token.
    """

    endpoint: Endpoint
    end_tokens: int | None
    """Position before which it hands over; None: it goes on to the end of the request."""
    tbt_slo_s: float | None = None
    """Time between tokens that suffices for this stretch (section 4.4: the think part); None: the endpoint's own."""
