"""Ordered fall-backs of a dispatch: who stands in them, in which order, and that they change no decision."""

from __future__ import annotations

from dataclasses import replace

from ballast_core.directing.director import Director
from ballast_core.model import Endpoint, EndpointId, Fault, RequestId, Stage
from ballast_core.model.effects import Dispatch
from ballast_core.model.events import DispatchFailed, EndpointDraining, EndpointObserved, RequestArrived
from ballast_core.state.health import HealthState
from tests.support.core_builders import director, endpoint, only_dispatch, request


def with_fallbacks(names: tuple[str, ...], most: int = 2) -> Director:
    made = Director(replace(director(()).settings, fallbacks=most))
    for name in names:
        made.on_event(EndpointObserved(endpoint(name)), 0.0)
    return made


def arrives(on: Director, name: str = "r", subset: frozenset[str] | None = None) -> Dispatch:
    return only_dispatch(on.on_event(RequestArrived(request(name, subset=subset)), 0.0))


def ids(endpoints: tuple[Endpoint, ...]) -> list[str]:
    return [one.id for one in endpoints]


def test_a_dispatch_names_none_unless_asked_for() -> None:
    """Nobody pays for what nobody reads."""
    dispatch = arrives(director())
    assert (dispatch.fallbacks, dispatch.prefill_fallbacks) == ((), ())


def test_fall_backs_come_in_the_order_of_their_costs() -> None:
    """d3 has one request, d1 two, d2 three; the next request goes to d0."""
    on = with_fallbacks(("p0", "d0", "d1", "d2", "d3"))
    for name, count in (("d1", 2), ("d2", 3), ("d3", 1)):
        for k in range(count):
            arrives(on, f"{name}-{k}", frozenset({f"{name}:8000", "p0:8000"}))
    dispatch = arrives(on)
    assert (dispatch.decode.id, ids(dispatch.fallbacks)) == ("d0", ["d3", "d1"])


def test_each_stage_has_its_own() -> None:
    """What prefills a request is no fall-back of its decode, nor the other way round."""
    dispatch = arrives(with_fallbacks(("p0", "p1", "d0", "f0", "f1"), most=9))
    assert dispatch.prefill is not None
    assert ids(dispatch.fallbacks) == sorted({"d0", "f0", "f1"} - {dispatch.decode.id, dispatch.prefill.id})
    assert ids(dispatch.prefill_fallbacks) == sorted(
        {"p0", "p1", "f0", "f1"} - {dispatch.decode.id, dispatch.prefill.id}
    )


def test_equal_costs_take_turns() -> None:
    """An idle fleet does not name the same second endpoint to everybody."""
    on = with_fallbacks(("f0", "f1", "f2"), most=1)
    assert [ids(arrives(on, f"r{k}").fallbacks) for k in range(3)] == [["f1"], ["f2"], ["f0"]]


def test_a_subset_holds_for_them_too() -> None:
    """Where the proxy allows two endpoints, no third is named."""
    on = with_fallbacks(("f0", "f1", "f2", "f3"))
    dispatch = arrives(on, subset=frozenset({"f2:8000", "f1:8000"}))
    assert {dispatch.decode.id, *ids(dispatch.fallbacks)} == {"f1", "f2"}


def test_draining_failed_and_ejected_endpoints_are_none() -> None:
    """f1 drains, f3 is ejected after five failures, and then the request itself has failed on its first one."""
    on = with_fallbacks(("f0", "f1", "f2", "f3", "f4"), most=9)
    on.on_event(EndpointDraining(EndpointId("f1")), 0.0)
    for k in range(5):
        arrives(on, f"bad-{k}", frozenset({"f3:8000"}))
        on.on_event(DispatchFailed(RequestId(f"bad-{k}"), Stage.DECODE, EndpointId("f3"), Fault.BROKE), 0.0)
    assert on.health.report(EndpointId("f3")).state is HealthState.EJECTED
    first = arrives(on)
    failed = DispatchFailed(RequestId("r"), Stage.DECODE, first.decode.id, Fault.UNREACHABLE)
    again = only_dispatch(on.on_event(failed, 0.0))
    assert {first.decode.id, *ids(first.fallbacks)} == {"f0", "f2", "f4"}
    assert {again.decode.id, *ids(again.fallbacks)} == {"f0", "f2", "f4"} - {first.decode.id}


def test_where_one_role_serves_alone_its_others_stand_in() -> None:
    """Without a prefill endpoint the decode endpoints serve requests whole."""
    dispatch = arrives(with_fallbacks(("d0", "d1")))
    assert (dispatch.prefill, dispatch.decode.id, ids(dispatch.fallbacks)) == (None, "d0", ["d1"])


def test_they_change_no_decision() -> None:
    """The same arrivals go to the same endpoints, asked for fall-backs or not."""
    names = ("p0", "p1", "d0", "d1", "f0")
    plain, told = with_fallbacks(names, most=0), with_fallbacks(names, most=3)
    for k in range(12):
        one, other = arrives(plain, f"r{k}"), arrives(told, f"r{k}")
        assert (one.prefill, one.decode) == (other.prefill, other.decode)
