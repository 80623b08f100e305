"""What a fleet asks of an engine, whatever physics it obeys."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from ballast_core.model import Role
from ballast_core.profiles import HardwareProfile
from ballast_sim.capacity import LengthStatistics
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
        """Hand over a request. Raises ValueError naming the field of one that could never run."""
        ...

    def abort(self, request_id: str, now_s: float) -> bool:
        """End a request: it gets no more tokens; False if there is none of this id any more."""
        ...

    def is_running(self, request_id: str) -> bool:
        """Whether a request is in the batch, with its KV."""
        ...

    @property
    def keeps_kv(self) -> bool:
        """Whether KV of requests that have ended can be found again by their tokens."""
        ...

    def release(self, request_id: str, now_s: float) -> bool:
        """The KV held for another engine was pulled; False if it is not held (any more)."""
        ...

    def pull_ended(self, request_id: str, now_s: float, failed: bool = False) -> None:
        """A pull that the engine began (`PullStarted`) has ended."""
        ...

    def slow(self, factor: float, now_s: float) -> None:
        """From now on work takes `factor` times as long as it should; 1 ends it."""
        ...

    def settle(self) -> None:
        """Have the next `advance` tell every token so far."""
        ...

    def next_event_s(self) -> float:
        """When `advance` has something to do or to tell; infinity while nothing is going on."""
        ...

    def advance(self, now_s: float) -> list[EngineEvent]:
        """Do all that is due until `now_s`, and say what happened, in order."""
        ...

    def load(self, now_s: float | None = None) -> EngineLoad:
        """What its gauges show."""
        ...

    def kv_usage_ratio(self, now_s: float) -> float:
        """The KV gauge alone. Above 1 where a physics knows no KV limit."""
        ...

    def requests(self) -> list[str]:
        """Ids of the requests that have not ended, in order of arrival."""
        ...

    def stats(self, request_id: str) -> RequestStats | None:
        """A request's life so far; None once it has ended."""
        ...

    @property
    def silent_until_s(self) -> float:
        """Before this time `marks` has nothing to tell; it moves with what the engine does and is told."""
        ...

    def marks(self, now_s: float, inclusive: bool) -> Iterable[tuple[float, str, int]]:
        """Progress that `advance` does not tell: (time, request, output tokens), in order, each once.

        Of what happened before `now_s`, or by it where `inclusive`.
        """
        ...

    def check_blocks(self) -> None:
        """Raise AssertionError where a KV block is lost or shared wrongly."""
        ...


class Physics(Protocol):
    """How engines work: a factory for those of one run, and what they carry by arithmetic."""

    def engine(self, profile: HardwareProfile, role: Role, *, coarse: bool, mark_every_tokens: int) -> EngineModel:
        """A new, empty engine on this hardware.

        A `coarse` one may tell the tokens of steady decodes late, and then `marks` each `mark_every_tokens`.
        """
        ...

    def max_model_len(self, profile: HardwareProfile) -> int:
        """Tokens of prompt and output that one request may have on this hardware."""
        ...

    def decode_step_s(self, profile: HardwareProfile, sequences: int, context_tokens: float) -> float:
        """How long a step lasts in which so many sequences decode; 0 for none."""
        ...

    def prefill_rps(self, profiles: Sequence[HardwareProfile], lengths: LengthStatistics) -> float:
        """Requests a second that these prefill endpoints carry."""
        ...

    def decode_rps(self, profiles: Sequence[HardwareProfile], lengths: LengthStatistics) -> float:
        """Requests a second that these decode endpoints carry."""
        ...
