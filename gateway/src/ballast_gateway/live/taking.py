"""Takes a snapshot of what the gateway knows: arrays of the ledger and beliefs, read once for all endpoints."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final

import msgspec
import numpy as np

from ballast_core.attainment import Objective, Threshold
from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.director import Director
from ballast_core.model import EndpointId, RequestId, Stage
from ballast_core.model.effects import Dispatch, Handoff, Migrate
from ballast_core.model.life_signs import Pulse
from ballast_core.state.health import HealthState
from ballast_core.state.ledger import Entry, Phase
from ballast_gateway.attainment import Attainment
from ballast_gateway.decisions import Decision, DecisionLog
from ballast_gateway.live.rows import (
    About,
    AttainmentRow,
    EndedRow,
    EndpointRow,
    Frame,
    PlacedRow,
    RequestRow,
    Tally,
)
from ballast_gateway.live.together import MOST_ENDED, MOST_PLACED, MOST_REQUESTS, last, more
from ballast_gateway.observe.fleet import Fleet, Member
from ballast_gateway.records import RequestRecord

MOST_ENDPOINTS: Final = 2000
"""Rows of a frame."""
MOST_CHARS: Final = 253
"""Of a name: as long as a pod's may be."""
_ATTAINED_EVERY_S: Final = 1.0
_KINDS: Final = ("prefill", "decode", "queue", "admission", "partition", "rescheduling")


class Taking:
    """Whole snapshots. `unix_s` plus the driver's clock gives seconds since 1970; `view` is the fleet view's report of
    itself: name, whether it leads, agents, peers."""

    def __init__(
        self,
        *,
        director: Director,
        fleet: Fleet,
        decisions: DecisionLog,
        attainment: Attainment,
        now_s: Callable[[], float],
        unix_s: float,
        whose: Mapping[str, str],
        models: Callable[[], Iterable[str]],
        view: Callable[[], tuple[str, bool, int, int]] | None = None,
    ) -> None:
        self._director = director
        self._fleet = fleet
        self._decisions = decisions
        self._attainment = attainment
        self._now_s = now_s
        self._unix_s = unix_s
        self._whose = " ".join(name if kind == "gateway" else f"{kind} {name}" for kind, name in whose.items())
        self._models = models
        self._view = view
        self._ended: deque[EndedRow] = deque(maxlen=MOST_ENDED)
        self._count = 0
        self._rows: dict[RequestId, tuple[tuple[Any, ...], RequestRow]] = {}
        """Of the requests of the last snapshot: where each was, and its row."""
        self._attained_s = -np.inf
        self._attained: tuple[AttainmentRow, ...] = ()

    def ended(self, record: RequestRecord) -> None:
        """Keep what people may ask of a request that has ended: figures and names, not the request itself."""
        if not record.dispatches and record.asked is None:
            return
        self._count += 1
        arrived_s, first_s = record.arrived_s, record.prefilled_s
        self._ended.append(
            EndedRow(
                record.id,
                record.model,
                "" if record.objective is None else record.objective.name,
                record.met,
                record.outcome,
                record.reason,
                record.prefill,
                record.decode,
                record.prompt_tokens,
                record.output_tokens,
                int(1e3 * (arrived_s + self._unix_s)),
                None if first_s is None else round(first_s - arrived_s, 4),
                None if record.first_token_s is None else round(record.first_token_s - arrived_s, 4),
                round(record.ended_s - arrived_s, 4),
                len(record.moves),
                record.retries,
            )
        )

    def ended_row(self, request_id: str) -> EndedRow | None:
        """Of a request that has ended lately."""
        return next((row for row in reversed(self._ended) if row.id == request_id), None)

    def snapshot(self, number: int) -> Frame:
        """All there is to say now."""
        now_s = self._now_s()
        return msgspec.structs.replace(
            self._counts(number, now_s),
            attainment=self._attainments(now_s),
            endpoints=self._endpoints(now_s),
            requests=self._requests(),
            recent=tuple(self._ended),
            placed=tuple(map(_placed, self._decisions.newest(MOST_PLACED))),
        )

    def _counts(self, number: int, now_s: float) -> Frame:
        """A frame without rows."""
        director = self._director
        return Frame(
            number=number,
            unix_s=round(now_s + self._unix_s, 3),
            own=director.ledger.own,
            others=director.ledger.adopted,
            waiting=len(director.queue),
            wait_s=round(director.expected_wait_s, 2),
            ended=self._count,
            decided=self._decisions.count,
            about=self._about(),
        )

    def share(self, ended: int, decided: int) -> Frame:
        """What no other gateway's books tell of this one: counts, attainment, requests that wait here, and what ended
        or was decided since these counts were told."""
        now_s = self._now_s()
        whole = self._counts(0, now_s)
        since = more(whole.ended, ended), more(whole.decided, decided)
        return msgspec.structs.replace(
            whole,
            attainment=self._attainments(now_s),
            requests=tuple(self._request(entry) for entry in self._waiting()),
            recent=last(tuple(self._ended), since[0]),
            placed=tuple(map(_placed, self._decisions.newest(min(MOST_PLACED, since[1])))),
        )

    def _waiting(self) -> Iterable[Entry]:
        """Of the newest requests in flight."""
        if not len(self._director.queue):
            return ()
        newest = self._director.ledger.newest(MOST_REQUESTS)
        return (entry for entry in newest if entry.phase is Phase.HELD and not entry.adopted)

    def _about(self) -> About:
        settings = self._director.settings
        policies = {kind: policy.type for kind in _KINDS if (policy := getattr(settings, kind)) is not None}
        about = About(whose=self._whose, models=", ".join(self._models())[:MOST_CHARS], policies=policies)
        if self._view is None:
            return about
        name, leads, agents, peers = self._view()
        return About(
            whose=about.whose,
            models=about.models,
            policies=policies,
            name=name,
            leads=leads,
            agents=agents,
            peers=peers,
            view=True,
        )

    def _attainments(self, now_s: float) -> tuple[AttainmentRow, ...]:
        """Windows are summed over an hour of slots: once a second is enough."""
        if now_s - self._attained_s >= _ATTAINED_EVERY_S:
            self._attained_s = now_s
            self._attained = tuple(_attained(*each) for each in self._attainment.over(now_s))
        return self._attained

    def _endpoints(self, now_s: float) -> tuple[EndpointRow, ...]:
        director = self._director
        ledger, beliefs = director.ledger, director.beliefs
        members = list(islice(self._fleet.members.values(), MOST_ENDPOINTS))
        found = [director.inventory.slot_of(member.endpoint.id) for member in members]
        slots = np.array([0 if slot is None else slot for slot in found], np.int64)
        if not len(slots):
            return ()
        decodes, held = ledger.decoding_requests.take(slots), ledger.decoding_tokens.take(slots)
        tokens = ledger.uncached_tokens.take(slots)
        steps = beliefs.step_times.predict_s if Belief.STEP_TIMES in beliefs.kinds else beliefs.hardware.decode_step_s
        step_ms = 1e3 * steps(slots, decodes.astype(np.float64), held.astype(np.float64))
        prefill_ms: list[float] | None = None
        if Belief.PREFILL_TIMES in beliefs.kinds:
            since_s = ledger.prefilling_since_s.take(slots)
            waits_s = beliefs.prefill_times.wait_s(
                slots,
                tokens.astype(np.float64),
                np.maximum(now_s - since_s, 0.0),
                queued_pairs=ledger.uncached_pairs.take(slots),
            )
            prefill_ms = np.round(1e3 * waits_s, 1).tolist()
        columns = (
            ledger.requests[Stage.PREFILL].take(slots).tolist(),
            tokens.tolist(),
            decodes.tolist(),
            held.tolist(),
            np.round(step_ms, 2).tolist(),
            np.round(held / beliefs.hardware.kv_tokens(slots), 3).tolist(),
        )
        rows = []
        for k, (member, slot, prefills, uncached, decoding, held_tokens, step, booked) in enumerate(
            zip(members, found, *columns, strict=True)
        ):
            endpoint, seen = member.endpoint, member.observation
            unknown = slot is None
            rows.append(
                EndpointRow(
                    endpoint.id[:MOST_CHARS],
                    str(endpoint.role),
                    endpoint.pool[:MOST_CHARS],
                    self._state(member),
                    None if seen is None else seen.running,
                    None if seen is None else seen.waiting,
                    None if seen is None else round(seen.kv_usage_ratio, 3),
                    None if unknown else booked,
                    0 if unknown else prefills,
                    0 if unknown else uncached,
                    0 if unknown else decoding,
                    0 if unknown else held_tokens,
                    None if unknown or not decoding else step,
                    None if unknown or not prefills or prefill_ms is None else prefill_ms[k],
                    None if seen is None else float(int(now_s - seen.observed_at_s)),
                )
            )
        return tuple(rows)

    def _state(self, member: Member) -> str:
        state = member.state
        if state != "ready":
            return state
        director = self._director
        health = director.health
        if health.troubled and (judged := health.report(member.endpoint.id).state) is not HealthState.HEALTHY:
            return str(judged)
        if director.watch is not None and (pulse := director.watch.pulse(member.endpoint.id)[0]) is not Pulse.STEADY:
            return str(pulse)
        return state

    def _requests(self) -> tuple[RequestRow, ...]:
        """Most requests are as they were a moment ago: their rows are kept from one snapshot to the next."""
        before, rows = self._rows, {}
        for entry in self._director.ledger.newest(MOST_REQUESTS):
            coming, request_id = entry.reservation, entry.request.id
            target = None if coming is None else coming.decode_slot
            at = (entry.arrived_s, entry.phase, entry.prefill_slot, entry.decode_slot, target)
            known = before.get(request_id)
            rows[request_id] = known if known is not None and known[0] == at else (at, self._request(entry))
        self._rows = rows
        return tuple([row for _, row in rows.values()])

    def _request(self, entry: Entry) -> RequestRow:
        request, coming = entry.request, entry.reservation
        return RequestRow(
            request.id,
            request.model[:MOST_CHARS],
            _PHASES[entry.phase],
            self._name(entry.prefill_slot),
            self._name(entry.decode_slot),
            "" if coming is None else self._name(coming.decode_slot),
            request.prompt_tokens,
            int(1e3 * (entry.arrived_s + self._unix_s)),
            not entry.adopted,
        )

    def _name(self, slot: int | None) -> str:
        return "" if slot is None else self._director.inventory.endpoint(slot).id[:MOST_CHARS]

    def is_anothers(self, request_id: str) -> bool:
        """Whether another gateway has dispatched a request that is in flight."""
        entry = self._director.ledger.get(RequestId(request_id))
        return entry is not None and entry.adopted

    def story(self, request_id: str) -> dict[str, Any] | None:
        """One request: its row, its times in seconds since its arrival, and every decision about it, oldest first.

        None if it is not in flight and has not ended lately.
        """
        entry = self._director.ledger.get(RequestId(request_id))
        ended = self.ended_row(request_id) if entry is None else None
        if entry is None and ended is None:
            return None
        decided = self._decisions.last(MOST_ENDED, request_id=request_id)[::-1]
        now_s = self._now_s()
        said: dict[str, Any] = {"unix_s": round(now_s + self._unix_s, 3), "decisions": decided}
        if entry is None:
            return said | {"ended": ended}
        return said | {"request": self._request(entry), "times": self._times(entry)}

    def _times(self, entry: Entry) -> dict[str, float | int | None]:
        arrived_s, flights, row = entry.arrived_s, self._director.ledger.flights, entry.row
        times: dict[str, float | int | None] = {
            "prefilled_s": None,
            "first_token_s": None,
            "predicted_prefill_s": round(entry.prefill.predicted_s, 4) or None,
            "cached_tokens": entry.prefill.cached_tokens,
            "output_tokens": entry.generated_tokens,
        }
        if entry.phase is Phase.DECODING and row >= 0:
            times["prefilled_s"] = round(float(flights.handoff_at_s[row]) - arrived_s, 4)
            if entry.generated_tokens:
                times["first_token_s"] = round(float(flights.first_token_at_s[row]) - arrived_s, 4)
        return times


_PHASES: Final = {Phase.HELD: "waiting", Phase.PREFILLING: "prefill", Phase.DECODING: "decode"}


def _placed(decision: Decision) -> PlacedRow:
    match decision:
        case Dispatch(request_id=request_id, prefill=prefill, decode=decode):
            return PlacedRow("dispatch", request_id, "" if prefill is None else _id(prefill.id), _id(decode.id))
        case Handoff(request_id=request_id, decode=decode):
            return PlacedRow("handoff", request_id, "", _id(decode.id))
        case Migrate(request_id=request_id, source=source, target=target):
            return PlacedRow("migrate", request_id, _id(source.id), _id(target.id))
        case _:
            return PlacedRow("reject", decision.request_id, "", "")


def _id(endpoint_id: EndpointId) -> str:
    return endpoint_id[:MOST_CHARS]


def _attained(objective: Objective, windows: Mapping[int, Mapping[Threshold, Any]]) -> AttainmentRow:
    minute, more = (
        Tally(counts.within, counts.outside, counts.unknown)
        for counts in (windows[seconds][Threshold.JOINT] for seconds in (60, 300))
    )
    return AttainmentRow(
        objective.name[:MOST_CHARS], objective.ttft_s, objective.tpot_s, objective.e2e_s, objective.target, minute, more
    )
