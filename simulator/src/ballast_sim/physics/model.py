"""The interface between a fleet and its engines, the same for every physics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from ballast_core.model import Role
from ballast_core.profiles import HardwareProfile
from ballast_core.profiles.capacity import LengthStatistics
from ballast_sim.engine import EngineEvent, EngineLoad, EngineRequest
from ballast_sim.engine.events import RequestStats


class EngineModel(Protocol):
    """One engine on a clock that is passed in and never goes back."""

    @property
    def max_model_len(self) -> int:
        """Tokens of prompt and output that one request may have."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens of one KV block."""
        ...

    @property
    def preemptions(self) -> int:
        """Preemptions so far."""
        ...

    def add(self, request: EngineRequest, now_s: float) -> None:
        """Add a request. Raises ValueError naming the field of a request that could never run."""
        ...

    def abort(self, request_id: str, now_s: float) -> bool:
        """End a request: it gets no more tokens. Returns False where it has ended already."""
        ...

    def is_running(self, request_id: str) -> bool:
        """Whether a request is in the batch, with its KV."""
        ...

    @property
    def keeps_kv(self) -> bool:
        """Whether the prefix cache keeps the KV of requests that have ended."""
        ...

    def release(self, request_id: str, now_s: float) -> bool:
        """The KV held for another engine was pulled. Returns False where it is not held any more."""
        ...

    def pull_ended(self, request_id: str, now_s: float, failed: bool = False) -> None:
        """A pull that the engine began (`PullStarted`) has ended."""
        ...

    def slow(self, factor: float, now_s: float) -> None:
        """From now on work takes `factor` times as long as it should; 1 ends it."""
        ...

    @property
    def settles(self) -> bool:
        """Whether `settle` has every token reported; else those since a request's first token are only marked."""
        ...

    def settle(self) -> None:
        """Let the next `advance` report every token so far, where the engine `settles`."""
        ...

    def next_event_s(self) -> float:
        """The next time at which `advance` has work or events; infinity while the engine is idle."""
        ...

    def advance(self, now_s: float) -> list[EngineEvent]:
        """Do all work that is due by `now_s`. Returns its events in order of time."""
        ...

    def load(self, now_s: float | None = None) -> EngineLoad:
        """The values of its gauges."""
        ...

    def kv_usage_ratio(self, now_s: float) -> float:
        """The KV gauge alone. Above 1 where a physics knows no KV limit."""
        ...

    def requests(self) -> list[str]:
        """Ids of the requests that have not ended, in order of arrival."""
        ...

    def stats(self, request_id: str) -> RequestStats | None:
        """The statistics of a request so far; None once it has ended."""
        ...

    @property
    def silent_until_s(self) -> float:
        """Before this time `marks` returns nothing. Every call of the engine may change it."""
        ...

    def marks(self, now_s: float, inclusive: bool) -> Iterable[tuple[float, str, int]]:
        """Progress that `advance` does not report: (time, request, output tokens), in order of time, each once.

        Up to `now_s`: excluded, or included where `inclusive`.
        """
        ...

    def check_blocks(self) -> None:
        """Raise AssertionError where a KV block is lost or shared wrongly."""
        ...


class Physics(Protocol):
    """How engines work: a factory of the engines of one run, and their capacity by arithmetic."""

    def engine(self, profile: HardwareProfile, role: Role, *, coarse: bool, mark_every_tokens: int) -> EngineModel:
        """A new, empty engine on this hardware.

        A `coarse` engine may report the tokens of steady decodes late; `marks` then has every `mark_every_tokens`-th.
        """
        ...

    def max_model_len(self, profile: HardwareProfile) -> int:
        """Tokens of prompt and output that one request may have on this hardware."""
        ...

    def decode_step_s(self, profile: HardwareProfile, sequences: int, context_tokens: float) -> float:
        """Seconds of a step in which so many sequences decode; 0 for none."""
        ...

    def prefill_rps(self, profiles: Sequence[HardwareProfile], lengths: LengthStatistics) -> float:
        """Requests a second that these prefill endpoints carry."""
        ...

    def decode_rps(self, profiles: Sequence[HardwareProfile], lengths: LengthStatistics) -> float:
        """Requests a second that these decode endpoints carry."""
        ...
