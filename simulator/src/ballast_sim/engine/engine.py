"""One engine as its driver sees it: requests and transfers in, events and gauges out, on a clock that is passed in."""

import math
from collections.abc import Iterable

from ballast_sim.engine.config import EngineConfig, slowed
from ballast_sim.engine.events import EngineEvent, RequestStats
from ballast_sim.engine.gauges import EngineLoad, engine_load, transfer_stages
from ballast_sim.engine.loop import EngineLoop, OnStep, stepping_loop
from ballast_sim.engine.request_checks import check_request
from ballast_sim.engine.requests import EngineRequest, RequestState, Status
from ballast_sim.engine.vllm.block_pool import CacheListener


class Engine:
    """One vLLM engine: add, abort, then `advance` whenever `next_event_s` has come.

    The clock never goes back: ValueError where a time passed in lies before one seen earlier.
    """

    settles = True
    """See `EngineModel.settles`."""
    silent_until_s = math.inf
    """Before this time `marks` returns nothing."""

    def __init__(self, config: EngineConfig, on_step: OnStep | None = None, loop: EngineLoop | None = None) -> None:
        """`on_step` is called with every step that computes something. `loop`: another than `stepping_loop`'s."""
        self.config = config
        self.loop = loop or stepping_loop(config, on_step)
        self.scheduler = self.loop.scheduler
        self._state = self.scheduler.state
        self._requests = self.loop.requests
        self._transfers = self.loop.transfers

    # -- time --------------------------------------------------------------------------------------------------------

    def next_event_s(self) -> float:
        """When `advance` has something to do; infinity while nothing is going on."""
        return self.loop.next_event_s()

    def advance(self, now_s: float) -> list[EngineEvent]:
        """Do all that is due until `now_s`. Returns what happened, in order."""
        loop = self.loop
        while (due_s := loop.next_event_s()) <= now_s:
            loop.turn(due_s)
        loop.pass_time(now_s)
        return loop.take_events()

    def catch_up(self, now_s: float) -> None:
        """Bring the engine to the time of a message, before the message is taken in."""
        self.loop.pass_time(now_s)

    def settle(self) -> None:
        """See `CoarseEngine.settle`; here every token has been reported."""

    # -- messages ----------------------------------------------------------------------------------------------------

    def add(self, request: EngineRequest, now_s: float) -> None:
        """Submit a request; it is taken in at the loop's next turn.

        Raises ValueError naming the field of a request that could never run, and for an id that is in use.
        """
        if request.request_id in self._requests or request.request_id in self._transfers.held:
            raise ValueError(f"request_id: {request.request_id!r} is in use")
        check_request(request, self.config)
        self.catch_up(now_s)
        self.loop.add(RequestState(request, self.config.max_model_len))

    def abort(self, request_id: str, now_s: float) -> bool:
        """End a request, at the loop's next turn; False if there is none of this id any more."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self.catch_up(now_s)
        self.loop.abort(request)
        return True

    def release(self, request_id: str, now_s: float) -> bool:
        """The KV held for another engine was pulled; False if it is not held (any more).

        The worker reports it with the next step that it gets; the blocks are free when that step has been processed.
        """
        held = self._transfers.held.pop(request_id, None)
        if held is None:
            return False
        self.catch_up(now_s)
        self._transfers.read.append(held.request)
        return True

    def extend_lease(self, request_id: str, now_s: float) -> bool:
        """Another engine still means to pull; False if the KV is not held (any more).

        The lease then lasts two thirds of its length (in whole seconds, as vLLM counts) at least, from when the worker
        reads the message.
        """
        held = self._transfers.held.get(request_id)
        if held is None:
            return False
        self.catch_up(now_s)
        held.renewed = True
        if self.loop.asleep is not None:
            self._transfers.renew_leases(self.loop.now_s)
        return True

    def pull_ended(self, request_id: str, now_s: float, failed: bool = False) -> None:
        """The driver's own link finished a pull (only with `pull_setup_s` None)."""
        for request in self._transfers.pulling:
            if request.request_id == request_id:
                self.catch_up(now_s)
                request.pull_failed = failed
                self._transfers.pulling[request] = now_s
                return

    def slow(self, factor: float, now_s: float) -> None:
        """Steps composed from now on last `factor` times what the timer gives; 1 ends it."""
        self.catch_up(now_s)
        self.loop.timer = slowed(self.config.timer, factor)

    def publish_cache(self, listener: CacheListener) -> None:
        """Tell this listener, from now on, what can be hit."""
        self._state.kv.pool.listener = listener

    def reset_prefix_cache(self) -> bool:
        """Forget all that could be hit; False, and nothing is done, while requests hold blocks."""
        return self._state.kv.pool.reset_prefix_cache()

    # -- what the driver may ask -------------------------------------------------------------------------------------

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and output that one request may have."""
        return self.config.max_model_len

    @property
    def block_size(self) -> int:
        """Tokens of one KV block."""
        return self.config.block_size

    @property
    def keeps_kv(self) -> bool:
        """Whether KV of requests that have ended can be found again by their tokens."""
        return self.config.prefix_caching

    @property
    def preemptions(self) -> int:
        """Preemptions so far."""
        return self._state.counters.preemptions

    @property
    def expired_leases(self) -> int:
        """Leases that expired before their KV was read."""
        return self._transfers.expired_leases

    def requests(self) -> list[str]:
        """Ids of the requests that have not ended, in order of arrival."""
        return list(self._requests)

    def is_running(self, request_id: str) -> bool:
        """Whether a request is in the running list, with its KV."""
        request = self._requests.get(request_id)
        return request is not None and request.status is Status.RUNNING

    def stats(self, request_id: str) -> RequestStats | None:
        """A request's life so far; None once it has ended."""
        request = self._requests.get(request_id)
        return None if request is None else request.stats()

    def marks(self, now_s: float, inclusive: bool) -> Iterable[tuple[float, str, int]]:
        """See `CoarseEngine.marks`; here every token is reported as it comes."""
        return ()

    def kv_usage_ratio(self, now_s: float) -> float:
        """The gauge alone; see `load`."""
        return self._state.kv.pool.usage_ratio

    def load(self, now_s: float | None = None) -> EngineLoad:
        """Requests and KV as the gauges show them; requests not taken in yet count as waiting.

        `now_s` matters to a `CoarseEngine` only: it answers for that time without doing anything.
        """
        state, loop = self._state, self.loop
        kv_usage_ratio = state.kv.pool.usage_ratio if now_s is None else self.kv_usage_ratio(now_s)
        if state.waiting or state.skipped_waiting or loop.inbox:
            return engine_load(state, loop.added(), kv_usage_ratio)
        return EngineLoad(len(state.running), 0, 0, kv_usage_ratio)

    def transfer_stages(self) -> dict[str, int]:
        """Waiting requests by the stage of their pull."""
        return transfer_stages(self._state)

    def holds_kv(self) -> bool:
        """Whether finished prefills wait to be pulled."""
        return bool(self._transfers.held)

    def check_blocks(self) -> None:
        """Raise AssertionError where a KV block is lost or shared wrongly."""
        self._state.kv.pool.check(self._state.held_blocks())
