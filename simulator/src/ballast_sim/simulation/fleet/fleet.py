"""Gateways in front of a world of engines, on the kernel's clock.

A gateway is the Director with the proxy face's behaviour: prefill leg, hand-off, decode leg; the first token that
counts is the decode endpoint's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ballast_core.beliefs.block_hashes import trace_block_hashes
from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import EndpointId, Outcome, Request, RequestId, Stage
from ballast_core.model.effects import Cancel, Dispatch, Effect, Handoff, Hold, Migrate, Reject, WakeAt
from ballast_core.model.events import (
    DispatchFailed,
    Event,
    FirstToken,
    LengthPredicted,
    PrefillDone,
    Progress,
    RequestArrived,
    RequestEnded,
    SegmentDone,
    TimerFired,
)
from ballast_sim.engine import EngineRequest, Finished, FinishReason
from ballast_sim.simulation.fleet.migrations import Migrations
from ballast_sim.simulation.fleet.outages import schedule
from ballast_sim.simulation.gateways.gateways import OBSERVE, Gateways
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.shapes import Machine
from ballast_sim.simulation.kernel import Kernel
from ballast_sim.simulation.requests.gaps import TokenGaps
from ballast_sim.simulation.requests.legs import EngineLeg, LegKind, engine_request, later_request, leg_content, leg_id
from ballast_sim.simulation.requests.records import Arrival, Record
from ballast_sim.simulation.requests.splits import Leg, Split, leg_of
from ballast_sim.simulation.world.world import Source, World

PROGRESS_EVERY_TOKENS = 16
"""How often a running request's tokens are reported to the Director."""

_ARRIVE = 2  # after what is observed and what runs at the same time


class Fleet:
    """One run: `load` a workload, `run`, read `records`."""

    def __init__(
        self,
        machines: Sequence[Machine],
        director_settings: DirectorSettings,
        settings: FleetSettings | None = None,
        *,
        on_effect: Callable[[Effect, float], None] | None = None,
        stopwatch: Callable[[], float] | None = None,
        stepwise: bool = False,
        tbt_limit_s: float | None = None,
    ) -> None:
        """`on_effect` sees every effect with its time: the decision log. With a `stopwatch` (such as
        `time.perf_counter`) the wall time of each arrival's decision is kept in `decision_s`. `stepwise` computes every
        engine step by itself, which gives the same run more slowly. Gaps between tokens above `tbt_limit_s` count as
        late.
        """
        self.settings = settings or FleetSettings()
        self.kernel = Kernel()
        self._follows_progress = director_settings.follows_progress
        marks = PROGRESS_EVERY_TOKENS if self._follows_progress else 0
        self.world = World(
            machines,
            self.kernel,
            self,
            None if stepwise else self,
            marks,
            physics=self.settings.engines,
            kv_transfer=self.settings.kv_transfer,
            kv_chunk_tokens=self.settings.kv_chunk_tokens,
        )
        self.gaps = TokenGaps(tbt_limit_s)
        self.records: list[Record] = []
        self.open_requests = 0
        self.decision_s: list[float] = []
        self.stopped = False
        self._on_effect = on_effect
        self._stopwatch = stopwatch
        self._arrivals: list[Arrival] = []
        self._ids: list[RequestId] = []
        self._legs: dict[str, EngineLeg] = {}
        """By the id under which an engine knows, or knew, a leg."""
        self._decoding: dict[int, EngineLeg] = {}
        """The leg that decodes each request now, or will; of those that may move."""
        self._priorities: dict[int, int] = {}
        """What the Director tells engines of a request's turn, by its index."""
        self._turn_after: dict[int, tuple[int, float]] = {}
        self._caught_up = (-1.0, False)
        self._late: list[tuple[float, str, int]] = []
        self._gateways = Gateways(
            self.settings,
            director_settings,
            self.kernel,
            self.world,
            carry_out=self._carry_out_all,
            catch_up=self._catch_up,
        )
        self.migrations = Migrations(self.settings.migration, self.kernel, self.world, self)
        self._gateways.start()
        schedule(self.settings.failures, self.kernel, self.world, self._gateways)

    @property
    def director(self) -> Director:
        """The first gateway's; the only one unless the settings ask for more."""
        return self._gateways.directors[0]

    def load(self, workload: Sequence[Arrival], turn_after: Mapping[int, tuple[int, float]] | None = None) -> None:
        """Add a workload's requests. Raises `ValueError` naming a request that no engine could hold.

        `turn_after` maps a request (its place in the workload) to the one before it in its conversation and the
        seconds that lie between the end of that one and its own arrival; its `arrival_s` does not count then.
        """
        longest, first = self.world.max_model_len, len(self._arrivals)
        waits_for = turn_after or {}
        for place, arrival in enumerate(workload):
            index = first + place
            if arrival.input_tokens + arrival.output_tokens > longest:
                raise ValueError(
                    f"request {index}: {arrival.input_tokens} + {arrival.output_tokens} tokens do not fit the smallest "
                    f"KV cache of the fleet, {longest} tokens"
                )
            self._arrivals.append(arrival)
            self._ids.append(RequestId(str(index)))
            self.records.append(Record(index, arrival.arrival_s, arrival.input_tokens, arrival.output_tokens))
            if place in waits_for:
                previous, gap_s = waits_for[place]
                self._turn_after[first + previous] = (index, gap_s)
            else:
                self.kernel.at(arrival.arrival_s, lambda index=index: self._arrive(index), _ARRIVE)  # type: ignore[misc]
            self.open_requests += 1

    def run(self, until_s: float = float("inf")) -> None:
        """Until every request has ended, the time is over, or somebody calls `stop`."""
        self.kernel.run(until_s, stop=lambda: self.stopped or self.open_requests == 0)
        self.world.settle()

    def stop(self) -> None:
        """End `run` after the action that is under way."""
        self.stopped = True

    def every(self, interval_s: float, action: Callable[[], None]) -> None:
        """Call `action` at 0, `interval_s`, ... of the run's time; it must not change the fleet."""

        def again() -> None:
            action()
            self.kernel.at(self.kernel.now_s + interval_s, again, OBSERVE)

        self.kernel.at(self.kernel.now_s, again, OBSERVE)

    # --- the gateway ----------------------------------------------------------------------------------------------

    def _feed(self, record: Record, event: Event) -> None:
        self._catch_up(inclusive=True)
        self._gateways.tell(record.gateway, event, self.kernel.now_s)

    def _catch_up(self, *, inclusive: bool = False) -> None:
        """Before a Director hears of anything, it hears how far the steady decodes had come, at its time.

        `inclusive`: by steps that end now, which come before arrivals of now and after what is observed now.
        """
        if (self.kernel.now_s, inclusive) <= self._caught_up:
            return
        self._caught_up = (self.kernel.now_s, inclusive)
        marks = self.world.progress(inclusive=inclusive)
        if self._late:
            marks = sorted(self._late + marks)
            self._late = []
        if not marks:
            return
        legs, ids = self._legs, self._ids
        reports: list[list[tuple[float, RequestId, int]]] = [[] for _ in range(self.settings.gateways)]
        for at_s, name, tokens in marks:
            leg = legs[name]
            if leg.unseen:
                continue
            leg.tokens = max(leg.tokens, tokens)  # it may have ended meanwhile
            record, total = leg.record, leg.before + tokens
            record.generated_tokens = max(record.generated_tokens, total)
            reports[record.gateway].append((at_s, ids[record.index], total))
        for gateway, told in enumerate(reports):
            if told:
                self._gateways.progress(gateway, told)
                if self.settings.length_hints.changes:
                    for at_s, request_id, total in told:
                        self._predict(self.records[int(request_id)], total, at_s)

    def _predict(self, record: Record, tokens: int, at_s: float) -> None:
        """The predictor looks at a request again, with so many output tokens."""
        predicted = self.settings.length_hints.output_tokens(
            self.settings.seed, record.index, record.output_tokens, tokens
        )
        if predicted is not None and tokens < record.output_tokens:
            event = LengthPredicted(self._ids[record.index], predicted - tokens)
            self._gateways.tell(record.gateway, event, at_s)

    def _carry_out_all(self, gateway: int, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if self._on_effect is not None:
                self._on_effect(effect, self.kernel.now_s)
            self._carry_out(gateway, effect)

    def _carry_out(self, gateway: int, effect: Effect) -> None:
        match effect:
            case Dispatch():
                record = self._record(effect.request_id)
                record.dispatches += 1
                record.decode = effect.decode.id
                record.prefill = effect.prefill.id if effect.prefill else None
                record.split = None
                record.generated_tokens = 0
                if effect.priority is not None:
                    self._priorities[record.index] = effect.priority
                if len(effect.segments) > 1:
                    record.split = Split(effect.segments)
                    self._submit_segment(record, record.split, planned=True)
                else:
                    self._submit(record, prefill=effect.prefill is not None)
            case Handoff():
                record = self._record(effect.request_id)
                planned = record.decode == effect.decode.id
                record.decode = effect.decode.id
                if record.split is not None:
                    self._submit_segment(record, record.split, planned=record.split.go_on(effect.decode))
                else:
                    self._submit(record, prefill=False, planned=planned)
            case Reject():
                record = self._record(effect.request_id)
                record.rejected = effect.reason
                self._ended(record)
            case WakeAt():
                at_s = max(effect.at_s, self.kernel.now_s)
                self.kernel.at(at_s, lambda: self._gateways.feed(gateway, TimerFired()))
            case Migrate():
                self.migrations.begin(self._record(effect.request_id), effect)
            case Hold() | Cancel():
                pass

    def _arrive(self, index: int) -> None:
        record = self.records[index]
        record.arrived, record.arrival_s = True, self.kernel.now_s
        record.gateway = self._gateways.route()
        request = self._as_seen(record)
        director = self._gateways.directors[record.gateway]
        self._catch_up(inclusive=True)
        started_s = self._stopwatch() if self._stopwatch else 0.0
        effects = director.on_event(RequestArrived(request), self.kernel.now_s)
        if self._stopwatch:
            self.decision_s.append(self._stopwatch() - started_s)
        self._carry_out_all(record.gateway, effects)

    def _as_seen(self, record: Record) -> Request:
        """What a gateway knows of a request: its prompt, not its output."""
        arrival = self._arrivals[record.index]
        hashes: tuple[int, ...] = ()
        if arrival.hash_ids and arrival.block_size:
            hashes = tuple(trace_block_hashes(arrival.hash_ids, arrival.input_tokens, arrival.block_size))
        return Request(
            self._ids[record.index],
            record.input_tokens,
            max_output_tokens=self._limit_of(record),
            block_hashes=hashes,
            block_size=arrival.block_size or 0 if hashes else 0,
            expected_output_tokens=self._foreseen(record),
        )

    def _foreseen(self, record: Record) -> float | None:
        """The output tokens that a predictor tells at arrival."""
        return self.settings.length_hints.output_tokens(self.settings.seed, record.index, record.output_tokens)

    def _left(self, record: Record) -> float | None:
        """What is left of it."""
        foreseen = self._foreseen(record)
        return None if foreseen is None else max(1.0, foreseen - record.generated_tokens)

    def _limit_of(self, record: Record) -> int | None:
        if self.settings.known_limits:
            return record.output_tokens
        limit = self.settings.max_tokens
        return None if limit is None else max(limit, record.output_tokens)

    def _submit(self, record: Record, *, prefill: bool, planned: bool = True) -> None:
        endpoint_id = record.prefill if prefill else record.decode
        assert endpoint_id is not None
        source = None
        if not prefill and record.prefill is not None:
            source = Source(record.prefill, leg_id(record.index, prefill=True, attempt=record.dispatches), planned)
        request = engine_request(
            self._arrivals[record.index],
            record.index,
            prefill=prefill,
            pull=source is not None,
            block_size=self.world.block_size(endpoint_id),
            now_s=self.kernel.now_s,
            attempt=record.dispatches,
            expected_output_tokens=self._foreseen(record),
        )
        leg = EngineLeg(request.request_id, record, LegKind.PREFILL if prefill else LegKind.DECODE)
        self._legs[leg.id] = leg
        if not prefill:
            self._decoding[record.index] = leg
        self._ask(record, endpoint_id, request, source)

    def _ask(self, record: Record, endpoint_id: EndpointId, request: EngineRequest, source: Source | None) -> None:
        """Every leg of a request has the priority that its dispatch told."""
        priority = self._priorities.get(record.index)
        told = request if priority is None else replace(request, priority=priority)
        self.world.submit(endpoint_id, told, source)

    # --- requests that move (`migrations.Host`) -------------------------------------------------------------------

    def decode_leg(self, record: Record) -> EngineLeg | None:
        """See `migrations.Host`."""
        return self._decoding.get(record.index)

    def begin_leg(
        self, record: Record, kind: LegKind, endpoint_id: EndpointId, tokens: int, *, pull: bool, source: Source | None
    ) -> EngineLeg:
        """See `migrations.Host`."""
        leg = EngineLeg(f"{record.index}.{record.dispatches}.{len(self._legs)}", record, kind, before=tokens)
        self._legs[leg.id] = leg
        request = later_request(
            self._arrivals[record.index],
            leg,
            tokens=tokens,
            pull=pull,
            block_size=self.world.block_size(endpoint_id),
            now_s=self.kernel.now_s,
            expected_output_tokens=self._left(record),
        )
        if kind is LegKind.DECODE:
            self._decoding[record.index] = leg
            record.decode = endpoint_id
        self._ask(record, endpoint_id, request, source)
        return leg

    def tell(self, record: Record, event: Event) -> None:
        """See `migrations.Host`."""
        self._feed(record, event)

    # --- requests that are cut ------------------------------------------------------------------------------------

    def _submit_segment(self, record: Record, split: Split, *, planned: bool) -> None:
        """The leg of the segment whose turn it is; `planned`: its endpoint was known when the one before began."""
        at, before = split.at, split.before
        leg = self._leg_of(record, split, at)
        source = None
        if before is not None:
            held = self._leg_of(record, split, at - 1)
            source = Source(before.endpoint.id, self._segment_id(record, at - 1, held), planned)
        arrival, endpoint_id = self._arrivals[record.index], split.segment.endpoint.id
        request = EngineRequest(
            request_id=self._segment_id(record, at, leg),
            input_tokens=leg.input_tokens,
            max_tokens=leg.max_tokens,
            stop_after=leg.stop_after,
            content=leg_content(arrival, record.index, self.world.block_size(endpoint_id)),
            arrival_s=self.kernel.now_s,
            pull=source is not None,
            pull_tokens=leg.pull_tokens or None,
            hold=leg.hold,
            tbt_slo_s=split.segment.tbt_slo_s,
            expected_output_tokens=leg.stop_after or self._left(record),
        )
        kind = LegKind.DECODE if leg.decodes else LegKind.PREFILL
        begun = EngineLeg(request.request_id, record, kind, before=record.generated_tokens)
        begun.unseen = leg.decodes and not split.is_last and self.settings.cut_tokens == "at-cut"
        self._legs[begun.id] = begun
        self._ask(record, endpoint_id, request, source)

    def _leg_of(self, record: Record, split: Split, at: int) -> Leg:
        return leg_of(
            split.segments,
            at,
            prompt_tokens=record.input_tokens,
            output_tokens=record.output_tokens,
            limit_tokens=self._limit_of(record),
        )

    @staticmethod
    def _segment_id(record: Record, at: int, leg: Leg) -> str:
        return leg_id(record.index, prefill=not leg.decodes, attempt=record.dispatches, segment=at)

    def _ended(self, record: Record) -> None:
        """Whatever became of it; the next turn of its conversation is on its way."""
        self.open_requests -= 1
        if record.index in self._turn_after:
            following, gap_s = self._turn_after.pop(record.index)
            self.kernel.at(self.kernel.now_s + gap_s, lambda: self._arrive(following), _ARRIVE)

    # --- what the engines report ----------------------------------------------------------------------------------

    def token(self, request_id: str, at_s: float) -> None:
        """See `world.Listener`."""
        leg = self._legs[request_id]
        if leg.kind is not LegKind.DECODE or leg.unseen:
            return
        record = leg.record
        leg.tokens += 1
        record.generated_tokens = max(record.generated_tokens, leg.before + leg.tokens)
        self.gaps.token(record, at_s)
        if leg.tokens == 1 and leg.before:
            self.migrations.began(leg, at_s)
        if record.generated_tokens == 1:
            record.first_token_s = at_s
            self._feed(record, FirstToken(self._ids[record.index]))
        elif self._follows_progress and leg.tokens % PROGRESS_EVERY_TOKENS == 0:
            self._feed(record, Progress(self._ids[record.index], record.generated_tokens))
            if self.settings.length_hints.changes:
                self._predict(record, record.generated_tokens, at_s)

    def tokens(self, request_id: str, first: int, times_s: Sequence[float]) -> None:
        """See `world.LateListener`."""
        leg = self._legs[request_id]
        if leg.kind is not LegKind.DECODE or leg.unseen:
            return
        every, total = PROGRESS_EVERY_TOKENS, first + len(times_s)
        self.gaps.tokens(leg.record, times_s)
        if self._follows_progress:
            for tokens in range(leg.tokens // every * every + every, total + 1, every):
                self._late.append((times_s[tokens - first - 1], request_id, tokens))
            self._caught_up = (-1.0, False)
        leg.tokens = total
        leg.record.generated_tokens = max(leg.record.generated_tokens, leg.before + total)

    def finished(self, event: Finished) -> None:
        """See `world.Listener`."""
        leg = self._legs[event.request_id]
        record, well = leg.record, event.reason in (FinishReason.LENGTH, FinishReason.STOP)
        record.preemptions += event.stats.preemptions
        if leg.kind is LegKind.WARM:
            self.migrations.copied(leg, well=well)
            return
        prefills_here = leg.kind is LegKind.DECODE and record.prefill is None and not leg.before
        if prefills_here and record.split is None and (well or leg.over):
            record.cached_tokens = event.stats.cached_tokens
        if leg.over:
            return
        tokens = leg.before + event.stats.output_tokens
        if not well:
            if not self.migrations.rescued(leg, tokens):
                stage = Stage.PREFILL if leg.kind is LegKind.PREFILL else Stage.DECODE
                self._leg_failed(record, stage, leg.before if leg.unseen else tokens)
            return
        if record.split is not None:
            self._segment_finished(record, record.split, leg, event)
            return
        if leg.kind is LegKind.PREFILL:
            record.cached_tokens = event.stats.cached_tokens
            record.optimal = record.decode is not None and self.world.is_least_loaded(record.decode)
            self._feed(record, PrefillDone(self._ids[record.index]))
            return
        record.generated_tokens = tokens
        record.last_token_s = event.stats.last_token_s
        self._end(record, Outcome.COMPLETED)

    def _segment_finished(self, record: Record, split: Split, leg: EngineLeg, event: Finished) -> None:
        """At its cut the next segment follows; the request may end before it, and what is held then waits in vain."""
        stats = event.stats
        if split.at == 0:
            record.cached_tokens = stats.cached_tokens
        if leg.kind is LegKind.DECODE:
            record.generated_tokens = leg.before + stats.output_tokens
            if leg.unseen:
                self.gaps.together(record, stats.output_tokens, event.at_s)
                if leg.before == 0:
                    record.first_token_s = event.at_s
                    self._feed(record, FirstToken(self._ids[record.index]))
            if record.generated_tokens >= record.output_tokens:
                record.last_token_s = event.at_s if leg.unseen else stats.last_token_s
                self._end(record, Outcome.COMPLETED)
                return
        self._feed(record, SegmentDone(self._ids[record.index], record.generated_tokens))

    def _leg_failed(self, record: Record, stage: Stage, output_tokens: int) -> None:
        """Before the first token the Director may try elsewhere; after it the client's stream is broken."""
        if record.first_token_s is None:
            endpoint_id = record.prefill if stage is Stage.PREFILL else record.decode
            if record.split is not None:
                endpoint_id = record.split.segment.endpoint.id
            assert endpoint_id is not None
            self._decoding.pop(record.index, None)
            self._feed(record, DispatchFailed(self._ids[record.index], stage, endpoint_id))
            return
        record.broken, record.generated_tokens = True, output_tokens
        self._end(record, Outcome.FAILED)

    def _end(self, record: Record, outcome: Outcome) -> None:
        self.migrations.ended(record)
        self._decoding.pop(record.index, None)
        self._feed(record, RequestEnded(self._ids[record.index], outcome, record.generated_tokens))
        self._ended(record)

    def _record(self, request_id: RequestId) -> Record:
        return self.records[int(request_id)]
