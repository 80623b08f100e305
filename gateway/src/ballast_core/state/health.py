"""The health of endpoints by the outcomes of their legs: outlier ejection with half-open probes.

The words and the shape are those of Envoy's outlier detection. An endpoint is an outlier when its legs fail and those
of the other endpoints of its role do not: several in a row, or a share of them that is far from the others'. What hits
all alike (a client's own errors, an overload, a broken network) makes no outliers.

An outlier is ejected for a time that doubles with each ejection. Then it is half-open: it gets one request at a time,
of which a success heals it, and a failure ejects it again. Never more than a share of a role's ready endpoints is kept
from new requests, and never all of them.

Pure: no clock. An endpoint without a failure costs one addition for each success.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ballast_core.model import Endpoint, EndpointId, RequestId, Role
from ballast_core.state.inventory import Inventory

WINDOW_S: Final = 30.0
"""Outcomes are counted over the last one to two windows."""
FAR: Final = 0.25
"""By how much the share of failures must exceed that of the other endpoints."""
LONGEST_S: Final = 300.0
"""The longest ejection."""
EJECTED_BY: Final = ("in-a-row", "share", "probe", "silent")
_MOST_PAST: Final = 1024
_DEAR_S: Final = 1.0
"""How long a failure counts as load, doubled by each one in a row, as long as a first ejection at most."""


class HealthState(StrEnum):
    """What an endpoint's outcomes allow it to get."""

    HEALTHY = "healthy"
    EJECTED = "ejected"
    """No new requests until a time, unless nothing else is left."""
    PROBING = "probing"
    """Half-open: one request at a time."""


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """When an endpoint is ejected, and how much of the traffic may be retries."""

    failures_in_a_row: int = 5
    """Failed legs that make an outlier: in a row, or as many at least that are far more than the others'."""
    ejection_s: float = 10.0
    """The first ejection; each further one lasts twice as long, `LONGEST_S` at most."""
    max_ejected_ratio: float = 0.5
    """Share of a role's ready endpoints that may be ejected at a time, rounded down; 0 ejects none."""
    retry_ratio: float = 0.2
    """Retries in a window of time, as a share of the requests in it (`directing.retries`)."""


@dataclass(frozen=True, slots=True)
class HealthChange:
    """An endpoint's state has changed."""

    endpoint_id: EndpointId
    state: HealthState
    cause: str
    """One of a few words, for metrics: for ejections one of `EJECTED_BY`."""
    reason: str
    """In plain words."""


@dataclass(slots=True)
class _Record:
    """What is known of an endpoint that has failed."""

    endpoint_id: EndpointId
    role: Role
    state: HealthState = HealthState.HEALTHY
    reason: str = ""
    """Why it is in this state."""
    in_a_row: int = 0
    dear_until_s: float = -math.inf
    """Until when its last failure counts as load."""
    ejections: int = 0
    until_s: float = -math.inf
    """When the (last) ejection ends."""
    probe: RequestId | None = None


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The health of one endpoint, for people."""

    state: HealthState
    reason: str
    failed_legs: int
    """In the last one to two windows."""
    legs: int
    ejections: int


class Health:
    """The health of all endpoints of one inventory. Times are seconds on the Director's clock."""

    def __init__(self, settings: HealthSettings, inventory: Inventory) -> None:
        self._settings = settings
        self._inventory = inventory
        self.on_change: Callable[[HealthChange], None] | None = None
        """Told of each change of state."""
        self.wakes_s = math.inf
        """When the next ejection ends: call `wake` then."""
        self.probes = 0
        """Probes in flight."""
        self._records: dict[int, _Record] = {}
        """By slot, of endpoints that have failed."""
        self._past: dict[EndpointId, _Record] = {}
        """Of endpoints that are gone: one that comes back is as it was."""
        self._passed = [0] * inventory.capacity
        self._failed = [0] * inventory.capacity
        self._passed_before = [0] * inventory.capacity
        self._failed_before = [0] * inventory.capacity
        self._turns_s = -math.inf

    # --- outcomes -----------------------------------------------------------------------------------------------

    def use(self, settings: HealthSettings) -> None:
        """Eject by these from now on; who is ejected stays so for the time that was given."""
        self._settings = settings
        self.keep_share()

    def succeeded(self, slot: int, request_id: RequestId, now_s: float) -> None:
        """A leg has given what was asked of it."""
        if now_s >= self._turns_s:
            self._turn(now_s)
        self._passed[slot] += 1
        if self._records and (record := self._records.get(slot)) is not None:
            record.in_a_row = 0
            if record.state is HealthState.PROBING:
                if record.probe == request_id:
                    self._heal(slot, record, "probe", "a probe succeeded")
            elif record.state is HealthState.HEALTHY:
                record.dear_until_s = -math.inf

    def failed(self, slot: int, request_id: RequestId, fault: str, now_s: float, *, in_a_row: bool = True) -> None:
        """A leg has failed by the endpoint's own fault, named in a word. May eject it.

        `in_a_row`: False where the client may be to blame, and only the share of failures tells.
        """
        if now_s >= self._turns_s:
            self._turn(now_s)
        self._failed[slot] += 1
        record = self._record(slot)
        record.in_a_row += in_a_row
        self._make_dear(record, now_s)
        if record.state is HealthState.PROBING:
            if record.probe == request_id:
                self._eject(slot, record, now_s, "probe", f"a probe failed: {fault}")
        elif record.state is HealthState.HEALTHY and (why := self._outlier(slot, record, fault)) is not None:
            self._eject(slot, record, now_s, *why)

    def suspected(self, slot: int, now_s: float) -> None:
        """A leg was refused, and it is not known yet whether others would refuse it: that counts as load only."""
        self._make_dear(self._record(slot), now_s)

    def _make_dear(self, record: _Record, now_s: float) -> None:
        lasting_s = min(_DEAR_S * 2.0 ** min(record.in_a_row, 16), self._settings.ejection_s)
        record.dear_until_s = max(record.dear_until_s, now_s + lasting_s)

    def cleared(self, slot: int) -> None:
        """Others refused the same."""
        record = self._records.get(slot)
        if record is not None and not record.in_a_row:
            record.dear_until_s = -math.inf

    def is_failing(self, slot: int) -> bool:
        """Whether no leg has succeeded there since the last one that failed, or it is ejected."""
        record = self._records.get(slot)
        return record is not None and (record.in_a_row > 0 or record.state is not HealthState.HEALTHY)

    def _outlier(self, slot: int, record: _Record, fault: str) -> tuple[str, str] | None:
        """Cause and reason, if it fails and the others of its role do not."""
        least = self._settings.failures_in_a_row
        failed = self._failed[slot] + self._failed_before[slot]
        if failed < least:
            return None
        others = [other for other in self._inventory.ready_of(record.role) if other != slot]
        others_failed = sum(self._failed[other] + self._failed_before[other] for other in others)
        others_all = others_failed + sum(self._passed[other] + self._passed_before[other] for other in others)
        theirs = others_failed / others_all if others_all else 0.0
        if record.in_a_row >= least and theirs <= 0.5:
            return "in-a-row", f"{record.in_a_row} legs in a row failed, the last one: {fault}"
        legs = failed + self._passed[slot] + self._passed_before[slot]
        if failed / legs - theirs >= FAR:
            return "share", f"{failed} of {legs} legs failed, {theirs:.0%} of the others'; the last one: {fault}"
        return None

    # --- states -------------------------------------------------------------------------------------------------

    def wake(self, now_s: float) -> None:
        """End the ejections whose time is over."""
        for slot, record in self._records.items():
            if record.state is HealthState.EJECTED and record.until_s <= now_s:
                self._inventory.unshun(slot)
                self._inventory.on_trial.add(slot)
                self._enter(record, HealthState.PROBING, "time", f"half-open; it was ejected because {record.reason}")
        self._set_wake()

    def sent(self, request_id: RequestId, slot: int) -> None:
        """A request goes to an endpoint that is on trial: its probe, until it has an outcome or leaves."""
        record = self._records[slot]
        if record.probe is None:
            record.probe = request_id
            self.probes += 1
            self._inventory.shun(slot)

    def left(self, request_id: RequestId) -> None:
        """A request is not (or no longer) where it was: if it was a probe, the next one may go."""
        for slot, record in self._records.items():
            if record.probe == request_id:
                self._end_probe(record)
                self._inventory.unshun(slot)

    def keep_share(self) -> None:
        """Endpoints have gone: let ejected ones back in until no more than the share of each role is out."""
        for role in Role if self._inventory.shunned or self._inventory.on_trial else ():
            out = sorted(self._out(role), key=lambda slot: self._records[slot].until_s)
            for slot in out[: max(0, len(out) - self._may_eject(role))]:
                self._heal(slot, self._records[slot], "role", "too few of its role are left")

    def is_ejected(self, slot: int) -> bool:
        """Whether it is ejected: what was in flight there is evacuated, and no more will come."""
        record = self._records.get(slot)
        return record is not None and record.state is HealthState.EJECTED

    def lose(self, slot: int, reason: str, now_s: float) -> None:
        """The progress watch has lost it: eject it, however many are ejected already."""
        record = self._record(slot)
        if record.state is not HealthState.EJECTED:
            self._out_with(slot, record, now_s, "silent", reason)

    def _eject(self, slot: int, record: _Record, now_s: float, cause: str, reason: str) -> None:
        if len(self._out(record.role) - {slot}) >= self._may_eject(record.role):
            return
        self._out_with(slot, record, now_s, cause, reason)

    def _out_with(self, slot: int, record: _Record, now_s: float, cause: str, reason: str) -> None:
        self._end_probe(record)
        self._inventory.on_trial.discard(slot)
        if now_s > record.until_s + 2 * self._lasting_s(record):
            record.ejections = 0
        record.ejections += 1
        record.until_s = now_s + self._lasting_s(record)
        record.in_a_row = 0
        self._inventory.shun(slot)
        self._enter(record, HealthState.EJECTED, cause, reason)
        self._set_wake()

    def _heal(self, slot: int, record: _Record, cause: str, reason: str) -> None:
        self._end_probe(record)
        self._inventory.on_trial.discard(slot)
        self._inventory.unshun(slot)
        record.in_a_row, record.dear_until_s = 0, -math.inf
        self._failed[slot] = self._failed_before[slot] = 0
        self._enter(record, HealthState.HEALTHY, cause, reason)
        self._set_wake()

    def _end_probe(self, record: _Record) -> None:
        if record.probe is not None:
            record.probe = None
            self.probes -= 1

    def _enter(self, record: _Record, state: HealthState, cause: str, reason: str) -> None:
        if state is not HealthState.PROBING:
            record.reason = reason
        record.state = state
        if self.on_change is not None:
            self.on_change(HealthChange(record.endpoint_id, state, cause, reason))

    def _lasting_s(self, record: _Record) -> float:
        return min(self._settings.ejection_s * 2.0 ** min(record.ejections - 1, 16), LONGEST_S)

    def _may_eject(self, role: Role) -> int:
        """How many of a role may be kept from new requests."""
        ready = len(self._inventory.ready_of(role))
        return max(0, min(int(ready * self._settings.max_ejected_ratio), ready - 1))

    def _out(self, role: Role) -> set[int]:
        """Ready endpoints of a role that are ejected or on trial."""
        return (self._inventory.shunned | self._inventory.on_trial).intersection(self._inventory.ready_of(role))

    def _set_wake(self) -> None:
        ejected = (one.until_s for one in self._records.values() if one.state is HealthState.EJECTED)
        self.wakes_s = min(ejected, default=math.inf)

    # --- for decisions and people -------------------------------------------------------------------------------

    def dear(self, now_s: float) -> set[int]:
        """Slots whose last leg failed a short time ago: to place by cost, they are as loaded as the most loaded."""
        return {slot for slot, record in self._records.items() if now_s < record.dear_until_s}

    def states(self) -> list[tuple[Role, HealthState]]:
        """Role and state of each ready endpoint."""
        known = {slot: record.state for slot, record in self._records.items()}
        return [
            (role, known.get(slot, HealthState.HEALTHY)) for role in Role for slot in self._inventory.ready_of(role)
        ]

    @property
    def troubled(self) -> bool:
        """Whether any endpoint has failed."""
        return bool(self._records)

    def report(self, endpoint_id: EndpointId) -> HealthReport:
        """The health of an endpoint, known or not."""
        slot = self._inventory.slot_of(endpoint_id)
        record = self._past.get(endpoint_id) if slot is None else self._records.get(slot)
        failed = 0 if slot is None else self._failed[slot] + self._failed_before[slot]
        passed = 0 if slot is None else self._passed[slot] + self._passed_before[slot]
        if record is None:
            return HealthReport(HealthState.HEALTHY, "", failed, failed + passed, 0)
        return HealthReport(record.state, record.reason, failed, failed + passed, record.ejections)

    # --- endpoints ----------------------------------------------------------------------------------------------

    def grow(self, capacity: int) -> None:
        """Count for this many slots."""
        for counts in (self._passed, self._failed, self._passed_before, self._failed_before):
            counts.extend([0] * (capacity - len(counts)))

    def appeared(self, slot: int, endpoint: Endpoint) -> None:
        """An endpoint is new, back or changed: one that was ejected when it went is half-open."""
        record = self._past.pop(endpoint.id, None)
        if record is not None:
            self._records[slot] = record
            if record.state is not HealthState.HEALTHY:
                self._inventory.on_trial.add(slot)
                self._enter(record, HealthState.PROBING, "time", f"half-open; it was ejected because {record.reason}")
        record = self._records.get(slot)
        if record is not None:
            record.role = endpoint.role
        self.keep_share()

    def forget(self, slot: int, endpoint_id: EndpointId) -> None:
        """The slot is free for another endpoint."""
        for counts in (self._passed, self._failed, self._passed_before, self._failed_before):
            counts[slot] = 0
        record = self._records.pop(slot, None)
        if record is not None:
            self._end_probe(record)
            if record.ejections:
                self._past[endpoint_id] = record
            while len(self._past) > _MOST_PAST:
                del self._past[next(iter(self._past))]
            self._set_wake()

    def _record(self, slot: int) -> _Record:
        record = self._records.get(slot)
        if record is None:
            endpoint = self._inventory.endpoint(slot)
            record = self._records[slot] = _Record(endpoint.id, endpoint.role)
        return record

    def _turn(self, now_s: float) -> None:
        """A window is over: what it counted is the past, and what was the past is forgotten."""
        fresh = now_s < self._turns_s + WINDOW_S
        self._passed_before, self._passed = self._passed if fresh else [0] * len(self._passed), [0] * len(self._passed)
        self._failed_before, self._failed = self._failed if fresh else [0] * len(self._failed), [0] * len(self._failed)
        self._turns_s = now_s + WINDOW_S
        self._forget_the_cured(now_s)

    def _forget_the_cured(self, now_s: float) -> None:
        """Drop the records of endpoints that have not failed for so long that their next ejection is a first one."""
        for slot, record in list(self._records.items()):
            quiet_s = max(record.dear_until_s, record.until_s + 2 * self._lasting_s(record) if record.ejections else 0)
            if record.state is HealthState.HEALTHY and not record.in_a_row and now_s > quiet_s:
                del self._records[slot]
