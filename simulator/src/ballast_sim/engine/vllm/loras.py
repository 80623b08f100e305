"""LoRA adapters in a step (vLLM 0.32, v1/core/sched/scheduler.py and lora/models.py).

At most `max_loras` adapters may be in a step. A waiting request of one more is passed over, and the next one has its
turn. The adapters used last stay on the accelerator, `max_loras` of them; the step that brings in another one lasts as
much longer as it takes to load, for all of its requests.
"""

from __future__ import annotations

from collections.abc import Iterable

from ballast_sim.engine.requests import RequestState


class Loras:
    """Which adapters are on the accelerator, the one used last at the end."""

    __slots__ = ("_load_s", "_most", "_resident")

    def __init__(self, most: int, load_s: float) -> None:
        """`most`: `--max-loras`; `load_s`: seconds to load one."""
        self._most = most
        self._load_s = load_s
        self._resident: dict[str, None] = {}

    def in_step(self, scheduled: Iterable[RequestState]) -> set[str]:
        """The adapters of the requests that are in the step."""
        return {request.spec.adapter for request in scheduled if request.spec.adapter}

    def fits(self, request: RequestState, in_step: set[str]) -> bool:
        """Whether the step may hold it, too."""
        adapter = request.spec.adapter
        return not adapter or adapter in in_step or len(in_step) < self._most

    def use(self, request: RequestState, in_step: set[str]) -> float:
        """It enters the step: seconds to load its adapter, 0 if that is there."""
        adapter = request.spec.adapter
        if not adapter:
            return 0.0
        in_step.add(adapter)
        there = adapter in self._resident
        self._resident.pop(adapter, None)
        self._resident[adapter] = None
        if there:
            return 0.0
        while len(self._resident) > self._most:
            del self._resident[next(iter(self._resident))]
        return self._load_s
