"""A request cut into stretches that different endpoints compute (Libra section 3.1)."""

from __future__ import annotations

from ballast_core.model.endpoints import Endpoint
from ballast_core.values import value


@value
class Segment:
    """A stretch of one request's tokens that one endpoint computes: a micro-request in Libra's terms.

    Token positions count prompt and output tokens from the first prompt token. With a prompt of P tokens, a cut at P is
    plain disaggregation. A cut below P leaves the rest of the prompt to the next segment; a cut above P moves the
    decode to the next endpoint at that token.
    """

    endpoint: Endpoint
    end_tokens: int | None
    """Token position before which it hands over; None: it runs to the end of the request."""
    tbt_slo_s: float | None = None
    """Seconds between tokens that suffice here (section 4.4: the thinking part); None: the endpoint's own target."""
