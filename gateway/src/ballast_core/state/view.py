"""What a policy sees of the fleet: arrays with one entry per candidate endpoint, ordered by endpoint id.

Each array is computed when it is first read, so a policy pays only for what it uses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import numpy as np

from ballast_core import kernel
from ballast_core.arrays import BoolArray, FloatArray, HashArray, IntArray
from ballast_core.beliefs.beliefs import Beliefs
from ballast_core.model import Endpoint, Request, RequestId, Stage
from ballast_core.state.age_histograms import AgeHistograms
from ballast_core.state.flights import Flights
from ballast_core.state.growth import Growth
from ballast_core.state.inventory import Candidates, Inventory
from ballast_core.state.ledger import Entry, Ledger

__all__ = ["BoolArray", "FloatArray", "HashArray", "IntArray", "View"]


_T = TypeVar("_T")


class _once(Generic[_T]):  # noqa: N801
    """`functools.cached_property` without its lock: a view lives for one decision, so most reads are first ones."""

    def __init__(self, compute: Callable[[View], _T]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    def __get__(self, view: View, owner: type[View]) -> _T:
        value = view.__dict__[self._name] = self._compute(view)
        return value


class View:
    """The candidates for one stage of one request at one time. Shapes: (len(endpoints),) unless stated otherwise.

    Loads count the requests of our ledger without the request itself. Where stated, they also count foreign requests:
    those that endpoints report beyond ours (other gateways, direct clients). Valid until the Director's next event.
    """

    def __init__(
        self,
        *,
        now_s: float,
        stage: Stage,
        request: Request,
        candidates: Candidates,
        inventory: Inventory,
        ledger: Ledger,
        beliefs: Beliefs,
        handoff_s: float | None = None,
    ) -> None:
        """`handoff_s`: seconds until the hand-off, the same for all candidates; None: each candidate prefills it."""
        self.now_s = now_s
        self.stage = stage
        self.request = request
        self.endpoints: tuple[Endpoint, ...] = candidates.endpoints
        self.slots: IntArray = candidates.slots
        """Slots of the candidates: the indices of `flights` and `beliefs`."""
        self.id_hashes: HashArray = candidates.id_hashes
        """A 64-bit hash of each endpoint's id."""
        self.beliefs = beliefs
        """What has been learned. Read only."""
        self._inventory = inventory
        self._ledger = ledger
        self._handoff_s = handoff_s

    # --- load ---------------------------------------------------------------------------------------------------

    @_once
    def requests(self) -> IntArray:
        """Requests in flight for this stage: running, queued, or assigned and still on their way; and foreign ones."""
        return self._ledger.requests[self.stage].take(self.slots) + self._ledger.foreign.take(self.slots)

    @_once
    def foreign_requests(self) -> IntArray:
        """Requests that the endpoint reports beyond ours."""
        return self._ledger.foreign.take(self.slots)

    @_once
    def tokens(self) -> IntArray:
        """Tokens in flight for this stage. Prefill: of prompts not done. Decode: of prompts and outputs so far."""
        return self._ledger.tokens[self.stage].take(self.slots)

    @_once
    def decoding_requests(self) -> IntArray:
        """Requests that decode there, pending ones not counted; and foreign ones."""
        return self._ledger.decoding_requests.take(self.slots) + self._ledger.foreign.take(self.slots)

    @_once
    def decoding_tokens(self) -> IntArray:
        """Tokens that our decoding requests hold there: prompts and outputs so far; pending ones not counted."""
        return self._ledger.decoding_tokens.take(self.slots)

    @_once
    def uncached_tokens(self) -> IntArray:
        """Prompt tokens that the endpoint still has to compute: assigned for prefill, not cached there, not done."""
        return self._ledger.uncached_tokens.take(self.slots)

    @_once
    def uncached_pairs(self) -> FloatArray:
        """Pairs of tokens that attend to each other in those prefills."""
        return self._ledger.uncached_pairs.take(self.slots)

    @_once
    def prefill_elapsed_s(self) -> FloatArray:
        """Seconds that the prefill at the head of the queue has been in service; 0 where none is queued."""
        since_s = self._ledger.prefilling_since_s.take(self.slots)
        busy = self._ledger.requests[Stage.PREFILL].take(self.slots) > 0
        return np.where(busy, np.maximum(self.now_s - since_s, 0.0), 0.0)

    # --- what endpoints report ----------------------------------------------------------------------------------

    @_once
    def running_requests(self) -> IntArray:
        """Running requests by the endpoint's last observation."""
        return self._inventory.running.take(self.slots)

    @_once
    def waiting_requests(self) -> IntArray:
        """Waiting requests by the endpoint's last observation."""
        return self._inventory.waiting.take(self.slots)

    # --- hardware and beliefs -----------------------------------------------------------------------------------

    @_once
    def kv_tokens(self) -> FloatArray:
        """Size of the endpoint's KV cache in tokens, by its profile."""
        return self.beliefs.hardware.kv_tokens(self.slots)

    @_once
    def matched_tokens(self) -> IntArray:
        """Leading tokens of the request's prompt that the endpoint is believed to hold; 0 where nothing is known."""
        return self.beliefs.cached_tokens(self.request, self.slots)

    @_once
    def prefill_s(self) -> FloatArray:
        """Expected seconds to prefill this request on each candidate, its queue there included."""
        if (compiled := kernel.active()) is not None:
            prefill_s = np.empty(len(self.slots))
            compiled.prefill_s(
                prefill_s, self.slots, self.known_matches, self.request.prompt_tokens, self.now_s, self.fleet(compiled)
            )
            return prefill_s
        return self.beliefs.prefill_times.duration_s(
            self.slots,
            (self.request.prompt_tokens - self.matched_tokens).astype(np.float64),
            self.uncached_tokens.astype(np.float64),
            queued_pairs=self.uncached_pairs,
            cached_tokens=self.matched_tokens.astype(np.float64),
            elapsed_s=self.prefill_elapsed_s,
        )

    @_once
    def own_prefill_s(self) -> FloatArray:
        """Expected seconds to prefill this request on each candidate, its queue there not included."""
        return self.beliefs.prefill_times.duration_s(
            self.slots,
            (self.request.prompt_tokens - self.matched_tokens).astype(np.float64),
            cached_tokens=self.matched_tokens.astype(np.float64),
        )

    # --- for the compiled kernel --------------------------------------------------------------------------------

    @property
    def known_matches(self) -> IntArray | None:
        """`matched_tokens`, or None where nothing of the prompt can be found."""
        return self.matched_tokens if self.request.names_prefix else None

    def fleet(self, compiled: kernel.Kernel) -> kernel.Prepared:
        """The loads and the hardware of all slots."""
        return self._ledger.prepared.fleet(compiled, self.beliefs)

    def census(self, compiled: kernel.Kernel) -> kernel.Prepared:
        """The requests in flight, counted by slot and age."""
        return self._ledger.prepared.census(compiled)

    def grown(self, compiled: kernel.Kernel, curves: kernel.Prepared) -> kernel.Prepared:
        """`growth` under these curves."""
        return self._ledger.prepared.growth(compiled, curves)

    @property
    def common_handoff_s(self) -> float | None:
        """The hand-off of all candidates alike; None where each prefills the request itself."""
        return None if self.prefills_here else self._handoff_s

    @property
    def prefills_here(self) -> bool:
        """Whether the candidate itself prefills the request: at the prefill stage, or without a hand-off."""
        return self.stage is Stage.PREFILL or self._handoff_s is None

    @_once
    def handoff_s(self) -> FloatArray:
        """Decode stage: expected seconds until the request can decode there, prefill and its queue included."""
        if self._handoff_s is None:
            return self.prefill_s
        return np.full(len(self.endpoints), self._handoff_s)

    @_once
    def hotspot(self) -> BoolArray:
        """Candidates that the hotspot detector excludes for this request: all holders of its prefix, or none."""
        held = self.matched_tokens > 0
        blocks = self.request.block_hashes
        if blocks and self.beliefs.hotspots.filtered(blocks[0], held):
            return held
        return np.zeros(len(held), np.bool_)

    # --- requests -----------------------------------------------------------------------------------------------

    @property
    def entries(self) -> Mapping[RequestId, Entry]:
        """Every request in flight by id. Read only."""
        return self._ledger.entries

    @property
    def flights(self) -> Flights:
        """Every request in flight that has an endpoint, one row each. Read only."""
        return self._ledger.flights

    @property
    def growth(self) -> Growth:
        """Columns derived from `flights`, in the same order. Call `update` before reading."""
        return self._ledger.growth

    @property
    def age_histograms(self) -> AgeHistograms:
        """The decoding requests of `flights` by slot and age. Call `update` before reading."""
        return self._ledger.age_histograms

    @property
    def capacity(self) -> int:
        """Length of arrays that are indexed by slot."""
        return self._inventory.capacity
