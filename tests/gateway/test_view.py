"""Several pickers and the agents of pods over real sockets: one ledger in all of them, whoever dispatched."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ballast_core.model import EndpointId, RequestId
from ballast_core.model.effects import Leave, Migrate
from ballast_gateway.app import Gateway
from ballast_gateway.picker import planned
from ballast_gateway.podapi import feed as feeds
from ballast_gateway.podapi import messages as said
from ballast_gateway.podapi.messages import Inventory, LeaveOrder, MoveOrder, Row
from ballast_gateway.view import service
from ballast_gateway.view.book import Book, Source
from ballast_gateway.view.publisher import row_of
from tests.gateway.test_keys import team, write
from tests.support.gateway_kit import until
from tests.support.view_kit import ViewFleet, address_of, ask, face_of, lines_of, scripted_agent, view_fleet, view_of


def booked(gateway: Gateway) -> dict[str, tuple[str, int]]:
    """Of a gateway's ledger, by the key that all gateways know: where it decodes, and its tokens."""
    assert gateway.pod_api is not None
    me = gateway.pod_api.view.me
    director, found = gateway.driver.director, dict[str, tuple[str, int]]()
    for entry in director.ledger:
        key = str(entry.request.id) if entry.adopted else f"{me}/{entry.request.id}"
        where = "" if entry.decode_slot is None else str(director.inventory.endpoint(entry.decode_slot).id)
        found[key] = where, entry.generated_tokens
    return found


def opened_by(gateway: Gateway, request_id: str) -> Row:
    """As the agent reports it that got the plan."""
    assert gateway.pod_api is not None
    entry = gateway.driver.director.ledger.entries[RequestId(request_id)]
    assert entry.decode_slot is not None
    inventory = gateway.driver.director.inventory
    prefill = "" if entry.prefill_slot is None else inventory.endpoint(entry.prefill_slot).id
    return row_of(entry.request, gateway.pod_api.view.me, inventory.endpoint(entry.decode_slot), prefill)


async def three(fleet: ViewFleet, **more: Any) -> list[Gateway]:
    return [await fleet.start(**more) for _ in range(3)]


async def test_a_request_is_in_every_ledger_until_its_holder_ends_it(tmp_path: Path) -> None:
    """Dispatched by one picker, held by an agent, followed by all; the record has tokens and a time to the first."""
    async with view_fleet(tmp_path) as fleet:
        gateways = await three(fleet)
        first = gateways[0]
        picked = ask(first, "r")
        assert picked.plan is not None
        assert picked.plan.prefill is not None
        picked.session.close(broken=False)
        (key,) = booked(first)
        decode = picked.plan.decode.id
        assert picked.headers["x-gateway-destination-endpoint"].startswith(fleet.addresses[decode])
        await until(lambda: all(booked(one) == {key: (decode, 0)} for one in gateways))
        feed = fleet.agents[decode].feed
        feed.say(said.Opened(request=opened_by(first, "r")))
        assert first.pod_api is not None
        await until(lambda: len(first.pod_api.view.publisher) == 0)
        feed.say(said.Prefilled(key=key))
        feed.say(said.Began(key=key))
        feed.progressed(key, 9)
        await until(lambda: all(booked(one)[key][1] == 1 or booked(one)[key][1] == 9 for one in gateways))
        feed.say(said.Ended(key=key, outcome="completed", output_tokens=9))
        await until(lambda: not any(booked(one) for one in gateways))
        (line,) = lines_of(first)
        assert (line["output_tokens"], line["outcome"]) == (9, "completed")
        assert line["ttft_s"] > 0


async def test_pods_without_an_agent_are_served_as_before_and_counted_by_all(tmp_path: Path) -> None:
    """The picker's own word is all that there is: its scrapes end it, and it tells the others."""
    async with view_fleet(tmp_path, agents=()) as fleet:
        gateways = await three(fleet)
        picked = ask(gateways[1], "r")
        assert picked.plan is None
        assert "x-prefiller-host-port" in picked.headers
        await until(lambda: all(len(booked(one)) == 1 for one in gateways))
        picked.session.close(broken=False)
        await until(lambda: not any(booked(one) for one in gateways))


@pytest.mark.rotating(3)
async def test_an_agent_that_never_confirms_is_no_holder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its time the request is one that scrapes end; the others are told so."""
    monkeypatch.setattr(planned, "CONFIRM_S", 0.05)
    async with view_fleet(tmp_path) as fleet:
        gateways = await three(fleet)
        ask(gateways[0], "r").session.close(broken=False)
        await until(lambda: len(booked(gateways[1])) == 1)
        await until(lambda: not any(booked(one) for one in gateways))
        assert not len(face_of(gateways[0]).unseen)


async def test_arrivals_at_once_spread_as_at_one_gateway(tmp_path: Path) -> None:
    """In waves over three pickers: what each knows of the others keeps the loads even."""
    async with view_fleet(tmp_path, ("p0", *(f"d{k}" for k in range(6))), agents=()) as fleet:
        gateways = await three(fleet, scrape={"intervalS": 30.0})
        for k in range(60):
            ask(gateways[k % 3], f"r{k}")
            if k % 3 == 2:
                await until(lambda seen=k + 1: all(len(booked(one)) == seen for one in gateways))
        decodes = [where for where, _ in booked(gateways[0]).values()]
        loads = [decodes.count(f"d{k}") for k in range(6)]
        assert max(loads) - min(loads) <= 3


async def test_a_restarted_gateway_knows_the_load_before_it_is_ready(tmp_path: Path) -> None:
    """Of agents and of pickers; until it has heard them all it is not ready."""
    async with view_fleet(tmp_path) as fleet:
        first = await fleet.start()
        for k in range(8):
            ask(first, f"r{k}").session.close(broken=False)
        held = [opened_by(first, f"r{k}") for k in range(4)]
        for row in held:
            fleet.agents[row.decode].feed.say(said.Opened(request=row))
        assert first.pod_api is not None
        await until(lambda: len(first.pod_api.view.publisher) == 4)
        second = await fleet.start(wait=False)
        await until(lambda: not second.not_ready())
        assert booked(second) == booked(first)  # from that moment on
        assert len(booked(second)) == 8


async def test_a_holder_that_cannot_be_reached_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is gone delays readiness by five seconds at most."""
    monkeypatch.setattr("ballast_gateway.view.fleet_view.HOPELESS_S", 0.3)
    async with view_fleet(tmp_path) as fleet:
        await fleet.agents["d1"].server.close()
        gateway = await fleet.start(wait=False)
        assert any("agent/d1" in reason for reason in gateway.not_ready())
        await until(lambda: not gateway.not_ready())
        assert gateway.pod_api is not None
        assert not gateway.pod_api.view.has_agent(EndpointId("d1"))


async def test_an_agent_that_restarts_is_heard_again_and_what_it_held_is_over(tmp_path: Path) -> None:
    """Its snapshot says so; nothing of before stays in any ledger."""
    async with view_fleet(tmp_path) as fleet:
        gateways = await three(fleet)
        picked = ask(gateways[0], "r")
        picked.session.close(broken=False)
        assert picked.plan is not None
        agent = fleet.agents[picked.plan.decode.id]
        agent.feed.say(said.Opened(request=opened_by(gateways[0], "r")))
        await until(lambda: all(view_of(one).book.sources[f"agent/{agent.name}"].keys for one in gateways))
        await agent.server.close()
        fleet.agents[agent.name] = await scripted_agent(agent.name, agent.port, "2")
        await until(lambda: not any(booked(one) for one in gateways))
        await until(lambda: all(view_of(one).has_agent(EndpointId(agent.name)) for one in gateways))


async def test_only_the_leader_moves_and_it_moves_what_others_dispatched(tmp_path: Path) -> None:
    """The least name leads; when it goes, the next one does. Orders go to the holder by the request's own name."""
    async with view_fleet(tmp_path) as fleet:
        gateways = await three(fleet)
        views = [one.pod_api.view for one in gateways if one.pod_api is not None]
        await until(lambda: [view.leads for view in views] == [view.me == min(v.me for v in views) for view in views])
        leader = min(range(3), key=lambda k: views[k].me)
        other = (leader + 1) % 3
        picked = ask(gateways[other], "r")
        picked.session.close(broken=False)
        assert picked.plan is not None
        key, decode = f"{views[other].me}/r", picked.plan.decode.id
        agent, target = fleet.agents[decode], next(name for name in fleet.agents if name != decode)
        agent.feed.say(said.Opened(request=opened_by(gateways[other], "r")))
        agent.feed.say(said.Prefilled(key=key))
        agent.feed.say(said.Began(key=key))
        await until(lambda: booked(gateways[leader]).get(key) == (decode, 1))
        inventory = gateways[leader].driver.director.inventory
        ends = [inventory.endpoint(inventory.slot_of(EndpointId(name)) or 0) for name in (decode, target)]
        orders = agent.holder.orders
        views[(leader + 2) % 3].order(Migrate(RequestId(key), ends[0], ends[1]))
        views[leader].order(Migrate(RequestId(key), ends[0], ends[1]))
        views[leader].order(Leave(RequestId(key), EndpointId("p0"), "silent"))
        await until(lambda: len([one for one in orders if not isinstance(one, Inventory)]) == 2)
        asked = [one for one in orders if not isinstance(one, Inventory)]
        assert sorted(asked, key=lambda one: type(one).__name__) == [
            LeaveOrder("r", "p0", "silent", views[other].me),
            MoveOrder("r", target, views[other].me),
        ]
        agent.feed.say(said.Moved(key=key, target=target))
        await until(lambda: all(booked(one)[key][0] == target for one in gateways))
        await gateways[leader].close()
        await until(lambda: sum(view.leads for k, view in enumerate(views) if k != leader) == 1)


async def test_agents_are_told_which_endpoints_take_work(tmp_path: Path) -> None:
    """At connection, and again when it changes."""
    async with view_fleet(tmp_path) as fleet:
        gateway = await fleet.start()
        agent = fleet.agents["d0"]

        def told() -> dict[str, bool]:
            lists = [one for one in agent.holder.orders if isinstance(one, Inventory)]
            return {one.id: one.usable for one in lists[-1].endpoints} if lists else {}

        await until(lambda: told() == {"p0": True, "d0": True, "d1": True})
        gateway.fleet.draining(EndpointId("d1"))
        await until(lambda: told() == {"p0": True, "d0": True, "d1": False})


ROW = said.Row(id="a", by="x", phase="prefilling", decode="d0", prompt_tokens=3)


@pytest.mark.parametrize(
    "more",
    [
        {"prompt_tokens": 2**63 - 1},
        {"prompt_tokens": -5000},
        {"blocks": (1, 2, 3)},
        {"blocks": (-1,), "block_size": 64},
        {"generated_tokens": 2**62, "phase": "decoding"},
    ],
    ids=str,
)
async def test_a_source_with_impossible_numbers_is_left_and_breaks_nobody(
    tmp_path: Path, more: dict[str, object]
) -> None:
    """Every gateway says which field it was, books nothing of it, and picks as before; once it is gone it is heard."""
    async with view_fleet(tmp_path) as fleet:
        gateways = [await fleet.start() for _ in range(2)]
        feed = fleet.agents["d0"].feed
        for decode in ("d0", "d1", "p0"):
            wrong = msgspec.structs.replace(ROW, id=decode, decode=decode, **more)
            feed.say(said.Opened(request=wrong))
        field = ".block_size" if more == {"blocks": (1, 2, 3)} else f".{next(iter(more))}"
        views = [view_of(gateway) for gateway in gateways]
        await until(lambda: all(field in view.report()["sources"][0]["problem"] for view in views))
        for gateway in gateways:
            assert not booked(gateway)
            assert ask(gateway, "r").headers["x-gateway-destination-endpoint"]
        for decode in ("d0", "d1", "p0"):
            feed.say(said.Ended(key=f"x/{decode}", outcome="completed"))
        await until(lambda: all(view_of(gateway).connected()[0] == 2 for gateway in gateways))


async def test_the_largest_numbers_that_a_line_may_have_are_counted(tmp_path: Path) -> None:
    """Their sums too, and picks go on."""
    async with view_fleet(tmp_path) as fleet:
        gateway = await fleet.start()
        feed = fleet.agents["d0"].feed
        most = {"prompt_tokens": said.MOST, "max_output_tokens": said.MOST, "priority": 10**18}
        for number in range(200):
            phase = ("prefilling", "decoding")[number % 2]
            tokens = said.MOST if phase == "decoding" else 0
            one = msgspec.structs.replace(ROW, id=f"{number}", phase=phase, generated_tokens=tokens, **most)
            feed.say(said.Opened(request=one))
        feed.say(said.Engine(endpoint="d0", running=said.MOST, waiting=said.MOST, kv_usage_ratio=1e9))
        await until(lambda: len(booked(gateway)) == 200)
        assert [ask(gateway, f"r{number}").headers["x-gateway-destination-endpoint"] for number in range(3)]
        assert view_of(gateway).connected() == (2, 0)


async def test_a_line_that_cannot_be_booked_ends_its_connection_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the reason; the other sources are heard on, and this one is asked anew."""
    take = Book._opened

    def breaks(book: Book, source: Source, row: said.Row, now_s: float) -> None:
        if row.id == "bad":
            raise ZeroDivisionError("no such thing")
        take(book, source, row, now_s)

    monkeypatch.setattr(Book, "_opened", breaks)
    async with view_fleet(tmp_path) as fleet:
        gateway = await fleet.start()
        fleet.agents["d0"].feed.say(said.Opened(request=msgspec.structs.replace(ROW, id="bad")))
        await until(lambda: "ZeroDivisionError" in view_of(gateway).report()["sources"][0]["problem"])
        fleet.agents["d1"].feed.say(said.Opened(request=msgspec.structs.replace(ROW, id="good", decode="d1")))
        await until(lambda: set(booked(gateway)) == {"x/good"})
        fleet.agents["d0"].feed.say(said.Ended(key="x/bad", outcome="completed"))
        await until(lambda: view_of(gateway).connected() == (2, 0))


async def test_no_client_has_a_gateway_refused_by_the_others(tmp_path: Path) -> None:
    """A priority beyond all bounds is told as the furthest."""
    async with view_fleet(tmp_path, agents=()) as fleet:
        first = await fleet.start(trust={"priorities": True})
        second = await fleet.start()
        await until(lambda: view_of(second).connected() == (0, 1))
        body = json.dumps({"model": "tiny", "prompt": "x" * 400, "priority": 10**30}).encode()
        ask(first, "r", body)
        await until(lambda: len(booked(second)) == 1)
        assert view_of(second).report()["sources"][0]["connected"]


@pytest.mark.rotating(3)
async def test_a_gateway_that_starts_beside_thousands_of_long_prompts_knows_them_all(tmp_path: Path) -> None:
    """Their snapshot is longer than a line may be: it comes in parts, while requests come and go."""
    async with view_fleet(tmp_path) as fleet:
        first = await fleet.start()
        feed = fleet.agents["d0"].feed
        blocks = tuple(range(2**64 - 2048, 2**64))
        for number in range(420):
            one = msgspec.structs.replace(
                ROW, id=f"{number}", prompt_tokens=131_072, blocks=blocks[number:] + blocks[:number], block_size=64
            )
            feed.say(said.Opened(request=one))
        assert len(said.write(feed.state())) > said.MOST_LINE_BYTES
        second = await fleet.start(wait=False)
        await until(lambda: feed.readers == 2)
        for number in range(400, 420):
            feed.say(said.Ended(key=f"x/{number}", outcome="completed"))
        await until(lambda: not second.not_ready(), 30)
        assert set(booked(second)) == {f"x/{number}" for number in range(400)}
        await until(lambda: set(booked(first)) == set(booked(second)))
        assert not [one for one in view_of(second).report()["sources"] if one["problem"]]


async def test_a_gateway_waits_for_the_last_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that has begun its snapshot is not heard yet."""
    monkeypatch.setattr(feeds, "PART_BYTES", 1000)
    monkeypatch.setattr(feeds.Feed, "go_on", lambda feed, reader: None)
    async with view_fleet(tmp_path) as fleet:
        feed = fleet.agents["d0"].feed
        for number in range(20):
            feed.say(said.Opened(request=msgspec.structs.replace(ROW, id=f"{number}")))
        gateway = await fleet.start(wait=False)
        view = view_of(gateway)
        await until(lambda: view.connected() == (1, 0) and len(booked(gateway)) > 0)
        assert view.waits_for() == ["agent/d0"]
        (reader,) = feed._readers
        while reader.left:
            assert not view.has_agent(EndpointId("d0"))
            reader.resume()
        await until(lambda: view.connected() == (2, 0) and not view.waits_for())
        assert len(booked(gateway)) == 20


async def test_a_stranger_is_not_believed(tmp_path: Path) -> None:
    """An agent with another token proves nothing: it is no source, and gets no plans."""
    async with view_fleet(tmp_path) as fleet:
        gateway = await fleet.start(wait=False)
        assert gateway.pod_api is not None
        snapshot = said.encode(said.Snapshot(holder="h", incarnation="1", holds="agent"), 1)
        head = b"HTTP/1.1 200 OK\r\nx-ballast-proof: 00\r\ncontent-length: 9999\r\n\r\n"

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(head + snapshot)
            await reader.read()
            writer.close()

        stranger = await asyncio.start_server(answer, "127.0.0.1", 0)
        view = gateway.pod_api.view
        view.follow_agents({EndpointId("d0"): f"127.0.0.1:{stranger.sockets[0].getsockname()[1]}"})
        await until(lambda: "proof" in view.report()["sources"][0]["problem"])
        assert not view.has_agent(EndpointId("d0"))
        stranger.close()


async def test_a_gateway_among_its_own_peers_hears_itself_once_and_leaves_it(tmp_path: Path) -> None:
    """One list of addresses may serve all gateways."""
    async with view_fleet(tmp_path) as fleet:
        gateway = await fleet.start()
        assert gateway.pod_api is not None
        view = gateway.pod_api.view
        view.follow_peers([address_of(gateway)])
        ask(gateway, "r")
        await until(lambda: not [one for one in view.report()["sources"] if one["source"].startswith("gateway/")])
        assert len(booked(gateway)) == 1
        assert view.leads


async def test_a_gateway_that_is_named_by_two_addresses_is_heard_once(tmp_path: Path) -> None:
    """One list may serve all hosts, and workers know each other on loopback: else each failure would count twice."""
    async with view_fleet(tmp_path, ("d0", "d1"), ()) as fleet:
        first, second = await fleet.start(), await fleet.start()
        port = second.ports["pod_api"]
        view = view_of(first)
        view.follow_peers([f"127.0.0.1:{port}", f"localhost:{port}"])
        await until(lambda: view.connected() == (0, 1) and view.peers() == 1)
        ask(second, "r")
        await until(lambda: len(booked(first)) == 1)
        assert view.book.holder_of(RequestId(next(iter(booked(first))))) is not None
        view.follow_peers([f"localhost:{port}"])
        await until(lambda: view.connected() == (0, 1))
        assert [one["address"] for one in view.report()["sources"]] == [f"localhost:{port}"]
        view.follow_peers([f"127.0.0.1:{port}", f"localhost:{port}"])
        await until(lambda: view.peers() == 1)
        await second.close()
        fleet.gateways.remove(second)
        await until(lambda: view.connected() == (0, 0) and view.peers() == 2)
        third = await fleet.start([first], podApi={"tokenFile": str(tmp_path / "token"), "port": port})
        view.follow_peers([f"127.0.0.1:{port}", f"localhost:{port}"])
        await until(lambda: view.connected() == (0, 1) and view.peers() == 1)
        assert list(view.gateways()) == [view_of(third).me]


async def test_another_gateway_of_the_same_name_is_not_taken_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hosts may be called alike: whoever looks for the peer that is not heard is told."""
    monkeypatch.setattr(service, "name_of", lambda port: "localhost")
    async with view_fleet(tmp_path, agents=()) as fleet:
        gateways = [await fleet.start(), await fleet.start(wait=False)]
        for gateway in gateways:
            await until(lambda one=gateway: "localhost" in view_of(one).report()["sources"][0]["problem"])


async def test_a_look_at_the_fleet_that_fails_is_not_the_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what sources that are gone had claimed would count for ever."""
    looks: list[float] = []

    def passes(book: Book, now_s: float) -> None:
        looks.append(now_s)
        raise RuntimeError("a fault of ours")

    async with view_fleet(tmp_path, agents=()) as fleet:
        await fleet.start()
        monkeypatch.setattr(Book, "passes", passes)
        await until(lambda: len(looks) >= 3)


async def test_a_request_that_was_served_elsewhere_is_booked_there_by_all(tmp_path: Path) -> None:
    """Its proxy went to a fall-back: the endpoint that was picked has no load of it in any ledger."""
    async with view_fleet(tmp_path, ("f0", "f1"), ()) as fleet:
        gateways = [await fleet.start(), await fleet.start()]
        ask(gateways[0], "r")
        ((key, (picked, _)),) = booked(gateways[0]).items()
        await until(lambda: booked(gateways[1]) == {key: (picked, 0)})
        other = EndpointId("f1" if picked == "f0" else "f0")
        ticket = gateways[0].driver.ticket(RequestId("r"))
        assert ticket is not None
        ticket.redirected(None, other, (EndpointId(picked),))
        assert booked(gateways[0]) == {key: (other, 0)}
        await until(lambda: booked(gateways[1]) == {key: (other, 0)})
        ticket.began()
        await until(lambda: booked(gateways[1]) == {key: (other, 1)})
        ticket.redirected(None, EndpointId(picked), ())
        await until(lambda: booked(gateways[1]).get(key, ("", 0))[0] == picked)
        entry = gateways[1].driver.director.ledger.entries[RequestId(key)]
        await until(lambda: entry.decodes)


async def test_streams_that_break_count_against_their_engine_where_they_were_dispatched(tmp_path: Path) -> None:
    """As at those that only follow: an engine that breaks what cannot go on elsewhere is ejected by all."""
    async with view_fleet(tmp_path, ("p0", "d0", "d1", "d2"), ("d0", "d1", "d2")) as fleet:
        gateways = [await fleet.start(), await fleet.start()]
        first = gateways[0]
        for number in range(24):
            picked = ask(first, f"r{number}")
            assert picked.plan is not None
            decode, key = picked.plan.decode.id, picked.plan.key
            picked.session.close(broken=False)
            feed = fleet.agents[decode].feed
            feed.say(said.Opened(request=opened_by(first, f"r{number}")))
            feed.say(said.Prefilled(key=key))
            feed.say(said.Began(key=key))
            if decode == "d0":
                feed.say(said.Ended(key=key, outcome="failed", output_tokens=1, fault="broke", status=200))
            else:
                feed.say(said.Ended(key=key, outcome="completed", output_tokens=9, status=200))
            await until(lambda: not any(booked(one) for one in gateways))
        for one in gateways:
            assert one.driver.director.health.report(EndpointId("d0")).state == "ejected"


@pytest.mark.rotating(4)
async def test_a_client_may_name_its_request_as_the_fleet_names_another_one(tmp_path: Path) -> None:
    """It gets a name of its own, and is served."""
    async with view_fleet(tmp_path) as fleet:
        first, second = await fleet.start(), await fleet.start()
        ask(first, "r")
        (key,) = booked(first)
        await until(lambda: key in booked(second))
        picked = ask(second, key)
        assert picked.plan is not None
        assert picked.plan.id.startswith(f"{key}~")
        picked.session.close(broken=True)
        await until(lambda: set(booked(second)) == {key})
        assert not second.driver.in_flight(RequestId(picked.plan.id))


async def test_a_picker_without_agents_forgets_what_ran_on_a_pod_that_is_gone(tmp_path: Path) -> None:
    """It counts no more, towards the limit of requests in flight either."""
    async with view_fleet(tmp_path, ("f0", "f1"), ()) as fleet:
        gateway = await fleet.start(scrape={"intervalS": 60.0})
        for number in range(6):
            ask(gateway, f"r{number}").session.close(broken=False)
        assert {where for where, _ in booked(gateway).values()} == {"f0", "f1"}
        gateway.fleet.gone(EndpointId("f0"))
        assert {where for where, _ in booked(gateway).values()} == {"f1"}
        assert gateway.driver.director.ledger.own == 3


async def test_a_tenants_limits_are_those_of_all_gateways_together(tmp_path: Path) -> None:
    """What one lets in counts at the other, from the dispatch to the end that the agent tells, with its tokens."""
    file = write(tmp_path / "keys", team("a", "one", maxInFlight=1, tokensPerMinute=100))
    key = {"x-api-key": "one"}
    async with view_fleet(tmp_path) as fleet:
        first, second = [await fleet.start(keys={"file": file}) for _ in range(2)]
        picked = ask(first, "r", more=key)
        assert picked.plan is not None
        picked.session.close(broken=False)
        (name,) = booked(first)
        await until(lambda: name in booked(second))
        refused = ask(second, "s", more=key)
        assert (refused.plan, lines_of(second)[-1]["reason"]) == (None, "tenant-limit")
        refused.session.close(broken=False)
        feed = fleet.agents[picked.plan.decode.id].feed
        feed.say(said.Opened(request=opened_by(first, "r")))
        feed.say(said.Ended(key=name, outcome="completed", output_tokens=300))
        await until(lambda: not any(booked(one) for one in (first, second)))
        for gateway in (first, second):
            late = ask(gateway, "t", more=key)
            assert (late.plan, lines_of(gateway)[-1]["reason"]) == (None, "tenant-limit")
            late.session.close(broken=False)
