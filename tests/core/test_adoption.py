"""Requests that other gateways have dispatched: booked as ours are, decided about by nobody here, and counted once."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import EndpointId, Fault, Outcome, RejectReason, RequestId, Stage
from ballast_core.model.effects import Migrate, Reject, WakeAt
from ballast_core.model.events import (
    ClientGone,
    DispatchFailed,
    EndpointLost,
    EndpointObserved,
    FirstToken,
    LeadershipChanged,
    LegFailed,
    Migrated,
    MoveOrdered,
    PrefillDone,
    Progress,
    RequestAdopted,
    RequestArrived,
    RequestEnded,
    RequestMoved,
    TimerFired,
)
from ballast_core.policies.partition.fixed import Fixed
from ballast_core.policies.placement.placements import LeastRequests
from ballast_core.policies.registry import build_placement
from ballast_core.policies.rescheduling.ares import Ares
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.state.ledger import Phase
from tests.support.core_builders import director, endpoint, observation, only_dispatch, request
from tests.support.director_strategies import Restless
from tests.support.recount import check_books

P0, D0, D1, D2 = map(EndpointId, ("p0", "d0", "d1", "d2"))
THEIRS = RequestId("gw-b/r1")


def slot(d: Director, endpoint_id: EndpointId) -> int:
    found = d.inventory.slot_of(endpoint_id)
    assert found is not None
    return found


def test_an_adopted_request_is_load_where_it_is_and_no_arrival() -> None:
    """The next one of ours goes elsewhere; neither limit nor budget has counted it."""
    d = director(names=("p0", "d0", "d1"), max_in_flight=1)
    assert d.on_event(RequestAdopted(request(THEIRS), D0, P0), 0.0) == []
    assert (len(d.ledger), d.ledger.own) == (1, 0)
    assert only_dispatch(d.on_event(RequestArrived(request("ours")), 0.1)).decode.id == D1
    (refused,) = d.on_event(RequestArrived(request("second")), 0.2)
    assert isinstance(refused, Reject)
    assert refused.reason is RejectReason.SATURATED
    check_books(d.ledger)
    before = d.outcomes.retries_left(0.2)
    for k in range(50):
        d.on_event(RequestAdopted(request(f"gw-b/{k}"), D0, P0), 0.3)
    assert d.outcomes.retries_left(0.3) == before


def test_it_is_followed_by_id_to_its_end() -> None:
    """Prefill without a hand-off, tokens, a move, and its end, after which nothing is left of it."""
    d = director()
    d.on_event(RequestAdopted(request(THEIRS), D0, P0), 0.0)
    assert d.ledger.requests[Stage.PREFILL][slot(d, P0)] == 1
    assert d.on_event(PrefillDone(THEIRS), 1.0) == []
    entry = d.ledger.entries[THEIRS]
    assert (entry.phase, entry.decode_slot) == (Phase.DECODING, slot(d, D0))
    d.on_event(FirstToken(THEIRS), 1.1)
    d.on_event(Progress(THEIRS, 9), 1.2)
    d.on_event(RequestMoved(THEIRS, D1), 1.3)
    assert (entry.decode_slot, entry.generated_tokens) == (slot(d, D1), 9)
    check_books(d.ledger)
    assert d.on_event(RequestEnded(THEIRS, Outcome.COMPLETED, 12), 2.0) == []
    assert not len(d.ledger)
    assert not d.ledger.adopted
    assert not any(sums.any() for sums in d.ledger.requests.values())


def test_one_that_runs_already_is_booked_with_its_tokens() -> None:
    """As a snapshot names it."""
    d = director()
    d.on_event(RequestAdopted(request(THEIRS), D2, decoding=True, generated_tokens=40), 0.0)
    assert d.ledger.decode_load(slot(d, D2))[:2] == (1, 140)
    check_books(d.ledger)


def test_lengths_are_learned_only_from_the_life_that_was_seen() -> None:
    """A gateway that restarts adopts what runs, mostly long answers: that the short ones have ended it did not see."""
    d = Director(replace(director().settings, learn=Belief.LENGTHS))
    for name in ("p0", "d0"):
        d.on_event(EndpointObserved(endpoint(name)), 0.0)
    for k in range(20):
        d.on_event(RequestAdopted(request(f"gw-b/{k}"), D0, decoding=True, generated_tokens=4000), 0.0)
    for k in range(20):
        d.on_event(RequestArrived(request(f"short-{k}")), 1.0)
        d.on_event(RequestEnded(RequestId(f"short-{k}"), Outcome.COMPLETED, 100), 2.0)
    d.on_event(EndpointObserved(endpoint("d0"), observation(at_s=3.0)), 3.0)
    assert d.beliefs.lengths.tables(4.0).survival(np.array([128.0]))[0] < 0.05
    for k in range(20):
        d.on_event(RequestEnded(RequestId(f"gw-b/{k}"), Outcome.COMPLETED, 4100), 5.0)
    seen = d.beliefs.lengths.tables(6.0).effective_samples(np.array([0.0, 2000.0, 4000.0]))
    assert seen.tolist() == pytest.approx([20, 0, 20], rel=0.05)


@pytest.mark.parametrize(("decode", "prefill"), [("nobody", None), ("d0", "nobody")])
def test_unknown_endpoints_book_nothing(decode: str, prefill: str | None) -> None:
    """Its later events change nothing; who feeds the Director offers it again when it knows them."""
    d = director()
    d.on_event(RequestAdopted(request(THEIRS), EndpointId(decode), None if prefill is None else P0), 0.0)
    d.on_event(
        RequestAdopted(request("gw-b/2"), EndpointId(decode), None if prefill is None else EndpointId(prefill)), 0.0
    )
    assert RequestId("gw-b/2") not in d.ledger.entries


def test_one_that_decodes_meanwhile_on_a_lost_endpoint_stays_on_its_books() -> None:
    """It was the last request there: the slot is not freed between its two bookings."""
    d = director()
    d.on_event(RequestAdopted(request(THEIRS), D0), 0.0)
    d.on_event(EndpointLost(D0), 0.1)
    lost = slot(d, D0)
    d.on_event(RequestAdopted(request(THEIRS), D0, decoding=True, generated_tokens=5), 0.2)
    assert d.ledger.entries[THEIRS].decode_slot == slot(d, D0) == lost
    d.on_event(EndpointObserved(endpoint("d9")), 0.3)
    assert slot(d, EndpointId("d9")) != lost
    check_books(d.ledger)
    d.on_event(RequestEnded(THEIRS, Outcome.COMPLETED, 12), 1.0)
    assert d.inventory.slot_of(D0) is None


def test_an_id_of_ours_is_not_taken_over() -> None:
    """A client may have named its request so."""
    d = director()
    chosen = only_dispatch(d.on_event(RequestArrived(request(THEIRS)), 0.0)).decode.id
    d.on_event(RequestAdopted(request(THEIRS, 999), D2), 0.1)
    entry = d.ledger.entries[THEIRS]
    assert not entry.adopted
    assert (entry.decode_slot, entry.request.prompt_tokens) == (slot(d, chosen), 100)


def test_cached_prefixes_of_others_attract() -> None:
    """What another gateway routed is believed to be cached there; blocks may be told after the request itself."""
    policy = build_placement("least-uncached-tokens")
    d = director(names=("p0", "p1", "d0"), policy=policy)
    told = replace(request(THEIRS, 64), block_hashes=(1, 2, 3, 4), block_size=16)
    d.on_event(RequestAdopted(request(THEIRS, 64), D0, EndpointId("p1")), 0.0)
    d.on_event(RequestAdopted(told, D0, EndpointId("p1")), 0.1)
    assert len(d.ledger) == 1
    d.on_event(RequestEnded(THEIRS, Outcome.COMPLETED, 5), 1.0)
    ours = replace(request("ours", 64), block_hashes=(1, 2, 3, 4), block_size=16)
    found = only_dispatch(d.on_event(RequestArrived(ours), 1.1)).prefill
    assert found is not None
    assert found.id == "p1"


def test_failures_that_holders_see_eject_an_endpoint() -> None:
    """Of adopted requests and of ours, without a dispatch; a success in between counts, too."""
    d = director()
    for k in range(5):
        name = RequestId(f"gw-b/{k}")
        d.on_event(RequestAdopted(request(name), D0, P0), 0.1 * k)
        kind = LegFailed if k % 2 else DispatchFailed
        assert d.on_event(kind(name, Stage.DECODE, D0, Fault.BROKE), 0.1 * k) == []
        assert d.ledger.entries[name].decode_slot == slot(d, D0)
    assert d.health.is_ejected(slot(d, D0))
    before = d.outcomes.retries_left(1.0)
    ours = only_dispatch(d.on_event(RequestArrived(request("ours")), 1.0)).decode.id
    assert d.on_event(LegFailed(RequestId("ours"), Stage.DECODE, ours, Fault.BROKE), 1.1) == []
    assert d.outcomes.retries_left(1.1) >= before


def test_the_holder_of_ours_follows_its_plan() -> None:
    """No hand-off is chosen when it says that the prompt is computed; a cut is over with it."""
    d = director(names=("p0", "d0", "d1"))
    sent = only_dispatch(d.on_event(RequestArrived(request("ours")), 0.0))
    assert d.on_event(PrefillDone(RequestId("ours"), bound=True), 1.0) == []
    assert d.ledger.entries[RequestId("ours")].decode_slot == slot(d, sent.decode.id)
    assert d.ledger.entries[RequestId("ours")].phase is Phase.DECODING

    least = LeastRequests()
    cutting = Director(
        DirectorSettings(
            prefill=least,
            decode=least,
            partition=Fixed(margin_tokens=0),
            rescheduling=Ares(),
            profiles=SHIPPED_PROFILES,
        )
    )
    for name in ("f0", "f1"):
        cutting.on_event(EndpointObserved(endpoint(name)), 0.0)
    sent = only_dispatch(cutting.on_event(RequestArrived(request("ours")), 0.0))
    assert sent.segments
    assert cutting.on_event(PrefillDone(RequestId("ours"), bound=True), 1.0) == []
    assert not cutting.partitioner.planned(RequestId("ours"))
    check_books(cutting.ledger)


def test_only_a_leader_moves_and_it_moves_what_others_dispatched() -> None:
    """Rounds begin with leadership, end with it, and a move of an adopted request is settled as any other."""
    least = LeastRequests()
    policy = Ares(min_stay_s=5.0)
    d = Director(DirectorSettings(prefill=least, decode=least, rescheduling=policy, profiles=SHIPPED_PROFILES))
    for name in ("p0", "d0", "d1"):
        d.on_event(EndpointObserved(endpoint(name)), 0.0)
    d.on_event(LeadershipChanged(False), 0.0)
    for k in range(3):
        asked = replace(request(f"gw-b/{k}"), expected_output_tokens=5000.0)
        assert d.on_event(RequestAdopted(asked, D0, decoding=True, generated_tokens=100), 0.0) == []
    assert d.on_event(TimerFired(), 5.0) == []
    assert d.on_event(LeadershipChanged(True), 6.0) == [WakeAt(7.0)]
    effects = d.on_event(TimerFired(), 7.0)
    (move,) = [effect for effect in effects if isinstance(effect, Migrate)]
    assert (move.source.id, move.target.id) == (D0, D1)
    d.on_event(LeadershipChanged(False), 7.1)
    assert not [effect for effect in d.on_event(TimerFired(), 9.0) if isinstance(effect, Migrate)]
    d.on_event(Migrated(move.request_id, D1), 9.1)
    assert d.ledger.entries[move.request_id].decode_slot == slot(d, D1)
    check_books(d.ledger)


def test_no_round_moves_what_another_gateway_has_ordered_to_move() -> None:
    """Neither while its own move is under way, nor, by its reservation, after leadership has come."""
    least = LeastRequests()
    settings = DirectorSettings(prefill=least, decode=least, rescheduling=Restless(), profiles=SHIPPED_PROFILES)
    for leads_at_once in (True, False):
        d = Director(settings)
        for name in ("p0", "d0", "d1", "d2"):
            d.on_event(EndpointObserved(endpoint(name)), 0.0)
        d.on_event(LeadershipChanged(leads_at_once), 0.0)
        d.on_event(RequestAdopted(request(THEIRS), D0, decoding=True, generated_tokens=9), 0.0)
        d.on_event(MoveOrdered(THEIRS, D1), 0.1)
        if not leads_at_once:
            d.on_event(LeadershipChanged(True), 0.2)
        assert not [effect for effect in d.on_event(TimerFired(), 1.0) if isinstance(effect, Migrate)]
        d.on_event(Migrated(THEIRS, D1), 1.1)
        assert d.ledger.entries[THEIRS].decode_slot == slot(d, D1)
        d.on_event(RequestEnded(THEIRS, Outcome.COMPLETED), 1.2)
        d.on_event(TimerFired(), 2.0)
        check_books(d.ledger)


def test_a_client_of_another_gateway_that_goes_is_no_leg_to_cancel_here() -> None:
    """Its own gateway, or its holder, stops the legs."""
    d = director()
    d.on_event(RequestAdopted(request(THEIRS), D0, P0), 0.0)
    assert d.on_event(ClientGone(THEIRS), 1.0) == []
    assert not len(d.ledger)
