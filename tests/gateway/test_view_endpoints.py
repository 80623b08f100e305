"""The account of the fleet where gateways learn of endpoints at different times: loads stand where requests run."""

from __future__ import annotations

import random

import pytest

from ballast_core.directing.director import Director
from ballast_core.model import EndpointId, RequestId, Stage
from ballast_core.model.events import EndpointLost, EndpointObserved, RequestArrived
from ballast_gateway.podapi import messages as said
from ballast_gateway.podapi.messages import Message
from ballast_gateway.view.book import Book
from tests.gateway.test_view_book import (
    ENDPOINTS,
    OPERATIONS,
    Fleet,
    Own,
    booked,
    ends_with_the_truth,
    observer,
    row,
    snapshot,
)
from tests.support.core_builders import endpoint, request


def known(book: Book, d: Director, name: str) -> None:
    """Discovery has it now."""
    d.on_event(EndpointObserved(endpoint(name)), 50.0)
    book.endpoints_changed()


def test_a_request_counts_where_it_decodes_though_who_computed_its_prompt_is_gone() -> None:
    """Prefill pods are rolled out while answers run: a gateway that starts then knows of their decodes all the same."""
    book, d = observer(names=("d0",))
    decodes = row("gw-b", "decodes", prefill="p0", phase="decoding", generated_tokens=40)
    book.take("a0", snapshot(decodes, row("gw-b", "to-come", prefill="p0")), 0.0)
    assert booked(d) == {"gw-b/decodes": ("d0", True, 40)}
    book.take("a0", said.Prefilled(key="gw-b/to-come"), 1.0)
    book.take("a0", said.Began(key="gw-b/to-come"), 1.1)
    assert booked(d)["gw-b/to-come"] == ("d0", True, 1)
    for name in ("decodes", "to-come"):
        book.take("a0", said.Ended(key=f"gw-b/{name}", outcome="completed"), 2.0)
    assert (len(d.ledger), len(book)) == (0, 0)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("how", ["moved", "redirected", "redirected with a prefill"])
def test_a_request_that_goes_where_no_endpoint_is_known_leaves_where_it_was(own: bool, how: str) -> None:
    """Another gateway may hear of a new pod first: once it is known here, too, the load stands there."""
    book, d = observer(names=("p0", "d0"))
    name, by = ("r", "gw-a") if own else ("gw-b/r", "gw-b")
    key = f"{by}/r"
    if own:
        d.on_event(RequestArrived(request("r")), 0.0)
        book.own[RequestId("r")] = Own()
    book.take("a0", snapshot(row(by, "r", phase="decoding", generated_tokens=5)), 0.1)
    assert booked(d) == {name: ("d0", True, 5)}
    lines: list[Message] = [said.Moved(key=key, target="d1")]
    if how != "moved":
        prefill = "p0" if how == "redirected" else "p9"
        lines = [said.Redirected(key=key, decode="d1", prefill=prefill), said.Prefilled(key=key), said.Began(key=key)]
    for message in [*lines, said.Progressed(tokens={key: 30})]:
        book.take("a0", message, 1.0)
    slot = d.inventory.slot_of(EndpointId("d0"))
    assert d.ledger.requests[Stage.DECODE][slot] == 0
    d.on_event(EndpointLost(EndpointId("d0")), 2.0)
    known(book, d, "d1")
    assert booked(d) == {name: ("d1", True, 30)}
    book.take("a0", said.Moved(key=key, target="d2"), 60.0)
    known(book, d, "d0")
    book.take("a0", said.Moved(key=key, target="d0"), 61.0)
    assert booked(d) == {name: ("d0", True, 30)}
    book.take("a0", said.Ended(key=key, outcome="completed"), 62.0)
    if own:
        assert book.own[RequestId("r")].heard[-1] == ("completed", 0)  # type: ignore[attr-defined]
    else:
        assert len(d.ledger) == 0
    assert len(book) == 0


def test_a_request_that_is_prefilled_where_no_endpoint_is_known_counts_once_it_decodes() -> None:
    """Its leg had failed, and its holder went to a prefill endpoint that is not known here."""
    book, d = observer(names=("p0", "d0"))
    book.take("a0", snapshot(row("gw-b", "r")), 0.0)
    book.take("a0", said.Redirected(key="gw-b/r", decode="d0", prefill="p9"), 1.0)
    assert not any(d.ledger.requests[stage].any() for stage in Stage)
    book.take("a0", said.Prefilled(key="gw-b/r"), 2.0)
    assert booked(d) == {"gw-b/r": ("d0", True, 0)}


class Changing(Fleet):
    """Its endpoints come and go, as this gateway hears of them; who holds requests knows all of them."""

    def step(self, what: str, pick: int, other: int) -> None:
        if what not in ("lost", "known"):
            super().step(what, pick, other)
            return
        self.now_s += 0.01
        name = ENDPOINTS[pick % len(ENDPOINTS)]
        at_s = self.now_s
        event = EndpointLost(EndpointId(name)) if what == "lost" else EndpointObserved(endpoint(name))
        self.director.on_event(event, at_s)
        self.book.endpoints_changed()


@pytest.mark.parametrize("seed", range(40))
def test_whatever_a_gateway_knew_of_endpoints_it_ends_with_the_truth_once_it_knows_them(seed: int) -> None:
    """Requests begin, move, fail and end meanwhile, and connections break."""
    rng = random.Random(seed)
    rare = ["lose", "restart", *["connect"] * 6, "time", "read all", *["lost", "known"] * 8]
    often = [*OPERATIONS, *["dispatch", "arrive", "retry"] * 2, "begin", *["order", "stay"] * 3, *["read"] * 20]
    words = rng.choices(rare, k=40) + rng.choices(often, k=160)
    rng.shuffle(words)
    fleet = Changing()
    script = [("lost", rng.randrange(8), 0), *((word, rng.randrange(8), rng.randrange(4)) for word in words)]
    ends_with_the_truth([*script, *(("known", pick, 0) for pick in range(len(ENDPOINTS)))], fleet)
