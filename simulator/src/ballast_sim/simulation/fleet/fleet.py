"""One run: requests through gateways and engines on one virtual clock.

A gateway is the Director with the proxy face's behaviour: prefill leg, hand-off, decode leg; the first token that
counts is the decode endpoint's. `Fleet` carries out what Directors order (`sending`, `migrations`) and reports to them
what engines did (`progress`, and the events below).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import EndpointId, Fault, Outcome, Role, Stage
from ballast_core.model.effects import Cancel, Dispatch, Effect, Handoff, Hold, Migrate, Reject, WakeAt
from ballast_core.model.events import (
    DispatchFailed,
    Event,
    FirstToken,
    PrefillDone,
    Progress,
    RequestArrived,
    RequestEnded,
    SegmentDone,
    TimerFired,
)
from ballast_sim.engine import Finished, FinishReason, TokensAdvanced
from ballast_sim.simulation.fleet.book import Book
from ballast_sim.simulation.fleet.foresight import Foresight
from ballast_sim.simulation.fleet.migrations import Migrations
from ballast_sim.simulation.fleet.outages import schedule
from ballast_sim.simulation.fleet.progress import PROGRESS_EVERY_TOKENS, ProgressReports
from ballast_sim.simulation.fleet.sending import Sender
from ballast_sim.simulation.gateways.gateways import OBSERVE, Gateways
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.shapes import Machine
from ballast_sim.simulation.kernel import Kernel
from ballast_sim.simulation.requests.gaps import TokenGaps
from ballast_sim.simulation.requests.legs import EngineLeg, LegKind
from ballast_sim.simulation.requests.records import Arrival, Record
from ballast_sim.simulation.requests.splits import Split
from ballast_sim.simulation.world.pulls import Source
from ballast_sim.simulation.world.world import World

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
        """`on_effect` gets every effect with its time: the decision log. With a `stopwatch` (such as
        `time.perf_counter`) the wall time of each arrival's decision is kept in `decision_s`. `stepwise` computes every
        engine step singly, which gives the same run more slowly. Gaps between tokens above `tbt_limit_s` count as
        late.
        """
        self.settings = settings or FleetSettings()
        self.kernel = Kernel()
        self._follows_progress = director_settings.follows_progress
        self.world = World(
            machines,
            self.kernel,
            self,
            None if stepwise else self,
            PROGRESS_EVERY_TOKENS if self._follows_progress else 0,
            physics=self.settings.engines,
            kv_transfer=self.settings.kv_transfer,
            kv_chunk_tokens=self.settings.kv_chunk_tokens,
        )
        self.gaps = TokenGaps(tbt_limit_s)
        self.open_requests = 0
        self.to_come = 0
        """Requests that have not arrived yet."""
        self.decision_s: list[float] = []
        self.stopped = False
        self.foresight = Foresight(self.settings)
        self.book = Book()
        self._on_effect = on_effect
        self._stopwatch = stopwatch
        self._turn_after: dict[int, tuple[int, float]] = {}
        self._gateways = Gateways(
            self.settings,
            director_settings,
            self.kernel,
            self.world,
            carry_out=self._carry_out_all,
            catch_up=self._catch_up,
        )
        self._progress = ProgressReports(self.kernel, self.world, self.book, self.foresight, self._gateways)
        self._sender = Sender(self.kernel, self.world, self.book, self.foresight, self.settings.cut_tokens)
        self.migrations = Migrations(self.settings.migration, self.kernel, self.world, self)
        self._gateways.start()
        schedule(self.settings.failures, self.kernel, self.world, self._gateways)

    @property
    def records(self) -> list[Record]:
        """One for each request, in the order in which they were loaded."""
        return self.book.records

    @property
    def director(self) -> Director:
        """The first gateway's Director; the only one unless the settings ask for more gateways."""
        return self._gateways.directors[0]

    def load(self, workload: Sequence[Arrival], turn_after: Mapping[int, tuple[int, float]] | None = None) -> None:
        """Add a workload's requests. Raises `ValueError` naming a request that no engine could hold.

        `turn_after` maps a request, by its index in the workload, to (index of the previous turn of its conversation,
        seconds from that turn's end to its own arrival). Its `arrival_s` does not count then.
        """
        longest, first = self.world.max_model_len, len(self.records)
        waits_for = turn_after or {}
        for number, arrival in enumerate(workload):
            if arrival.input_tokens + arrival.output_tokens > longest:
                raise ValueError(
                    f"request {first + number}: {arrival.input_tokens} + {arrival.output_tokens} tokens do not fit the "
                    f"smallest KV cache of the fleet, {longest} tokens"
                )
            index = self.book.add(arrival)
            if number in waits_for:
                previous, gap_s = waits_for[number]
                self._turn_after[first + previous] = (index, gap_s)
            else:
                self.kernel.at(arrival.arrival_s, lambda index=index: self._arrive(index), _ARRIVE)  # type: ignore[misc]
            self.open_requests += 1
            self.to_come += 1

    def run(self, until_s: float = float("inf")) -> None:
        """Run until every request has ended, `until_s` is reached, or `stop` is called."""
        self.kernel.run(until_s, stop=lambda: self.stopped or self.open_requests == 0)
        self.world.settle()

    def stop(self) -> None:
        """End `run` after the current action."""
        self.stopped = True

    def every(self, interval_s: float, action: Callable[[], None]) -> None:
        """Call `action` at 0, `interval_s`, ... of the run's time; it must not change the fleet."""

        def again() -> None:
            action()
            self.kernel.at(self.kernel.now_s + interval_s, again, OBSERVE)

        self.kernel.at(self.kernel.now_s, again, OBSERVE)

    # --- machines that come, change and go ----------------------------------------------------------------------------

    def add(self, machine: Machine) -> None:
        """One more machine takes requests from now on."""
        self.world.add(machine)
        self._gateways.tell(machine.endpoint)

    def become(self, endpoint_id: EndpointId, role: Role) -> None:
        """A flexible machine has another role from now on; what it does already goes on."""
        self._gateways.tell(self.world.become(endpoint_id, role).endpoint)

    def drain(self, endpoint_id: EndpointId) -> None:
        """A machine gets no new requests."""
        self._gateways.drain(endpoint_id)

    def remove_if_empty(self, endpoint_id: EndpointId) -> bool:
        """A machine goes if it has nothing left to do. Returns whether it does."""
        if not (self._gateways.is_idle(endpoint_id) and self.world.is_empty(endpoint_id)):
            return False
        self._gateways.gone(endpoint_id)
        self.world.remove(endpoint_id)
        return True

    # --- what Directors order -------------------------------------------------------------------------------------

    def _carry_out_all(self, gateway: int, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if self._on_effect is not None:
                self._on_effect(effect, self.kernel.now_s)
            self._carry_out(gateway, effect)

    def _carry_out(self, gateway: int, effect: Effect) -> None:
        match effect:
            case Dispatch():
                self._sender.dispatch(self.book.record(effect.request_id), effect)
            case Handoff():
                self._sender.hand_off(self.book.record(effect.request_id), effect)
            case Reject():
                record = self.book.record(effect.request_id)
                record.rejected = effect.reason
                self._ended(record)
            case WakeAt():
                at_s = max(effect.at_s, self.kernel.now_s)
                self.kernel.at(at_s, lambda: self._gateways.feed(gateway, TimerFired()))
            case Migrate():
                self.migrations.begin(self.book.record(effect.request_id), effect)
            case Hold() | Cancel():
                pass

    # --- what Directors get ---------------------------------------------------------------------------------------

    def report(self, record: Record, event: Event) -> None:
        """Report an event that happens now to its gateway, after the progress so far. See `migrations.Host`."""
        self._progress.catch_up(inclusive=True)
        self._gateways.report(record.gateway, event, self.kernel.now_s)

    def _catch_up(self) -> None:
        self._progress.catch_up()

    def _arrive(self, index: int) -> None:
        record = self.records[index]
        record.arrived, record.arrival_s = True, self.kernel.now_s
        self.to_come -= 1
        record.gateway = self._gateways.route()
        request = self.foresight.request(self.book.ids[index], self.book.arrivals[index], record)
        director = self._gateways.directors[record.gateway]
        self._progress.catch_up(inclusive=True)
        started_s = self._stopwatch() if self._stopwatch else 0.0
        effects = director.on_event(RequestArrived(request), self.kernel.now_s)
        if self._stopwatch:
            self.decision_s.append(self._stopwatch() - started_s)
        self._carry_out_all(record.gateway, effects)

    def _end(self, record: Record, outcome: Outcome) -> None:
        self.migrations.ended(record)
        self.book.decoding.pop(record.index, None)
        self.report(record, RequestEnded(self.book.id_of(record), outcome, record.generated_tokens))
        self._ended(record)

    def _ended(self, record: Record) -> None:
        """Count a request as ended, with any outcome, and schedule the next turn of its conversation."""
        self.open_requests -= 1
        if record.index in self._turn_after:
            following, gap_s = self._turn_after.pop(record.index)
            self.kernel.at(self.kernel.now_s + gap_s, lambda: self._arrive(following), _ARRIVE)

    # --- requests that move (`migrations.Host`) -------------------------------------------------------------------

    def decode_leg(self, record: Record) -> EngineLeg | None:
        """See `migrations.Host`."""
        return self.book.decoding.get(record.index)

    def begin_leg(
        self, record: Record, kind: LegKind, endpoint_id: EndpointId, tokens: int, *, pull: bool, source: Source | None
    ) -> EngineLeg:
        """See `migrations.Host`."""
        return self._sender.later(record, kind, endpoint_id, tokens, pull=pull, source=source)

    # --- what the engines report ----------------------------------------------------------------------------------

    def token(self, request_id: str, at_s: float) -> None:
        """See `world.listeners.Listener`."""
        leg = self.book.legs[request_id]
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
            self.report(record, FirstToken(self.book.id_of(record)))
        elif self._follows_progress and leg.tokens % PROGRESS_EVERY_TOKENS == 0:
            self.report(record, Progress(self.book.id_of(record), record.generated_tokens))
            self._progress.predict(record, record.generated_tokens, at_s)

    def tokens(self, event: TokensAdvanced) -> None:
        """See `world.listeners.LateListener`."""
        leg = self.book.legs[event.request_id]
        if leg.kind is not LegKind.DECODE or leg.unseen:
            return
        self.gaps.steps(leg.record, event.ends_s, event.start, event.stop)
        if self._follows_progress:
            self._progress.late(leg, event)
        leg.tokens = event.first + event.stop - event.start
        leg.record.generated_tokens = max(leg.record.generated_tokens, leg.before + leg.tokens)

    def finished(self, event: Finished) -> None:
        """See `world.listeners.Listener`."""
        leg = self.book.legs[event.request_id]
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
            self.report(record, PrefillDone(self.book.id_of(record)))
            return
        record.generated_tokens = tokens
        record.last_token_s = event.stats.last_token_s
        self._end(record, Outcome.COMPLETED)

    def _segment_finished(self, record: Record, split: Split, leg: EngineLeg, event: Finished) -> None:
        """A segment's leg has ended: the next one follows at the cut, unless the request ended before it."""
        stats = event.stats
        if split.index == 0:
            record.cached_tokens = stats.cached_tokens
        if leg.kind is LegKind.DECODE:
            record.generated_tokens = leg.before + stats.output_tokens
            if leg.unseen:
                self.gaps.together(record, stats.output_tokens, event.at_s)
                if leg.before == 0:
                    record.first_token_s = event.at_s
                    self.report(record, FirstToken(self.book.id_of(record)))
            if record.generated_tokens >= record.output_tokens:
                record.last_token_s = event.at_s if leg.unseen else stats.last_token_s
                self._end(record, Outcome.COMPLETED)
                return
        self.report(record, SegmentDone(self.book.id_of(record), record.generated_tokens))

    def _leg_failed(self, record: Record, stage: Stage, output_tokens: int) -> None:
        """Before the first token the Director may try another endpoint; after it the client's stream is broken."""
        if record.first_token_s is None:
            endpoint_id = record.prefill if stage is Stage.PREFILL else record.decode
            if record.split is not None:
                endpoint_id = record.split.segment.endpoint.id
            assert endpoint_id is not None
            self.book.decoding.pop(record.index, None)
            self.report(record, DispatchFailed(self.book.id_of(record), stage, endpoint_id, Fault.BROKE))
            return
        record.broken, record.generated_tokens = True, output_tokens
        if not self.world.settles:
            record.newest_token_s = self.kernel.now_s  # such an engine times a request's first token and its last one
        self._end(record, Outcome.FAILED)
