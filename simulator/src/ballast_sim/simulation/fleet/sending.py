"""Sends legs to engines: of whole requests, of the segments of cut requests, and of requests that migrate."""

from __future__ import annotations

from dataclasses import replace

from ballast_core.model import EndpointId, Role
from ballast_core.model.effects import Dispatch, Handoff
from ballast_sim.engine import EngineRequest
from ballast_sim.simulation.fleet.book import Book
from ballast_sim.simulation.fleet.foresight import Foresight
from ballast_sim.simulation.inputs.fleet_settings import CutTokens
from ballast_sim.simulation.kernel import Kernel
from ballast_sim.simulation.requests.legs import (
    EngineLeg,
    LegKind,
    engine_request,
    later_request,
    leg_content,
    leg_id,
)
from ballast_sim.simulation.requests.records import Record
from ballast_sim.simulation.requests.splits import Leg, Split, leg_of
from ballast_sim.simulation.world.pulls import Source
from ballast_sim.simulation.world.world import World


class Sender:
    """What the proxy face does with a dispatch and a hand-off."""

    def __init__(self, kernel: Kernel, world: World, book: Book, foresight: Foresight, cut_tokens: CutTokens) -> None:
        self._kernel = kernel
        self._world = world
        self._book = book
        self._foresight = foresight
        self._cut_tokens = cut_tokens
        self._priorities: dict[int, int] = {}
        """By a request's index, the priority of its dispatch. Each of its legs has this priority."""

    def dispatch(self, record: Record, effect: Dispatch) -> None:
        """Send a request's first leg: its first segment, its prefill, or the whole request."""
        record.dispatches += 1
        record.decode = effect.decode.id
        record.prefill = effect.prefill.id if effect.prefill else None
        record.split = None
        record.generated_tokens = 0
        if effect.priority is not None:
            self._priorities[record.index] = effect.priority
        if len(effect.segments) > 1:
            record.split = Split(effect.segments)
            self._send_segment(record, record.split, planned=True)
        else:
            self._send_whole(record, prefill=effect.prefill is not None)

    def hand_off(self, record: Record, effect: Handoff) -> None:
        """Send the leg that follows the one which has ended: the next segment, or the decode after a prefill."""
        planned = record.decode == effect.decode.id
        record.decode = effect.decode.id
        if record.split is not None:
            self._send_segment(record, record.split, planned=record.split.go_on(effect.decode))
        else:
            # What a prefill endpoint has prefilled itself is in its prefix cache.
            pulls = effect.decode.role is not Role.PREFILL or effect.decode.id != record.prefill
            self._send_whole(record, prefill=False, planned=planned, pulls=pulls)

    def later(
        self, record: Record, kind: LegKind, endpoint_id: EndpointId, tokens: int, *, pull: bool, source: Source | None
    ) -> EngineLeg:
        """Send one more leg of a request that has `tokens` output tokens; a decode leg becomes `Book.decoding`."""
        leg = EngineLeg(f"{record.index}.{record.dispatches}.{len(self._book.legs)}", record, kind, before=tokens)
        self._book.add_leg(leg)
        request = later_request(
            self._book.arrivals[record.index],
            leg,
            tokens=tokens,
            pull=pull,
            block_size=self._world.block_size(endpoint_id),
            now_s=self._kernel.now_s,
            expected_output_tokens=self._foresight.tokens_to_come(record),
        )
        if kind is LegKind.DECODE:
            self._book.decoding[record.index] = leg
            record.decode = endpoint_id
        self._submit(record, endpoint_id, request, source)
        return leg

    def _send_whole(self, record: Record, *, prefill: bool, planned: bool = True, pulls: bool = True) -> None:
        endpoint_id = record.prefill if prefill else record.decode
        assert endpoint_id is not None
        source = None
        if not prefill and record.prefill is not None and pulls:
            source = Source(record.prefill, leg_id(record.index, prefill=True, attempt=record.dispatches), planned)
        request = engine_request(
            self._book.arrivals[record.index],
            record.index,
            prefill=prefill,
            pull=source is not None,
            block_size=self._world.block_size(endpoint_id),
            now_s=self._kernel.now_s,
            attempt=record.dispatches,
            expected_output_tokens=self._foresight.output_tokens(record),
        )
        leg = EngineLeg(request.request_id, record, LegKind.PREFILL if prefill else LegKind.DECODE)
        self._book.add_leg(leg)
        if not prefill:
            self._book.decoding[record.index] = leg
        self._submit(record, endpoint_id, request, source)

    def _send_segment(self, record: Record, split: Split, *, planned: bool) -> None:
        """`planned`: the segment's endpoint was known when the previous leg began."""
        index, before = split.index, split.before
        leg = self._leg_of(record, split, index)
        source = None
        if before is not None:
            held = self._leg_of(record, split, index - 1)
            source = Source(before.endpoint.id, _segment_id(record, index - 1, held), planned)
        arrival, endpoint_id = self._book.arrivals[record.index], split.segment.endpoint.id
        unseen = leg.decodes and not split.is_last and self._cut_tokens == "at-cut"
        request = EngineRequest(
            request_id=_segment_id(record, index, leg),
            input_tokens=leg.input_tokens,
            max_tokens=leg.max_tokens,
            stop_after=leg.stop_after,
            content=leg_content(arrival, record.index, self._world.block_size(endpoint_id)),
            arrival_s=self._kernel.now_s,
            pull=source is not None,
            pull_tokens=leg.pull_tokens or None,
            hold=leg.hold,
            tbt_slo_s=split.segment.tbt_slo_s,
            expected_output_tokens=leg.stop_after or self._foresight.tokens_to_come(record),
            mark_as="" if unseen else str(record.index),
            mark_from=record.generated_tokens,
        )
        kind = LegKind.DECODE if leg.decodes else LegKind.PREFILL
        begun = EngineLeg(request.request_id, record, kind, before=record.generated_tokens)
        begun.unseen = unseen
        self._book.add_leg(begun)
        self._submit(record, endpoint_id, request, source)

    def _leg_of(self, record: Record, split: Split, index: int) -> Leg:
        return leg_of(
            split.segments,
            index,
            prompt_tokens=record.input_tokens,
            output_tokens=record.output_tokens,
            limit_tokens=self._foresight.limit_tokens(record),
        )

    def _submit(self, record: Record, endpoint_id: EndpointId, request: EngineRequest, source: Source | None) -> None:
        priority = self._priorities.get(record.index)
        named = request if priority is None else replace(request, priority=priority)
        self._world.submit(endpoint_id, named, source)


def _segment_id(record: Record, index: int, leg: Leg) -> str:
    return leg_id(record.index, prefill=not leg.decodes, attempt=record.dispatches, segment=index)
