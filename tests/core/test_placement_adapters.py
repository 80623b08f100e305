"""LoRA adapters and several models: who may get a request, and who should."""

from __future__ import annotations

import pytest

from ballast_core.directing.director import Director
from ballast_core.model import EndpointId, RejectReason, Request, RequestId, Stage
from ballast_core.model.effects import Reject
from ballast_core.model.events import EndpointLost, EndpointObserved, ModelsObserved, RequestArrived, RequestEnded
from ballast_core.model.requests import Outcome
from ballast_core.model.served_models import ServedModels
from ballast_core.policies.placement.adapters import SLACK, Affinity, preferred
from tests.support.core_builders import director, endpoint, only_dispatch

R, W, ROOM, N = Affinity.RUNNING, Affinity.WAITING, Affinity.ROOM, Affinity.NO_ROOM


@pytest.mark.parametrize(
    ("affinities", "loads", "expected"),
    [
        pytest.param([ROOM, R, W, N], [0, 3, 0, 0], [1], id="at-work-before-idle"),
        pytest.param([ROOM, N, W, N], [0, 0, 2, 0], [2], id="asked-for-before-room"),
        pytest.param([N, ROOM, N, ROOM], [0, 9, 0, 1], [1, 3], id="room-before-none"),
        pytest.param([N, N], [5, 0], [0, 1], id="none-at-all"),
        pytest.param([R, R, ROOM], [0, 0, 0], [0, 1], id="the-placement-chooses-among-them"),
        pytest.param([R, ROOM, ROOM, ROOM], [6, 0, 0, 0], [1, 2, 3], id="too-many-there"),
        pytest.param([R, N, N, N], [60, 0, 0, 0], [0], id="too-many-there-but-no-room-elsewhere"),
        pytest.param([R, R, ROOM], [60, 2, 0], [1], id="another-one-at-work-within-the-bound"),
        pytest.param([R], [1000], [0], id="alone"),
    ],
)
def test_where_an_adapter_is_best_placed(affinities: list[Affinity], loads: list[int], expected: list[int]) -> None:
    """Running > waiting > room > none, within 1.25 times the mean load and 4 requests: six are more than 5.875."""
    assert preferred(affinities, loads) == expected


def fleet(*names: str, **models: ServedModels) -> Director:
    made = director(names)
    for name, said in models.items():
        made.on_event(ModelsObserved(EndpointId(name), said), 0.0)
    return made


def serving(*adapters: str, running: tuple[str, ...] = (), most: int = 2) -> ServedModels:
    return ServedModels(
        frozenset({"base", *adapters}), frozenset(adapters), running=frozenset(running), most_running=most
    )


def goes_to(on: Director, model: str, name: str = "r") -> str:
    return only_dispatch(on.on_event(RequestArrived(Request(RequestId(name), 100, model=model)), 1.0)).decode.id


def test_a_request_reaches_only_endpoints_that_serve_its_model() -> None:
    """f0 is idle, and does not have the adapter; one that has not said what it serves may have it."""
    on = fleet("f0", "f1", "f2", f0=serving(), f1=serving("a"))
    assert {goes_to(on, "a", f"r{k}") for k in range(6)} <= {"f1", "f2"}
    assert "f0" in {goes_to(on, "base", f"b{k}") for k in range(6)}


def test_where_nobody_serves_a_model_the_request_is_rejected() -> None:
    """The answer of an engine that does not know it would be a 404 of its own."""
    on = fleet("f0", f0=serving("a"))
    (effect,) = on.on_event(RequestArrived(Request(RequestId("r"), 100, model="b")), 1.0)
    assert isinstance(effect, Reject)
    assert effect.reason is RejectReason.NO_ENDPOINTS


def test_an_adapter_stays_where_it_is_at_work() -> None:
    """The other endpoint is idle."""
    on = fleet("f0", "f1", f0=serving("a"), f1=serving("a", running=("a",)))
    goes_to(on, "base", "other")
    assert [goes_to(on, "a", f"r{k}") for k in range(3)] == ["f1"] * 3


def test_requests_at_once_follow_the_first_before_any_scrape() -> None:
    """What was sent there counts as at work until the endpoint speaks; a burst does not load the adapter everywhere."""
    on = fleet("f0", "f1", "f2", "f3", **{name: serving("a") for name in ("f0", "f1", "f2", "f3")})
    assert len({goes_to(on, "a", f"r{k}") for k in range(SLACK)}) == 1
    assert len({goes_to(on, "a", f"more-{k}") for k in range(20)}) > 1, "not for ever"


def test_an_adapter_avoids_endpoints_whose_places_are_taken() -> None:
    """Two run there, and two may."""
    on = fleet("f0", "f1", f0=serving("a", "b", "c", running=("b", "c")), f1=serving("a", "b", "c"))
    assert [goes_to(on, "a", f"r{k}") for k in range(3)] == ["f1"] * 3


def test_adapters_sent_take_places_too() -> None:
    """One place each: the second adapter goes to the other endpoint."""
    on = fleet("f0", "f1", f0=serving("a", "b", most=1), f1=serving("a", "b", most=1))
    assert {goes_to(on, "a", "r0"), goes_to(on, "b", "r1")} == {"f0", "f1"}


def test_other_requests_are_placed_as_ever() -> None:
    """The base model has no affinity."""
    on = fleet("f0", "f1", f0=serving("a", running=("a",)), f1=serving("a"))
    assert {goes_to(on, "base", f"r{k}") for k in range(4)} == {"f0", "f1"}


def test_both_stages_go_to_endpoints_with_the_adapter() -> None:
    """A prompt computed without it would be another one."""
    on = director(("p0", "p1", "d0", "d1"))
    for name in ("p0", "d0"):
        on.on_event(ModelsObserved(EndpointId(name), serving()), 0.0)
    for name in ("p1", "d1"):
        on.on_event(ModelsObserved(EndpointId(name), serving("a")), 0.0)
    dispatch = only_dispatch(on.on_event(RequestArrived(Request(RequestId("r"), 100, model="a")), 1.0))
    assert dispatch.prefill is not None
    assert (dispatch.prefill.id, dispatch.decode.id) == ("p1", "d1")


def test_what_an_endpoint_served_is_forgotten_with_it() -> None:
    """A pod of the same slot may serve something else."""
    on = fleet("f0", f0=serving("a"))
    assert "a" in on.placer.models.adapters
    goes_to(on, "a")
    on.on_event(EndpointLost(EndpointId("f0")), 2.0)
    on.on_event(RequestEnded(RequestId("r"), Outcome.COMPLETED), 2.0)
    assert not on.placer.models.adapters
    on.on_event(EndpointObserved(endpoint("f9")), 3.0)
    assert goes_to(on, "anything", "r2") == "f9"


def test_an_endpoint_that_is_not_known_says_nothing() -> None:
    """Its scrape came after it had gone."""
    on = fleet("f0", f7=serving("a"))
    assert not on.placer.models.adapters
    assert on.ledger.requests[Stage.DECODE].sum() == 0
