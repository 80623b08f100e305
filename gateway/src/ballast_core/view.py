"""What a placement sees of the fleet: one array entry per candidate endpoint, in order of endpoint id."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ballast_core.model import Endpoint, Stage

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """The candidates of one stage at one moment. Shapes: every array is (len(endpoints),).

    Loads count what our ledger knows plus what the endpoints report beyond it (other gateways, direct clients).
    """

    now_s: float
    stage: Stage
    endpoints: tuple[Endpoint, ...]
    requests: IntArray
    """Requests in flight for this stage: running, queued, and assigned but not there yet (pending prefills)."""
    running_requests: IntArray
    """Requests that the endpoint reported as running when it was last observed."""
    waiting_requests: IntArray
    """Requests that the endpoint reported as waiting when it was last observed."""
    tokens: IntArray
    """Tokens in flight for this stage: of prompts still to prefill, or of prompts and outputs held for decode."""
    decoding_tokens: IntArray
    """Tokens that our decoding requests hold there: prompts and outputs so far, without pending ones."""
    kv_usage_ratio: FloatArray
    """Share of KV blocks in use when last observed, 0 to 1."""
    observation_age_s: FloatArray
    """Time since the last observation; inf if there was none."""
