"""Where a planned request goes: as its plan says, and when a leg fails to the next place. No I/O, no clock.

The rules are the Director's as far as one holder can keep them: `max_retries` in all, no endpoint that has failed is
asked again, and a 4xx about the request's content that two endpoints give is the client's fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ballast_core.model import Fault, RejectReason, RequestId, Stage
from ballast_core.model.effects import Dispatch, Reject
from ballast_core.model.segments import Segment
from ballast_gateway.agent.places import Places
from ballast_gateway.podapi.plan import Place, Plan

_OF_CONTENT: Final = frozenset({400, 413, 422})


@dataclass(frozen=True, slots=True)
class _Failure:
    endpoint: str
    stage: Stage
    fault: Fault
    status: int


class Choosing:
    """One request's course through the fleet."""

    def __init__(self, plan: Plan, places: Places, *, divisible: bool = True) -> None:
        """Begins at the agent's own place in the plan: those named before it have not taken the request.

        `divisible`: whether the tokens of its prompt can be known; else it is not cut, whatever the plan says.
        """
        self._plan = plan
        self._places = places
        self._id = RequestId(plan.id)
        self._failures: list[_Failure] = []
        named = (plan.decode, *plan.fallbacks)
        own = next(number for number, place in enumerate(named) if places.is_own(place))
        self._spent = {place.id for place in named[:own]}
        """Endpoints that are not asked (again)."""
        self.decode = named[own]
        self._ordered = self.decode
        self.prefill = plan.prefill
        self.begun = False
        """A token has come: engines of another revision may have other weights, and do not go on with it."""
        self._cut = divisible and bool(plan.segments) and plan.prefill is not None

    def dispatch(self) -> Dispatch:
        """Where it goes now."""
        places, prefill = self._places, self.prefill
        segments: tuple[Segment, ...] = ()
        if self._cut and prefill is not None:
            cuts = [part.segment() for part in self._plan.segments]
            segments = (*cuts[:-1], Segment(places.endpoint(self.decode), cuts[-1].end_tokens))
        return Dispatch(
            self._id,
            prefill=None if prefill is None or prefill.id == self.decode.id else places.endpoint(prefill),
            decode=places.endpoint(self.decode),
            segments=segments,
            priority=self._plan.priority,
        )

    def order(self, target: Place) -> None:
        """It is to move there; it has not yet."""
        self._ordered = target

    def moved(self) -> None:
        """It decodes where it was to move, now."""
        self.decode = self._ordered

    def failed(self, stage: Stage, endpoint: str, fault: Fault, status: int) -> Dispatch | Reject:
        """A leg has failed: where it goes next, or why nowhere."""
        self._failures.append(_Failure(endpoint, stage, fault, status))
        self._spent.add(endpoint)
        self._cut = False
        decode: Place | None = self.decode
        if self.decode.id in self._spent:
            decode = self._next(Stage.DECODE, self._plan.fallbacks, pairs=self.begun)
        if (refusal := self._final(last=decode is None)) is not None:
            return refusal
        assert decode is not None
        self.decode = decode
        if self.prefill is not None and (self.prefill.id in self._spent or not self._pairs(self.prefill)):
            # None: the decode endpoint does it
            self.prefill = self._next(Stage.PREFILL, self._plan.prefill_fallbacks, pairs=True)
        return self.dispatch()

    def _pairs(self, place: Place) -> bool:
        """Whether it is of the decode endpoint's revision: only then the two exchange KV blocks."""
        return place.revision == self.decode.revision

    def _next(self, stage: Stage, named: tuple[Place, ...], *, pairs: bool = False) -> Place | None:
        """`pairs`: only those of the decode endpoint's revision."""
        known = [place for place in named if place.id not in self._spent and self._places.takes(place)]
        known += self._places.others(stage, self._plan.key, self._spent)
        return next((place for place in known if not pairs or self._pairs(place)), None)

    def _final(self, *, last: bool) -> Reject | None:
        failures = self._failures
        latest = failures[-1]
        where = f"{latest.endpoint} ({latest.stage})"
        last = last or len(failures) > self._plan.max_retries
        alike = all((each.fault, each.status) == (Fault.REFUSED, latest.status) for each in failures)
        if alike and (last or (len(failures) > 1 and latest.status in _OF_CONTENT)):
            message = f"{len(failures)} endpoints answered {latest.status}, the last {where}"
            return Reject(self._id, RejectReason.UPSTREAM_REFUSED, message)
        if last:
            message = f"{len(failures)} attempts failed, the last on {where}"
            return Reject(self._id, RejectReason.UPSTREAM_FAILED, message)
        return None
