"""Where a request goes, and where it ends: the agent's parts that need no sockets."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ballast_core.model import Fault, RejectReason, Role, Stage
from ballast_core.model.effects import Dispatch, Reject
from ballast_gateway.agent.choosing import Choosing
from ballast_gateway.agent.passing import CONTROL, BadRequest, Framing
from ballast_gateway.agent.places import Places
from ballast_gateway.podapi.messages import Inventory, Listed
from ballast_gateway.podapi.plan import Place
from tests.support.agents import cut_at, plan

OWN = Place("d0", "10.0.0.1:8000", Role.DECODE)
DECODES = tuple(Place(f"d{number}", f"10.0.0.{number + 1}:8000", Role.DECODE) for number in range(1, 5))
PREFILLS = tuple(Place(f"p{number}", f"10.0.1.{number}:8000", Role.PREFILL) for number in range(3))
ENGINE = "127.0.0.1:8200"


def places(*listed: Listed) -> Places:
    known = Places(name=OWN.id, address=OWN.address, engine=ENGINE)
    known.take(Inventory(listed))
    return known


def listed(*given: Place, usable: bool = True) -> tuple[Listed, ...]:
    return tuple(Listed.of(place, usable=usable) for place in given)


def went(effect: Dispatch | Reject) -> tuple[str, str]:
    """Prefill and decode endpoint."""
    assert isinstance(effect, Dispatch)
    return "" if effect.prefill is None else effect.prefill.id, effect.decode.id


# --- where it goes --------------------------------------------------------------------------------------------------


def test_its_own_engine_is_asked_on_the_loopback_and_others_at_their_addresses() -> None:
    """Also where a plan knows its own place by the address alone."""
    for own in (OWN, Place("another-name", OWN.address, Role.DECODE)):
        dispatch = Choosing(plan(own, PREFILLS[0]), places()).dispatch()
        assert dispatch.decode.address == ENGINE
        assert dispatch.prefill is not None
        assert dispatch.prefill.address == PREFILLS[0].address


def test_a_cut_keeps_its_segments_until_a_leg_fails() -> None:
    """Then it is disaggregated at most: nobody plans it anew."""
    choosing = Choosing(plan(OWN, PREFILLS[0], segments=cut_at(100, PREFILLS[0], OWN)), places())
    assert [part.end_tokens for part in choosing.dispatch().segments] == [100, None]
    assert choosing.dispatch().segments[1].endpoint.address == ENGINE
    whole = Choosing(plan(OWN, PREFILLS[0], segments=cut_at(100, PREFILLS[0], OWN)), places(), divisible=False)
    assert (whole.dispatch().segments, went(whole.dispatch())) == ((), ("p0", "d0"))
    again = choosing.failed(Stage.PREFILL, "p0", Fault.BROKE, 0)
    assert isinstance(again, Dispatch)
    assert (again.segments, again.prefill) == ((), None)


def test_a_move_changes_where_the_next_failure_is() -> None:
    """What runs at a target and fails there goes on elsewhere, its first place included."""
    choosing = Choosing(plan(OWN, PREFILLS[0]), places(*listed(OWN, DECODES[0])))
    choosing.order(DECODES[0])
    assert choosing.decode == OWN
    choosing.moved()
    assert went(choosing.failed(Stage.DECODE, "d1", Fault.BROKE, 0)) == ("p0", "d0")


@pytest.mark.parametrize("begun", [True, False])
def test_what_has_begun_goes_on_within_its_revision(begun: bool) -> None:
    """Another one may have other weights."""
    own, new, old = (replace(each, revision=of) for each, of in zip((OWN, *DECODES), "aba", strict=False))
    choosing = Choosing(plan(own, fallbacks=(new,)), places(*listed(own, new, old)))
    choosing.begun = begun
    assert went(choosing.failed(Stage.DECODE, "d0", Fault.BROKE, 0)) == ("", "d2" if begun else "d1")


def test_a_fall_back_of_another_revision_takes_no_kv_from_this_ones_prefill() -> None:
    """It is prefilled by one of its own, or computes the prompt itself."""
    old, decode = replace(PREFILLS[0], revision="a"), replace(DECODES[0], revision="b")
    asked = plan(replace(OWN, revision="a"), old)
    assert went(Choosing(asked, places(*listed(decode, old))).failed(Stage.DECODE, "d0", Fault.BROKE, 0)) == ("", "d1")
    new = replace(PREFILLS[2], revision="b")
    choosing = Choosing(asked, places(*listed(decode, old, replace(PREFILLS[1], revision="a"), new)))
    assert went(choosing.failed(Stage.DECODE, "d0", Fault.BROKE, 0)) == ("p2", "d1")


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        ([(Fault.REFUSED, 400), (Fault.REFUSED, 400)], RejectReason.UPSTREAM_REFUSED),
        ([(Fault.REFUSED, 404), (Fault.REFUSED, 404), (Fault.REFUSED, 404)], RejectReason.UPSTREAM_REFUSED),
        ([(Fault.REFUSED, 400), (Fault.REFUSED, 404), (Fault.REFUSED, 400)], RejectReason.UPSTREAM_FAILED),
        ([(Fault.BROKE, 0), (Fault.REFUSED, 400), (Fault.REFUSED, 400)], RejectReason.UPSTREAM_FAILED),
        ([(Fault.BROKE, 0), (Fault.ERROR, 500), (Fault.SILENT, 0)], RejectReason.UPSTREAM_FAILED),
    ],
)
def test_refusals_of_several_are_the_clients_fault(faults: list[tuple[Fault, int]], reason: RejectReason) -> None:
    """As the Director has it."""
    choosing = Choosing(plan(OWN), places(*listed(*DECODES)))
    effect: Dispatch | Reject = choosing.dispatch()
    for fault, status in faults:
        assert isinstance(effect, Dispatch)
        effect = choosing.failed(Stage.DECODE, effect.decode.id, fault, status)
    assert isinstance(effect, Reject)
    assert effect.reason is reason


@given(
    named=st.lists(st.sampled_from(DECODES), unique=True),
    known=st.lists(st.sampled_from((OWN, *DECODES, *PREFILLS)), unique=True),
    unusable=st.sets(st.sampled_from([place.id for place in DECODES])),
    stages=st.lists(st.sampled_from(list(Stage)), max_size=8),
    retries=st.integers(0, 6),
)
def test_nothing_that_has_failed_is_asked_again(
    named: list[Place], known: list[Place], unusable: set[str], stages: list[Stage], retries: int
) -> None:
    """At most `max_retries` more, each at a usable endpoint of the stage's role, in the plan's order first."""
    fleet = places(*(Listed.of(place, usable=place.id not in unusable) for place in known))
    asked = plan(OWN, PREFILLS[0], fallbacks=tuple(named), max_retries=retries)
    choosing = Choosing(asked, fleet)
    effect: Dispatch | Reject = choosing.dispatch()
    unusable &= {place.id for place in known}
    failed: set[str] = set()
    for count, stage in enumerate(stages, 1):
        if isinstance(effect, Reject):
            break
        leg = effect.decode if stage is Stage.DECODE or effect.prefill is None else effect.prefill
        failed.add(leg.id)
        effect = choosing.failed(Stage.DECODE if leg is effect.decode else Stage.PREFILL, leg.id, Fault.BROKE, 0)
        if isinstance(effect, Dispatch):
            assert count <= retries
            assert not failed & {effect.decode.id, "" if effect.prefill is None else effect.prefill.id}
            assert effect.decode.role is Role.DECODE
            assert effect.decode.id not in unusable
            open_ = [place.id for place in named if place.id not in failed | unusable]
            assert effect.decode.id == "d0" or not open_ or effect.decode.id == open_[0]


def test_requests_of_one_failed_endpoint_spread_over_the_others() -> None:
    """Each has an order of its own."""
    fleet = places(*listed(*DECODES))
    found = [Choosing(plan(OWN, id=f"r{n}"), fleet).failed(Stage.DECODE, "d0", Fault.BROKE, 0) for n in range(200)]
    counts = [sum(went(effect)[1] == place.id for effect in found) for place in DECODES]
    assert min(counts) >= 25


# --- where it ends --------------------------------------------------------------------------------------------------


def head(*lines: str) -> bytes:
    return "\r\n".join(("POST /v1/completions?x=1 HTTP/1.1", "Host: x", *lines, "", "")).encode()


def chunked(pieces: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces if piece) + b"0\r\n\r\n"


def splits(data: bytes, at: list[int]) -> list[bytes]:
    cuts = sorted({min(each, len(data)) for each in at})
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


@given(body=st.binary(max_size=300), rest=st.binary(max_size=50), at=st.lists(st.integers(0, 400), max_size=6))
def test_a_body_of_known_length_ends_there(body: bytes, rest: bytes, at: list[int]) -> None:
    """However it comes; what follows it is kept for the next request."""
    framing = Framing(head(f"Content-Length: {len(body)}"))
    parts = [framing.body(piece) for piece in splits(body + rest, at)]
    assert b"".join(part for part, _ in parts) == body
    assert b"".join(rest for _, rest in parts) == rest
    assert framing.complete


@given(pieces=st.lists(st.binary(max_size=100), max_size=5), at=st.lists(st.integers(0, 400), max_size=6))
def test_a_chunked_body_passes_as_it_is_and_its_end_is_seen(pieces: list[bytes], at: list[int]) -> None:
    """Not a byte earlier."""
    raw = chunked(pieces)
    framing = Framing(head("Transfer-Encoding: chunked"))
    passed = b""
    for piece in splits(raw, at):
        assert not framing.complete
        passed += framing.body(piece)[0]
    assert passed == raw
    assert framing.complete


@given(st.binary(max_size=200))
def test_whatever_comes_is_a_request_or_refused(data: bytes) -> None:
    """No other error leaves the reader."""
    with contextlib.suppress(BadRequest):
        framing = Framing(data + b"\r\n\r\n")
        framing.body(data)


def test_a_head_is_rewritten_only_where_it_must_be() -> None:
    """Every byte of the others stays, in its order and its writing."""
    plain = head("X-Kept:  yes ", "Content-Length: 0")
    assert Framing(plain).head(plain, CONTROL) is plain
    control = head("X-Kept: yes", "X-Ballast-Plan: a", "X-GATEWAY-destination-endpoint-more: b", "Content-Length: 0")
    cleaned = Framing(control).head(control, CONTROL)
    assert cleaned.startswith(b"POST /v1/completions?x=1 HTTP/1.1\r\n")
    assert b"plan" not in cleaned.lower()
    assert b"destination" not in cleaned.lower()
    assert b"x-kept: yes" in cleaned
    assert Framing(cleaned).complete


@pytest.mark.parametrize("end", [b"\r\n\n", b"\n\n", b"\n\r\n", b"\r\r\n"])
def test_a_head_that_some_parsers_end_earlier_is_refused(end: bytes) -> None:
    """Else what follows would be a request that nobody has looked at."""
    hidden = b"GET /x HTTP/1.1\r\nHost: x\r\nx-data-parallel-rank: 1\r\n\r\n"
    with pytest.raises(BadRequest):
        Framing(b"GET / HTTP/1.1\r\nHost: x" + end + hidden)
