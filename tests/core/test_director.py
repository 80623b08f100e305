"""The Director: each request gets endpoints of the right roles, is on their books, and leaves them exactly once."""

from __future__ import annotations

import typing
from dataclasses import fields, replace

import numpy as np
import pytest

from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.director import Director
from ballast_core.model import Binding, EndpointId, Outcome, RejectReason, RequestId, Stage
from ballast_core.model.effects import Cancel, Handoff, Hold, Reject, WakeAt
from ballast_core.model.events import (
    ClientGone,
    DispatchFailed,
    EndpointDraining,
    EndpointLost,
    EndpointObserved,
    EndpointRestored,
    EndpointsScraped,
    Event,
    FirstToken,
    LeadershipChanged,
    PrefillDone,
    Progress,
    ProgressBatch,
    RequestAdopted,
    RequestArrived,
    RequestEnded,
    TimerFired,
)
from ballast_core.model.observations import Observations
from ballast_core.policies.placement.placements import RoundRobin
from tests.support.core_builders import director, endpoint, observation, only_dispatch, request


def test_a_request_is_prefilled_and_decoded_by_endpoints_of_those_roles() -> None:
    """A disaggregated fleet gives a prefill and a decode endpoint."""
    dispatch = only_dispatch(director().on_event(RequestArrived(request()), 0.0))
    assert dispatch.prefill is not None
    assert (dispatch.prefill.id, dispatch.decode.id) == ("p0", "d0")


def test_least_requests_counts_pending_prefills() -> None:
    """Requests still in prefill are load of their decode endpoint already: the next ones go elsewhere."""
    d = director()
    chosen = [only_dispatch(d.on_event(RequestArrived(request(f"r{k}")), 0.0)).decode.id for k in range(4)]
    assert chosen == ["d0", "d1", "d2", "d0"]


def test_round_robin_takes_turns_whatever_the_load() -> None:
    """Ended requests do not change whose turn it is."""
    d = director(policy=RoundRobin())
    chosen = []
    for k in range(5):
        chosen.append(only_dispatch(d.on_event(RequestArrived(request(f"r{k}")), 0.0)).decode.id)
        d.on_event(RequestEnded(RequestId(f"r{k}"), Outcome.COMPLETED), 0.0)
    assert chosen == ["d0", "d1", "d2", "d0", "d1"]


def test_round_robin_takes_a_new_endpoint_into_the_turn_once() -> None:
    """A joining endpoint is next, then waits for its turn like the others."""
    d = director(names=("p0", "d0", "d1"), policy=RoundRobin())
    for k in range(3):
        d.on_event(RequestArrived(request(f"a{k}")), 0.0)
    d.on_event(EndpointObserved(endpoint("d9")), 1.0)
    chosen = [only_dispatch(d.on_event(RequestArrived(request(f"b{k}")), 1.0)).decode.id for k in range(4)]
    assert chosen == ["d9", "d1", "d0", "d9"]


def test_late_binding_repicks_a_strictly_better_decode_endpoint() -> None:
    """When prefill ends and another decode endpoint has become emptier, the request goes there."""
    d = director(names=("p0", "d0", "d1"))
    d.on_event(RequestArrived(request("other")), 0.0)  # d0
    d.on_event(RequestArrived(request("mine")), 0.0)  # d1
    d.on_event(RequestArrived(request("third")), 0.0)  # d0
    d.on_event(RequestEnded(RequestId("mine"), Outcome.COMPLETED), 1.0)
    (effect,) = d.on_event(PrefillDone(RequestId("third")), 1.0)
    assert isinstance(effect, Handoff)
    assert effect.decode.id == "d1"
    assert d.ledger.requests[Stage.DECODE].sum() == 2


def test_late_binding_keeps_the_endpoint_on_a_tie() -> None:
    """Confirming costs nothing; moving would."""
    d = director(names=("p0", "d0", "d1"), policy=RoundRobin())
    first = only_dispatch(d.on_event(RequestArrived(request()), 0.0)).decode
    (effect,) = d.on_event(PrefillDone(RequestId("r")), 1.0)
    assert isinstance(effect, Handoff)
    assert effect.decode == first


def test_early_binding_never_moves() -> None:
    """A push connector has sent the KV cache to the endpoint chosen at arrival."""
    d = director(names=("p0", "d0", "d1"), binding=Binding.EARLY)
    for name in ("other", "mine", "third"):
        d.on_event(RequestArrived(request(name)), 0.0)
    d.on_event(RequestEnded(RequestId("mine"), Outcome.COMPLETED), 1.0)
    (effect,) = d.on_event(PrefillDone(RequestId("third")), 1.0)
    assert isinstance(effect, Handoff)
    assert effect.decode.id == "d0"


def test_late_binding_leaves_a_decode_endpoint_that_was_lost() -> None:
    """An endpoint that vanished during prefill is replaced at the hand-off."""
    d = director(names=("p0", "d0", "d1"))
    d.on_event(RequestArrived(request()), 0.0)
    d.on_event(EndpointLost(EndpointId("d0")), 0.5)
    (effect,) = d.on_event(PrefillDone(RequestId("r")), 1.0)
    assert isinstance(effect, Handoff)
    assert effect.decode.id == "d1"


def test_a_lost_prefill_endpoint_is_forgotten_when_no_decode_endpoint_is_left() -> None:
    """The request keeps the decode endpoint that it had; only that one stays known until the request ends."""
    d = director(names=("p0", "d0"))
    d.on_event(RequestArrived(request()), 0.0)
    for name in ("p0", "d0"):
        d.on_event(EndpointLost(EndpointId(name)), 0.5)
    (handoff,) = d.on_event(PrefillDone(RequestId("r")), 1.0)
    assert isinstance(handoff, Handoff)
    assert handoff.decode.id == "d0"
    assert d.inventory.slot_of(EndpointId("p0")) is None
    d.on_event(RequestEnded(RequestId("r"), Outcome.COMPLETED), 2.0)
    assert len(d.inventory) == 0


def test_a_flexible_endpoint_prefills_its_own_requests() -> None:
    """Without prefill endpoints there is no hand-off: one endpoint does both."""
    dispatch = only_dispatch(director(names=("f0", "f1")).on_event(RequestArrived(request()), 0.0))
    assert dispatch.prefill is None
    assert dispatch.decode.id == "f0"


def test_without_endpoints_a_request_is_rejected() -> None:
    """Nothing is booked."""
    (effect,) = director(names=()).on_event(RequestArrived(request()), 0.0)
    assert isinstance(effect, Reject)
    assert effect.reason is RejectReason.NO_ENDPOINTS


@pytest.mark.parametrize(
    ("names", "lost", "served_by"),
    [
        (("d0",), (), "d0"),
        (("p0", "p1", "d0"), ("p0", "p1"), "d0"),
        (("p0",), (), "p0"),
        (("p0", "d0", "d1"), ("d0", "d1"), "p0"),
    ],
)
def test_when_all_endpoints_of_one_role_are_gone_the_other_role_serves_whole_requests(
    names: tuple[str, ...], lost: tuple[str, ...], served_by: str
) -> None:
    """Without a hand-off; booked for both stages. Once one is back, requests are split again."""
    d = director(names=names)
    for name in lost:
        d.on_event(EndpointLost(EndpointId(name)), 0.0)
    dispatch = only_dispatch(d.on_event(RequestArrived(request("a")), 1.0))
    assert (dispatch.prefill, dispatch.decode.id) == (None, served_by)
    slot = d.inventory.slot_of(EndpointId(served_by))
    assert [d.ledger.requests[stage][slot] for stage in Stage] == [1, 1]
    d.on_event(EndpointObserved(endpoint(names[0] if lost else "p9" if served_by == "d0" else "d9")), 2.0)
    if lost:
        d.on_event(EndpointObserved(endpoint(lost[0])), 2.0)
    assert only_dispatch(d.on_event(RequestArrived(request("b")), 3.0)).prefill is not None


def test_a_request_whose_prefill_failed_goes_on_at_a_decode_endpoint_if_no_other_prefill_is_left() -> None:
    """Others are still split: the endpoint answers scrapes."""
    d = director(names=("p0", "d0"))
    assert only_dispatch(d.on_event(RequestArrived(request()), 0.0)).prefill is not None
    dispatch = only_dispatch(d.on_event(DispatchFailed(RequestId("r"), Stage.PREFILL, EndpointId("p0")), 1.0))
    assert (dispatch.prefill, dispatch.decode.id) == (None, "d0")
    assert only_dispatch(d.on_event(RequestArrived(request("b")), 1.0)).prefill is not None


def test_draining_prefills_take_no_new_request_though_they_are_the_last_of_their_role() -> None:
    """Neither prefill nor, when the decodes have gone, whole ones."""
    d = director(names=("p0", "d0"))
    d.on_event(EndpointDraining(EndpointId("p0")), 0.0)
    assert only_dispatch(d.on_event(RequestArrived(request("a")), 1.0)).decode.id == "d0"
    d.on_event(EndpointLost(EndpointId("d0")), 2.0)
    (effect,) = d.on_event(RequestArrived(request("b")), 3.0)
    assert isinstance(effect, Reject)


def test_a_prefill_endpoint_decodes_what_it_has_prefilled_when_no_decode_endpoint_is_left() -> None:
    """Its KV is there. Late binding only: early-bound engines have sent it elsewhere."""
    d = director(names=("p0", "d0"))
    d.on_event(RequestArrived(request()), 0.0)
    d.on_event(EndpointLost(EndpointId("d0")), 0.5)
    (handoff,) = d.on_event(PrefillDone(RequestId("r")), 1.0)
    assert isinstance(handoff, Handoff)
    assert handoff.decode.id == "p0"
    assert len(d.inventory) == 1


def test_a_held_request_is_dispatched_when_an_endpoint_appears() -> None:
    """With hold_s a request survives the moment in which a fleet has no endpoint."""
    d = director(names=(), hold_s=5.0)
    assert d.on_event(RequestArrived(request()), 1.0) == [Hold(RequestId("r")), WakeAt(6.0)]
    dispatch = only_dispatch(d.on_event(EndpointObserved(endpoint("d0")), 2.0))
    assert dispatch.decode.id == "d0"


def test_a_held_request_is_rejected_when_its_time_is_over() -> None:
    """It is held no longer than hold_s after its arrival."""
    d = director(names=(), hold_s=5.0)
    d.on_event(RequestArrived(request()), 1.0)
    assert d.on_event(TimerFired(), 5.9995) == [WakeAt(6.0)]  # a timer that fires too soon is asked for again
    (effect,) = d.on_event(TimerFired(), 6.0)
    assert isinstance(effect, Reject)
    assert len(d.ledger) == 0


def test_draining_endpoints_get_nothing_new_until_they_are_lost_and_return() -> None:
    """A fresh observation of a draining endpoint does not undo the drain."""
    d = director(names=("p0", "d0", "d1"))
    d.on_event(EndpointDraining(EndpointId("d0")), 0.0)
    d.on_event(EndpointObserved(endpoint("d0"), observation()), 0.1)
    assert {only_dispatch(d.on_event(RequestArrived(request(f"a{k}")), 0.2)).decode.id for k in range(3)} == {"d1"}
    d.on_event(EndpointLost(EndpointId("d0")), 1.0)
    d.on_event(EndpointObserved(endpoint("d0")), 2.0)
    assert only_dispatch(d.on_event(RequestArrived(request("b")), 2.0)).decode.id == "d0"


def test_a_drain_that_is_taken_back_leaves_no_trace() -> None:
    """It is placed on at once, and what runs there stays. A second word, or one of a lost endpoint, changes nothing."""
    d = director(names=("f0",))
    assert only_dispatch(d.on_event(RequestArrived(request("a")), 0.0)).decode.id == "f0"
    d.on_event(EndpointDraining(EndpointId("f0")), 0.1)
    (effect,) = d.on_event(RequestArrived(request("b")), 0.2)
    assert isinstance(effect, Reject)
    for _ in range(2):
        assert d.on_event(EndpointRestored(EndpointId("f0")), 0.3) == []
    assert only_dispatch(d.on_event(RequestArrived(request("c")), 0.4)).decode.id == "f0"
    assert d.ledger.requests[Stage.DECODE].sum() == 2
    d.on_event(EndpointLost(EndpointId("f0")), 0.5)
    d.on_event(EndpointRestored(EndpointId("f0")), 0.6)
    assert isinstance(d.on_event(RequestArrived(request("e")), 0.7)[0], Reject)


def test_what_waits_goes_to_an_endpoint_that_takes_requests_again() -> None:
    """A hold ends as soon as the drain is taken back."""
    d = director(names=("f0",), hold_s=60.0)
    d.on_event(EndpointDraining(EndpointId("f0")), 0.0)
    assert not [one for one in d.on_event(RequestArrived(request()), 1.0) if isinstance(one, Reject)]
    assert only_dispatch(d.on_event(EndpointRestored(EndpointId("f0")), 2.0)).decode.id == "f0"


def test_a_failed_leg_is_tried_elsewhere_and_never_again_on_the_same_endpoint() -> None:
    """Two retries by default; then the client is told what was tried."""
    d = director(names=("p0", "d0", "d1", "d2", "d3"))
    seen = [only_dispatch(d.on_event(RequestArrived(request()), 0.0)).decode.id]
    for _ in range(2):
        seen.append(only_dispatch(d.on_event(DispatchFailed(RequestId("r"), Stage.DECODE, seen[-1]), 1.0)).decode.id)
    assert len(set(seen)) == 3
    (effect,) = d.on_event(DispatchFailed(RequestId("r"), Stage.DECODE, seen[-1]), 2.0)
    assert isinstance(effect, Reject)
    assert effect.reason is RejectReason.UPSTREAM_FAILED
    assert d.ledger.requests[Stage.DECODE].sum() == 0


def test_a_client_that_leaves_cancels_its_legs_and_frees_the_books() -> None:
    """Afterwards nothing is booked, and a second report changes nothing."""
    d = director()
    d.on_event(RequestArrived(request()), 0.0)
    assert d.on_event(ClientGone(RequestId("r")), 1.0) == [Cancel(RequestId("r"))]
    assert d.on_event(ClientGone(RequestId("r")), 1.0) == []
    assert sum(int(d.ledger.requests[stage].sum()) for stage in Stage) == 0


def test_the_limit_of_requests_in_flight_sheds_the_next_one() -> None:
    """The first beyond the limit is saturated; after an end there is room again."""
    d = director(max_in_flight=1)
    d.on_event(RequestArrived(request("a")), 0.0)
    (effect,) = d.on_event(RequestArrived(request("b")), 0.0)
    assert isinstance(effect, Reject)
    assert effect.reason is RejectReason.SATURATED
    d.on_event(RequestEnded(RequestId("a"), Outcome.COMPLETED), 1.0)
    assert only_dispatch(d.on_event(RequestArrived(request("c")), 1.0))


def test_a_subset_hint_limits_the_decode_candidates_by_address() -> None:
    """GIE: only endpoints of the subset may be chosen; none eligible means no endpoints."""
    d = director(names=("f0", "f1", "f2"))
    dispatch = only_dispatch(d.on_event(RequestArrived(request("a", subset=frozenset({"f2:8000"}))), 0.0))
    assert dispatch.decode.id == "f2"
    (effect,) = d.on_event(RequestArrived(request("b", subset=frozenset({"other:1"}))), 0.0)
    assert isinstance(effect, Reject)
    assert effect.reason is RejectReason.NO_ENDPOINTS


def test_load_of_others_counts_once_it_is_seen_twice() -> None:
    """What an endpoint reports beyond our own books steers us away, but a single stale reading does not."""
    d = director(names=("p0", "d0", "d1"))
    d.on_event(EndpointObserved(endpoint("d0"), observation(running=5, at_s=1.0)), 1.0)
    assert only_dispatch(d.on_event(RequestArrived(request("a")), 1.0)).decode.id == "d0"
    d.on_event(RequestEnded(RequestId("a"), Outcome.COMPLETED), 1.1)
    d.on_event(EndpointObserved(endpoint("d0"), observation(running=5, at_s=2.0)), 2.0)
    chosen = [only_dispatch(d.on_event(RequestArrived(request(f"b{k}")), 2.0)).decode.id for k in range(3)]
    assert chosen == ["d1", "d1", "d1"]


def test_progress_adds_tokens_to_the_decode_endpoint_and_the_end_removes_them() -> None:
    """Tokens in flight are those of the prompt and of the output so far."""
    d = director(names=("p0", "d0"))
    d.on_event(RequestArrived(request(prompt_tokens=100)), 0.0)
    d.on_event(FirstToken(RequestId("r")), 1.0)
    d.on_event(Progress(RequestId("r"), 40), 2.0)
    d.on_event(Progress(RequestId("r"), 30), 2.1)  # late and lower: ignored
    slot = d.inventory.slot_of(EndpointId("d0"))
    assert slot is not None
    assert d.ledger.tokens[Stage.DECODE][slot] == 140
    assert d.ledger.tokens[Stage.PREFILL].sum() == 0
    d.on_event(RequestEnded(RequestId("r"), Outcome.COMPLETED, 40), 3.0)
    assert d.ledger.tokens[Stage.DECODE][slot] == 0


def test_every_dispatch_can_say_why() -> None:
    """The trace names stage, policy, and each candidate with its cost."""
    d = director(names=("p0", "d0", "d1"))
    d.on_event(RequestArrived(request("a")), 0.0)
    trace = only_dispatch(d.on_event(RequestArrived(request("b")), 0.0)).traces[-1]
    assert trace.as_dict() == {
        "stage": "decode",
        "policy": "least-requests",
        "chosen": "d1",
        "candidates": [{"endpoint": "d1", "cost": 0.0}, {"endpoint": "d0", "cost": 1.0}],
    }


def test_a_limit_beyond_64_bits_is_as_good_as_none() -> None:
    """A client may write any number; the books hold 64 bits and must stay whole."""
    d = director()
    for name in ("r0", "r1"):
        only_dispatch(d.on_event(RequestArrived(replace(request(name), max_output_tokens=10**400)), 0.0))
    for name in ("r0", "r1"):
        d.on_event(RequestEnded(RequestId(name), Outcome.COMPLETED), 1.0)
    assert len(d.ledger) == 0
    assert d.ledger.flights.count == 0


def test_every_event_is_understood_and_one_of_a_request_that_is_over_changes_nothing() -> None:
    """Also a batch without reports, and an endpoint that was never there."""
    d, empty = director(), Observations.of(())
    whole: dict[type, Event] = {
        RequestArrived: RequestArrived(request()),
        RequestAdopted: RequestAdopted(request("theirs"), EndpointId("nobody")),
        LeadershipChanged: LeadershipChanged(False),
        ProgressBatch: ProgressBatch([]),
        EndpointObserved: EndpointObserved(endpoint("d0")),
        EndpointsScraped: EndpointsScraped(empty),
        EndpointDraining: EndpointDraining(EndpointId("nobody")),
        EndpointRestored: EndpointRestored(EndpointId("nobody")),
        EndpointLost: EndpointLost(EndpointId("nobody")),
        TimerFired: TimerFired(),
    }
    for kind in typing.get_args(Event):
        if kind in whole:
            d.on_event(whole[kind], 1.0)
        else:
            assert d.on_event(kind(RequestId("over"), *("x" for _ in fields(kind)[1:])), 1.0) == []
    assert len(d.ledger) == 1


@pytest.mark.parametrize("learn", [Belief.LENGTHS, Belief.LENGTHS | Belief.EMA_LENGTHS])
def test_who_leaves_before_the_first_token_teaches_no_length(learn: Belief) -> None:
    """To SIBYL's estimator, which takes what was generated for the length, they were answers of 0 tokens."""
    d = Director(replace(director().settings, learn=learn))
    for name in ("p0", "d0"):
        d.on_event(EndpointObserved(endpoint(name)), 0.0)
    d.on_event(RequestArrived(request("whole")), 0.0)
    d.on_event(RequestEnded(RequestId("whole"), Outcome.COMPLETED, 1000), 1.0)
    before = d.beliefs.lengths.tables(2.0).expected_remaining(np.zeros(1))
    for k in range(500):
        d.on_event(RequestArrived(request(f"r{k}")), 2.0)
        d.on_event(ClientGone(RequestId(f"r{k}")), 2.0)
    assert d.beliefs.lengths.tables(3.0).expected_remaining(np.zeros(1)) == pytest.approx(before)


def test_the_life_of_a_stream_that_goes_on_elsewhere_counts_once() -> None:
    """Its tokens were seen on the endpoint that failed: where it goes on, only what is new."""
    d = Director(replace(director().settings, learn=Belief.LENGTHS | Belief.RATES))
    for name in ("p0", "d0", "d1"):
        d.on_event(EndpointObserved(endpoint(name)), 0.0)
    decode, asked = only_dispatch(d.on_event(RequestArrived(request()), 0.0)).decode.id, request().id
    for tokens, now_s in ((640, 1.0), (700, 5.0)):
        d.on_event(PrefillDone(asked), now_s)
        d.on_event(FirstToken(asked), now_s)
        d.on_event(Progress(asked, tokens), now_s + 1)
        d.on_event(EndpointObserved(endpoint("p0"), observation(at_s=now_s + 2)), now_s + 2)
        d.on_event(DispatchFailed(asked, Stage.DECODE, decode), now_s + 3)
    seen = d.beliefs.lengths.tables(9.0).effective_samples(np.array([0.0, 320.0, 640.0]))
    assert seen.tolist() == pytest.approx([1, 1, 1], rel=0.01)
