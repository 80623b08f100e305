"""What a placement sees of the fleet: one array entry per candidate endpoint, in order of endpoint id.

Everything is computed when it is first read: a policy pays for what it uses.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np

from ballast_core.arrays import BoolArray, FloatArray, HashArray, IntArray
from ballast_core.beliefs.beliefs import Beliefs
from ballast_core.model import Endpoint, Request, RequestId, Stage
from ballast_core.state.age_histograms import AgeHistograms
from ballast_core.state.flights import Flights
from ballast_core.state.growth import Growth
from ballast_core.state.inventory import Candidates, Inventory
from ballast_core.state.ledger import Entry, Ledger

__all__ = ["BoolArray", "FloatArray", "HashArray", "IntArray", "View"]


class View:
    """The candidates of one stage of one request at one moment. Shapes: arrays are (len(endpoints),) unless said.

    Loads count what our ledger knows, the request itself left out; where said so, also what endpoints report beyond
    it (other gateways, direct clients). Good until the Director takes in its next event.
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
        """`handoff_s`: time until the hand-off where it is the same for all; None: each candidate prefills itself."""
        self.now_s = now_s
        self.stage = stage
        self.request = request
        self.endpoints: tuple[Endpoint, ...] = candidates.endpoints
        self.slots: IntArray = candidates.slots
        """Slots of the candidates: what `flights` and `beliefs` index by."""
        self.id_hashes: HashArray = candidates.id_hashes
        """A 64-bit hash of each endpoint's id."""
        self.beliefs = beliefs
        """What is learned; read only."""
        self._inventory = inventory
        self._ledger = ledger
        self._handoff_s = handoff_s

    # --- load ---------------------------------------------------------------------------------------------------

    @cached_property
    def requests(self) -> IntArray:
        """Requests in flight for this stage: running, queued, and assigned but not there yet; foreign ones too."""
        return self._ledger.requests[self.stage].take(self.slots) + self._ledger.foreign.take(self.slots)

    @cached_property
    def foreign_requests(self) -> IntArray:
        """Requests that the endpoint reports beyond ours."""
        return self._ledger.foreign.take(self.slots)

    @cached_property
    def tokens(self) -> IntArray:
        """Tokens in flight for this stage: of prompts still to prefill, or of prompts and outputs held for decode."""
        return self._ledger.tokens[self.stage].take(self.slots)

    @cached_property
    def decoding_requests(self) -> IntArray:
        """Our requests that decode there, without pending ones; foreign ones too."""
        return self._ledger.decoding_requests.take(self.slots) + self._ledger.foreign.take(self.slots)

    @cached_property
    def decoding_tokens(self) -> IntArray:
        """Tokens that our decoding requests hold there: prompts and outputs so far, without pending ones."""
        return self._ledger.decoding_tokens.take(self.slots)

    @cached_property
    def uncached_tokens(self) -> IntArray:
        """Prompt tokens that the endpoint has been given to prefill and has not, without those it has cached."""
        return self._ledger.uncached_tokens.take(self.slots)

    @cached_property
    def uncached_pairs(self) -> FloatArray:
        """Pairs of tokens that attend to each other in those prefills."""
        return self._ledger.uncached_pairs.take(self.slots)

    @cached_property
    def prefill_elapsed_s(self) -> FloatArray:
        """How long the prefill at the head of the queue has been in service; 0 where nothing is queued."""
        since_s = self._ledger.prefilling_since_s.take(self.slots)
        busy = self._ledger.requests[Stage.PREFILL].take(self.slots) > 0
        return np.where(busy, np.maximum(self.now_s - since_s, 0.0), 0.0)

    # --- what endpoints report ----------------------------------------------------------------------------------

    @cached_property
    def running_requests(self) -> IntArray:
        """Requests that the endpoint reported as running when it was last observed."""
        return self._inventory.running.take(self.slots)

    @cached_property
    def waiting_requests(self) -> IntArray:
        """Requests that the endpoint reported as waiting when it was last observed."""
        return self._inventory.waiting.take(self.slots)

    @cached_property
    def kv_usage_ratio(self) -> FloatArray:
        """Share of KV blocks in use when last observed, 0 to 1."""
        return self._inventory.kv_usage_ratio.take(self.slots)

    # --- hardware and beliefs -----------------------------------------------------------------------------------

    @cached_property
    def kv_tokens(self) -> FloatArray:
        """Tokens of KV cache that the endpoint holds in all, by its profile."""
        return self.beliefs.hardware.kv_tokens(self.slots)

    @cached_property
    def matched_tokens(self) -> IntArray:
        """Leading tokens of the request's prompt that the endpoint is thought to hold; 0 where nothing is known."""
        matched: IntArray = np.zeros(len(self.endpoints), np.int64)
        blocks = self.request.block_hashes
        if blocks and self.request.block_size == self.beliefs.block_size:
            by_slot = self.beliefs.prefixes.match(blocks)
            known = self.slots < len(by_slot)
            matched[known] = by_slot.take(self.slots[known]) * self.request.block_size
            np.minimum(matched, self.request.prompt_tokens, out=matched)
        return matched

    @cached_property
    def prefill_s(self) -> FloatArray:
        """Expected time to prefill this request on each candidate, its queue there included."""
        return self.beliefs.prefill_times.duration_s(
            self.slots,
            (self.request.prompt_tokens - self.matched_tokens).astype(np.float64),
            self.uncached_tokens.astype(np.float64),
            queued_pairs=self.uncached_pairs,
            cached_tokens=self.matched_tokens.astype(np.float64),
            elapsed_s=self.prefill_elapsed_s,
        )

    @cached_property
    def own_prefill_s(self) -> FloatArray:
        """Expected time to prefill this request on each candidate, once it is its turn."""
        return self.beliefs.prefill_times.duration_s(
            self.slots,
            (self.request.prompt_tokens - self.matched_tokens).astype(np.float64),
            cached_tokens=self.matched_tokens.astype(np.float64),
        )

    @property
    def prefills_here(self) -> bool:
        """Whether the request is to be prefilled by the candidate itself: prefill stage, or no hand-off."""
        return self.stage is Stage.PREFILL or self._handoff_s is None

    @cached_property
    def handoff_s(self) -> FloatArray:
        """Decode stage: expected time until the request can begin to decode there, prefill and its queue included."""
        if self._handoff_s is None:
            return self.prefill_s
        return np.full(len(self.endpoints), self._handoff_s)

    @cached_property
    def hotspot(self) -> BoolArray:
        """Candidates that the hotspot detector leaves out for this request: all holders of its prefix, or none."""
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
        """Columns derived from `flights`, in their order; `update` them before reading."""
        return self._ledger.growth

    @property
    def age_histograms(self) -> AgeHistograms:
        """The requests of `flights` that decode, by slot and age; `update` them before reading."""
        return self._ledger.age_histograms

    @property
    def capacity(self) -> int:
        """Length of arrays by slot: every slot is below it."""
        return self._inventory.capacity
