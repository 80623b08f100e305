"""Placements by one measure of load, each with its formula."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ballast_core.arrays import FloatArray
from ballast_core.beliefs.kinds import Belief
from ballast_core.model import Request, Stage
from ballast_core.state.view import View


@dataclass(frozen=True, slots=True)
class LeastRequestsRunning:
    """The fewest running requests, pending prefills NOT counted.

    Decode: cost_i = decoding requests_i; prefill: cost_i = requests that endpoint i last reported as running.
    Intent: SIBYL's baseline ILS (section 2.3), read as a count of requests: the view of a router that forgets what it
    has dispatched and what is still prefilling. It compares raw counts, also across unlike hardware.
    Example: 2 decoding and 3 pending against 3 decoding and none pending -> the first.
    """

    type: ClassVar[str] = "least-requests-running"
    needs: ClassVar[Belief] = Belief.NONE

    def costs(self, view: View, request: Request) -> FloatArray:
        running = view.decoding_requests if view.stage is Stage.DECODE else view.running_requests
        return running.astype(np.float64)


@dataclass(frozen=True, slots=True)
class LeastTokens:
    """The fewest tokens in flight, pending prefills included. cost_i = tokens_i.

    Decode: prompts and outputs so far of all requests there and on their way; prefill: prompts still to prefill.
    Intent: balance of KV memory. It compares raw tokens, also across unlike hardware and KV sizes, and a young request
    counts little, however long it will be. Example: tokens (900, 400, 700) -> the second.
    """

    type: ClassVar[str] = "least-tokens"
    needs: ClassVar[Belief] = Belief.PROGRESS

    def costs(self, view: View, request: Request) -> FloatArray:
        return view.tokens.astype(np.float64)


@dataclass(frozen=True, slots=True)
class Ils:
    """Instantaneous load: the fewest tokens of requests that decode now, pending ones NOT counted.

    Decode: cost_i = sum over decoding requests of prompt + output so far; prefill: 0 everywhere, so by turns.
    Intent: SIBYL's baseline ILS, read as tokens (appendix J: "unlike ILS, explicitly accounts for pending requests").
    It compares raw tokens, also across unlike hardware. Example: decoding (900, 400) tokens, pending (0, 5000) -> the
    second.
    """

    type: ClassVar[str] = "ils"
    needs: ClassVar[Belief] = Belief.PROGRESS

    def costs(self, view: View, request: Request) -> FloatArray:
        if view.stage is Stage.PREFILL:
            return np.zeros(len(view.endpoints))
        return view.decoding_tokens.astype(np.float64)


@dataclass(frozen=True, slots=True)
class VllmJsq:
    """vLLM's own balancer between data-parallel ranks (LMetric figure 6a): cost_i = 4 Q_i + R_i.

    Q_i waiting and R_i running requests by the endpoint's last observation, and as stale as that is, like the
    original. It compares raw counts, also across unlike hardware.
    Example: Q, R = (2, 1), (0, 8) -> 9 against 8, the second.
    """

    type: ClassVar[str] = "vllm-jsq"
    needs: ClassVar[Belief] = Belief.NONE

    def costs(self, view: View, request: Request) -> FloatArray:
        return (4 * view.waiting_requests + view.running_requests).astype(np.float64)
