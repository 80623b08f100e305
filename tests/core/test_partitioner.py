"""The Director with a partition: segments are dispatched, handed on, re-picked, and leave nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_core.directing.director import Director
from ballast_core.directing.partitioner import Partitioner
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Binding, Endpoint, EndpointId, Outcome, Request, RequestId, Role, Stage
from ballast_core.model.effects import Dispatch, Effect, Handoff
from ballast_core.model.events import (
    ClientGone,
    DispatchFailed,
    EndpointDraining,
    EndpointLost,
    EndpointObserved,
    Event,
    FirstToken,
    PrefillDone,
    Progress,
    RequestArrived,
    RequestEnded,
    SegmentDone,
    TimerFired,
)
from ballast_core.model.segments import Segment
from ballast_core.policies.partition.fixed import Fixed
from ballast_core.policies.partition.protocol import Partition
from ballast_core.policies.partition.registry import PARTITIONS
from ballast_core.policies.placement.placements import LeastRequests
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.state.book import Book, Work, works_of
from tests.support.core_builders import endpoint, observation, only_dispatch

ID = RequestId("r")


def cutting(
    partition: Partition | None,
    names: Sequence[str] = ("f0", "f1", "f2"),
    binding: Binding = Binding.LATE,
    hold_s: float = 0.0,
) -> Director:
    """A Director that cuts, with these endpoints ready."""
    policy = LeastRequests()
    made = Director(
        DirectorSettings(
            prefill=policy,
            decode=policy,
            partition=partition,
            binding=binding,
            hold_s=hold_s,
            profiles=SHIPPED_PROFILES,
        )
    )
    for name in names:
        made.on_event(EndpointObserved(endpoint(name)), 0.0)
    return made


def ask(name: str = "r", prompt: int = 100, output: float = 60.0, *, divisible: bool = True) -> Request:
    return Request(RequestId(name), prompt, expected_output_tokens=output, divisible=divisible)


def slot(d: Director, name: str) -> int:
    found = d.inventory.slot_of(EndpointId(name))
    assert found is not None
    return found


def segments(dispatch: Dispatch) -> list[tuple[str, int | None]]:
    return [(segment.endpoint.id, segment.end_tokens) for segment in dispatch.segments]


HALF = Fixed(at="ratio", ratio=0.5, margin_tokens=0)
LATE_CUT = Fixed(at="ratio", ratio=0.75, margin_tokens=0)


def test_a_cut_at_the_end_of_the_prompt_is_disaggregation_over_flexible_endpoints() -> None:
    """The first endpoint prefills, the second one decodes, and so says the ledger."""
    d = cutting(Fixed())
    dispatch = only_dispatch(d.on_event(RequestArrived(ask()), 0.0))
    assert segments(dispatch) == [("f0", 100), ("f1", None)]
    assert dispatch.prefill is not None
    assert (dispatch.prefill.id, dispatch.decode.id) == ("f0", "f1")
    assert d.ledger.uncached_tokens[slot(d, "f0")] == 100
    assert d.ledger.tokens[Stage.DECODE][slot(d, "f1")] == 100
    (handoff,) = d.on_event(SegmentDone(ID, 0), 1.0)
    assert isinstance(handoff, Handoff)
    assert handoff.decode.id == "f1"
    assert d.ledger.uncached_tokens.sum() == 0
    assert d.ledger.decoding_requests[slot(d, "f1")] == 1


def test_a_part_that_was_skipped_is_left_to_the_next_endpoint() -> None:
    """The whole prompt is on its books then, wherever the cut was, and nothing of it counts as done elsewhere."""
    for partition in (HALF, Fixed()):
        d = cutting(partition)
        only_dispatch(d.on_event(RequestArrived(ask()), 0.0))
        (handoff,) = d.on_event(SegmentDone(ID, 0, computed=False), 1.0)
        assert isinstance(handoff, Handoff)
        assert handoff.decode.id == "f1"
        assert d.ledger.uncached_tokens[slot(d, "f0")] == 0
        assert d.ledger.uncached_tokens[slot(d, "f1")] == 100
        d.on_event(FirstToken(ID), 1.5)
        assert d.ledger.uncached_tokens.sum() == 0
        d.on_event(RequestEnded(ID, Outcome.COMPLETED, 5), 2.0)
        assert len(d.ledger) == 0


def test_a_request_that_may_not_be_cut_is_placed_as_without_a_partition() -> None:
    """Its driver cannot name the tokens of a part."""
    d, plain = cutting(HALF), cutting(None)
    whole = replace(ask(), divisible=False)
    dispatch = only_dispatch(d.on_event(RequestArrived(whole), 0.0))
    expected = only_dispatch(plain.on_event(RequestArrived(whole), 0.0))
    assert (dispatch.segments, dispatch.prefill, dispatch.decode) == ((), None, expected.decode)
    assert [trace.policy for trace in dispatch.traces] == [trace.policy for trace in expected.traces]


def test_a_cut_within_the_prompt_leaves_the_rest_of_it_to_the_second_endpoint() -> None:
    """80 of 100 prompt tokens on one, 20 and the decode on the other."""
    d = cutting(HALF)
    dispatch = only_dispatch(d.on_event(RequestArrived(ask()), 0.0))
    assert segments(dispatch) == [("f0", 80), ("f1", None)]
    assert d.ledger.uncached_tokens[slot(d, "f0")] == 80
    d.on_event(SegmentDone(ID, 0), 1.0)
    assert d.ledger.uncached_tokens[slot(d, "f0")] == 0
    assert d.ledger.uncached_tokens[slot(d, "f1")] == 20
    d.on_event(FirstToken(ID), 1.5)
    assert d.ledger.uncached_tokens.sum() == 0
    assert d.ledger.decoding_tokens[slot(d, "f1")] == 101


def test_a_cut_in_the_output_moves_the_decode() -> None:
    """Prompt and 20 output tokens on one, the rest on the other."""
    d = cutting(LATE_CUT)
    dispatch = only_dispatch(d.on_event(RequestArrived(ask()), 0.0))
    assert segments(dispatch) == [("f0", 120), ("f1", None)]
    assert dispatch.prefill is None
    assert dispatch.decode.id == "f0"
    d.on_event(FirstToken(ID), 0.5)
    d.on_event(Progress(ID, 10), 0.8)
    assert d.ledger.decoding_tokens[slot(d, "f0")] == 110
    (handoff,) = d.on_event(SegmentDone(ID, 20), 1.0)
    assert isinstance(handoff, Handoff)
    assert handoff.decode.id == "f1"
    assert d.ledger.decoding_tokens[slot(d, "f0")] == 0
    assert d.ledger.decoding_tokens[slot(d, "f1")] == 120
    assert d.on_event(SegmentDone(ID, 30), 2.0) == []
    assert d.on_event(PrefillDone(ID), 2.0) == []


def test_pairs_are_the_emptiest_endpoints_by_turns() -> None:
    """Requests of the same size go round; one endpoint alone takes them whole."""
    d = cutting(Fixed(), ("f0", "f1", "f2", "f3"))
    pairs = [segments(only_dispatch(d.on_event(RequestArrived(ask(f"r{k}")), 0.0))) for k in range(2)]
    assert pairs == [[("f0", 100), ("f1", None)], [("f2", 100), ("f3", None)]]
    alone = only_dispatch(cutting(Fixed(), ("f0",)).on_event(RequestArrived(ask()), 0.0))
    assert (alone.prefill, alone.segments, alone.decode.id) == (None, (), "f0")


def test_ratios_of_nothing_and_everything_leave_requests_whole() -> None:
    """Nothing is left to cut."""
    for ratio in (0.0, 1.0):
        d = cutting(Fixed(at="ratio", ratio=ratio))
        dispatch = only_dispatch(d.on_event(RequestArrived(ask()), 0.0))
        assert (dispatch.prefill, dispatch.segments) == (None, ())
        assert isinstance(d.partitioner, Partitioner)
        assert len(d.partitioner.book) == 1


@pytest.mark.parametrize("gone", [EndpointDraining(EndpointId("f1")), EndpointLost(EndpointId("f1"))])
def test_a_planned_endpoint_that_is_gone_is_replaced_under_late_binding(gone: Event) -> None:
    """Also by the endpoint that the request is on, where there is no other."""
    for partition in (Fixed(), HALF, LATE_CUT):
        d = cutting(partition)
        d.on_event(RequestArrived(ask()), 0.0)
        d.on_event(gone, 0.5)
        (handoff,) = d.on_event(SegmentDone(ID, 20 if partition is LATE_CUT else 0), 1.0)
        assert isinstance(handoff, Handoff)
        assert handoff.decode.id == "f2"
        d = cutting(partition, ("f0", "f1"))
        d.on_event(RequestArrived(ask()), 0.0)
        d.on_event(gone, 0.5)
        (handoff,) = d.on_event(SegmentDone(ID, 20 if partition is LATE_CUT else 0), 1.0)
        assert isinstance(handoff, Handoff)
        assert handoff.decode.id == "f0"


@pytest.mark.parametrize("binding", Binding)
def test_a_planned_endpoint_is_handed_on_to_as_it_is_now(binding: Binding) -> None:
    """Its address has changed since the request was cut."""
    d = cutting(Fixed(), binding=binding)
    d.on_event(RequestArrived(ask()), 0.0)
    moved = replace(endpoint("f1"), address="f1:9000")
    d.on_event(EndpointObserved(moved), 0.5)
    (handoff,) = d.on_event(SegmentDone(ID, 0), 1.0)
    assert isinstance(handoff, Handoff)
    assert handoff.decode == moved


def test_a_planned_endpoint_with_another_role_is_replaced_under_late_binding() -> None:
    """It takes no segments any more."""
    d = cutting(Fixed())
    d.on_event(RequestArrived(ask()), 0.0)
    d.on_event(EndpointObserved(endpoint("f1", Role.PREFILL)), 0.5)
    (handoff,) = d.on_event(SegmentDone(ID, 0), 1.0)
    assert isinstance(handoff, Handoff)
    assert handoff.decode.id == "f2"


def test_under_early_binding_a_draining_endpoint_stays_the_planned_one() -> None:
    """Its KV is on its way there."""
    d = cutting(Fixed(), binding=Binding.EARLY)
    d.on_event(RequestArrived(ask()), 0.0)
    d.on_event(EndpointDraining(EndpointId("f1")), 0.5)
    (handoff,) = d.on_event(SegmentDone(ID, 0), 1.0)
    assert isinstance(handoff, Handoff)
    assert handoff.decode.id == "f1"


def test_a_failed_leg_is_planned_anew_elsewhere() -> None:
    """Without the endpoint that failed; the old plan's works are off the book."""
    d = cutting(Fixed())
    d.on_event(RequestArrived(ask()), 0.0)
    again = only_dispatch(d.on_event(DispatchFailed(ID, Stage.PREFILL, EndpointId("f0")), 0.5))
    assert segments(again) == [("f2", 100), ("f1", None)]
    assert isinstance(d.partitioner, Partitioner)
    assert [len(d.partitioner.book.works(slot(d, name))) for name in ("f0", "f1", "f2")] == [0, 1, 1]


def test_an_end_before_the_cut_clears_the_books() -> None:
    """A stop token came first."""
    d = cutting(LATE_CUT)
    d.on_event(RequestArrived(ask()), 0.0)
    d.on_event(RequestEnded(ID, Outcome.COMPLETED, 5), 1.0)
    assert d.on_event(SegmentDone(ID, 20), 1.1) == []
    assert isinstance(d.partitioner, Partitioner)
    assert len(d.partitioner.book) == 0
    assert not any(d.partitioner.book.works(slot(d, name)) for name in ("f0", "f1", "f2"))


def test_other_roles_are_left_to_the_placements() -> None:
    """Where nothing is flexible, requests are placed as if there were no partition."""
    d = cutting(Fixed(), ("p0", "d0", "d1"))
    dispatch = only_dispatch(d.on_event(RequestArrived(ask()), 0.0))
    assert dispatch.prefill is not None
    assert (dispatch.prefill.id, dispatch.segments) == ("p0", ())
    mixed = cutting(Fixed(), ("p0", "d0", "f0", "f1"))
    used = {each.id for each, _ in segments_of(only_dispatch(mixed.on_event(RequestArrived(ask()), 0.0)))}
    assert used == {"f0", "f1"}


def segments_of(dispatch: Dispatch) -> list[tuple[Endpoint, int | None]]:
    return [(segment.endpoint, segment.end_tokens) for segment in dispatch.segments]


def test_works_of_segments() -> None:
    """By hand: 100 prompt tokens, 60 to come; the prefix cache shortens the first part only."""
    a, b = endpoint("f0"), endpoint("f1")
    whole, within = (Segment(a, None),), (Segment(a, 80), Segment(b, None))
    beyond, three = (Segment(a, 120), Segment(b, None)), (Segment(a, 100), Segment(b, 140), Segment(a, None))
    assert works_of(whole, 100, 160) == [Work(100, 60, 0)]
    assert works_of(whole, 100, 160, 100) == [Work(1, 60, 99)]
    assert works_of(within, 100, 160, 30) == [Work(50, 0, 30), Work(20, 60, 80)]
    assert works_of(beyond, 100, 160) == [Work(100, 20, 0), Work(0, 40, 120, 20)]
    assert works_of(three, 100, 160) == [Work(100, 0, 0), Work(0, 40, 100), Work(0, 20, 140, 40)]


def test_the_book_follows_a_migration() -> None:
    """What a rescheduler moved is work of its new endpoint, and ends there."""
    book = Book()
    book.open(ID, [(0, Work(100, 0, 0)), (1, Work(0, 60, 100))])
    book.ended(ID)
    book.moved(ID, 2)
    assert [list(book.works(each)) for each in range(3)] == [[], [], [(ID, 1)]]
    before = int(book.versions(np.array([2]))[0])
    book.moved(ID, 2)
    assert int(book.versions(np.array([2]))[0]) == before
    book.close(ID)
    assert not book.works(2)
    assert len(book) == 0


# --- under any sequence of events ------------------------------------------------------------------------------------

NAMES = ("f0", "f1", "f2", "d0")
REQUESTS = tuple(f"r{k}" for k in range(5))
_endpoints, _requests = st.sampled_from(NAMES), st.sampled_from(REQUESTS)
_events: st.SearchStrategy[Callable[[float], Event]] = st.one_of(
    st.builds(
        lambda n, p, o, d: lambda _: RequestArrived(ask(n, p, o, divisible=d)),
        _requests,
        st.integers(1, 1000),
        st.integers(0, 1000),
        st.booleans(),
    ),
    st.builds(lambda n, g: lambda _: SegmentDone(RequestId(n), g), _requests, st.integers(0, 500)),
    st.builds(lambda n: lambda _: PrefillDone(RequestId(n)), _requests),
    st.builds(lambda n: lambda _: FirstToken(RequestId(n)), _requests),
    st.builds(lambda n, g: lambda _: Progress(RequestId(n), g), _requests, st.integers(0, 500)),
    st.builds(lambda n: lambda _: RequestEnded(RequestId(n), Outcome.COMPLETED, 7), _requests),
    st.builds(lambda n: lambda _: ClientGone(RequestId(n)), _requests),
    st.builds(
        lambda n, s, e: lambda _: DispatchFailed(RequestId(n), s, EndpointId(e)),
        _requests,
        st.sampled_from(list(Stage)),
        _endpoints,
    ),
    st.builds(lambda e: lambda t: EndpointObserved(endpoint(e), observation(1, at_s=t)), _endpoints),
    st.builds(lambda e: lambda _: EndpointDraining(EndpointId(e)), _endpoints),
    st.builds(lambda e: lambda _: EndpointLost(EndpointId(e)), _endpoints),
    st.just(lambda _: TimerFired()),
)
_partitions = st.sampled_from([Fixed(), HALF, LATE_CUT, *(policy() for policy in PARTITIONS.values())])


def check_effects(d: Director, effects: list[Effect]) -> None:
    for effect in effects:
        if not isinstance(effect, Dispatch) or not effect.segments:
            continue
        parts, entry = effect.segments, d.ledger.get(effect.request_id)
        assert entry is not None
        ends = [part.end_tokens for part in parts]
        assert ends[-1] is None
        cuts = [end for end in ends if end is not None]
        assert len(cuts) == len(ends) - 1
        assert cuts == sorted(set(cuts))
        assert cuts[0] > 0
        assert all(one.endpoint.id != other.endpoint.id for one, other in pairwise(parts))
        assert {part.endpoint.role for part in parts} == {Role.FLEXIBLE}
        assert not {part.endpoint.id for part in parts} & entry.avoid
        works = works_of(parts, entry.request.prompt_tokens, 10_000)
        assert sum(work.prefill_tokens for work in works) == entry.request.prompt_tokens
        for before, after in pairwise(works):
            begun = before.context_tokens + before.prefill_tokens + before.decode_tokens
            assert after.context_tokens == begun


@given(st.lists(_events, max_size=60), _partitions, st.sampled_from(list(Binding)))
def test_books_balance_and_nothing_is_left(
    script: list[Callable[[float], Event]], partition: Partition, binding: Binding
) -> None:
    """Ledger and book hold the requests in flight, and none at the end; segments follow on each other."""
    d = cutting(partition, ("f0", "f1"), binding, hold_s=3.0)
    assert isinstance(d.partitioner, Partitioner)
    book = d.partitioner.book
    for k, make in enumerate(script):
        event = make(float(k))
        if isinstance(event, RequestArrived) and d.ledger.get(event.request.id) is not None:
            continue
        effects = d.on_event(event, float(k))
        check_effects(d, effects)
        if isinstance(event, SegmentDone):
            assert all(isinstance(effect, Handoff) for effect in effects)
        assert set(book) <= set(d.ledger.entries)
        for entry in d.ledger:
            if entry.decode_slot is not None and not d.partitioner.planned(entry.request.id):
                assert entry.request.id in book.uncut(entry.decode_slot)
                assert entry.prefill_slot is None or entry.request.id in book.uncut(entry.prefill_slot)
        for stage in Stage:
            assert (d.ledger.requests[stage] >= 0).all()
            assert (d.ledger.tokens[stage] >= 0).all()
        held = sum(entry.decode_slot is not None for entry in d.ledger)
        assert d.ledger.requests[Stage.DECODE].sum() == held
        assert (d.ledger.uncached_tokens >= 0).all()
        assert (d.ledger.uncached_pairs >= 0).all()
    for name in REQUESTS:
        d.on_event(ClientGone(RequestId(name)), 1000.0)
    for stage in Stage:
        assert not d.ledger.requests[stage].any()
        assert not d.ledger.tokens[stage].any()
    assert not d.ledger.uncached_tokens.any()
    assert not d.ledger.decoding_tokens.any()
    for name in (*NAMES, "f0", "f1"):
        d.on_event(EndpointLost(EndpointId(name)), 1000.0)
    assert (len(book), len(d.ledger), len(d.inventory)) == (0, 0, 0)
    assert not any(book.busy(each) for each in range(d.inventory.capacity))
