"""The account of the fleet where gateways learn of endpoints at different times: loads stand where requests run."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from ballast_core.directing.director import Director
from ballast_core.model import EndpointId, RequestId, Stage
from ballast_core.model.events import EndpointLost, EndpointObserved, RequestArrived
from ballast_gateway.app import Gateway
from ballast_gateway.podapi import messages as said
from ballast_gateway.podapi.messages import Message, Row
from ballast_gateway.view.book import Book
from ballast_gateway.view.fleet_view import TICK_S
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
from tests.support.gateway_kit import until
from tests.support.view_kit import ask, lines_of, scripted_agent, view_fleet, view_of


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


def agents_of(gateway: Gateway) -> list[str]:
    return [one["source"] for one in view_of(gateway).report()["sources"] if one["source"].startswith("agent/")]


async def test_what_runs_at_a_pod_that_is_not_ready_is_followed_to_its_end(tmp_path: Path) -> None:
    """A probe that fails under load, an agent that drains: clients get their answers, and that is what is recorded."""
    async with view_fleet(tmp_path, ("d0",), ("d0",)) as fleet:
        gateways = [await fleet.start(), await fleet.start()]
        plan = ask(gateways[0], "r").plan
        assert plan is not None
        feed = fleet.agents["d0"].feed
        running = Row(id="r", by=plan.by, phase="prefilling", decode="d0", prompt_tokens=100)
        feed.say(said.Opened(request=running))
        await until(lambda: all(view_of(one).book.sources["agent/d0"].keys for one in gateways))
        for gateway in gateways:
            gateway.fleet.gone(EndpointId("d0"))
        assert [len(one.driver.director.ledger) for one in gateways] == [1, 1]
        feed.say(said.Began(key=running.key))
        feed.say(said.Ended(key=running.key, outcome="completed", output_tokens=7))
        await until(lambda: not any(len(one.driver.director.ledger) or agents_of(one) for one in gateways))
        (line,) = lines_of(gateways[0])
        assert (line["outcome"], line["output_tokens"]) == ("completed", 7)


async def test_a_pod_that_is_ready_again_is_followed_on_and_another_one_of_its_name_from_its_start(
    tmp_path: Path,
) -> None:
    """What the first one held has ended with it."""
    async with view_fleet(tmp_path, ("d0",), ("d0",)) as fleet:
        gateway = await fleet.start()
        plan = ask(gateway, "r").plan
        assert plan is not None
        running = Row(id="r", by=plan.by, phase="prefilling", decode="d0", prompt_tokens=100)
        fleet.agents["d0"].feed.say(said.Opened(request=running))
        source = view_of(gateway).book.sources["agent/d0"]
        await until(lambda: bool(source.keys))
        member = gateway.fleet.members[EndpointId("d0")]
        gateway.fleet.gone(EndpointId("d0"))
        gateway.fleet.ready(member.endpoint, proven=True, pod_api=member.pod_api)
        await asyncio.sleep(2 * TICK_S)
        assert view_of(gateway).book.sources["agent/d0"] is source
        assert len(gateway.driver.director.ledger) == 1
        other = await scripted_agent("d0", incarnation="2")
        gateway.fleet.ready(member.endpoint, proven=True, pod_api=other.address)
        assert len(gateway.driver.director.ledger) == 0
        await until(lambda: view_of(gateway).has_agent(EndpointId("d0")))
        assert lines_of(gateway)[0]["outcome"] == "cancelled"
        await other.server.close()
