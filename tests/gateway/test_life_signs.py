"""What legs and scrapes keep for the watch, and how the Director is told."""

from __future__ import annotations

import asyncio
from math import inf
from pathlib import Path

from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings, SettingsChanged
from ballast_core.directing.watch import WatchSettings
from ballast_core.model import EndpointId
from ballast_core.model.events import EndpointsHeard, Event
from ballast_core.model.life_signs import LifeSign
from ballast_core.policies.placement.placements import LeastRequests
from ballast_gateway.driver import WATCH_S, Driver
from ballast_gateway.life_signs import LifeSigns
from tests.support.gateway_kit import running_gateway, until
from tests.support.scripted_engine import Asked, scripted_engine

E0 = EndpointId("e0")


def test_an_endpoint_owes_something_from_its_first_leg_on() -> None:
    signs = LifeSigns().of(E0)
    signs.owe(1.0)
    signs.owe(2.0)
    signs.settle()
    assert (signs.legs, signs.owing_since_s) == (1, 1.0)
    signs.settle()
    signs.owe(3.0)
    assert (signs.legs, signs.owing_since_s) == (1, 3.0)


def test_scrapes_are_unanswered_since_the_first_of_them() -> None:
    signs = LifeSigns().of(E0)
    signs.asked(1.0)
    signs.asked(2.0)
    assert signs.asked_s == 1.0
    signs.answered()
    assert signs.asked_s == inf


def test_an_engine_stands_still_while_its_counts_do() -> None:
    """From the second scrape that shows the same. One that has computed nothing yet may compile."""
    signs = LifeSigns().of(E0)
    for computed, at_s, stood_s, computed_s in (
        (0, 1.0, inf, -inf),
        (0, 2.0, inf, -inf),
        (7, 3.0, inf, 3.0),
        (7, 4.0, 4.0, 3.0),
        (7, 5.0, 4.0, 3.0),
        (8, 6.0, inf, 6.0),
        (8, 7.0, 7.0, 6.0),
        (None, 8.0, inf, 6.0),  # it does not say
        (8, 9.0, inf, 6.0),
        (8, 10.0, 10.0, 6.0),
    ):
        signs.shown(computed, at_s, runs=True)
        assert (signs.stood_s, signs.computed_s) == (stood_s, computed_s), at_s
    signs.unseen()
    assert signs.stood_s == inf


def test_an_engine_without_requests_stands_not_still_and_is_seen_to_have_computed() -> None:
    """A short request may come and go between two scrapes."""
    signs = LifeSigns().of(E0)
    for computed, at_s, computed_s in ((7, 1.0, -inf), (7, 2.0, -inf), (9, 3.0, 3.0)):
        signs.shown(computed, at_s, runs=False)
        assert (signs.stood_s, signs.computed_s) == (inf, computed_s)


def test_the_director_is_told_on_its_own_clock_and_strangers_are_forgotten() -> None:
    """Those that still owe something are kept, whoever they are."""
    life_signs = LifeSigns()
    life_signs.of(E0).heard_s = 5.0
    life_signs.of(EndpointId("stranger"))
    life_signs.of(EndpointId("gone")).owe(4.0)
    told = life_signs.told(100.0, {E0})
    assert told == [LifeSign(E0, 0, heard_s=105.0), LifeSign(EndpointId("gone"), 1, owing_since_s=104.0)]
    assert life_signs.of(E0).heard_s == 5.0


def test_a_pause_of_the_gateway_is_forgiven_and_is_no_sign_of_life() -> None:
    life_signs = LifeSigns()
    signs = life_signs.of(E0)
    signs.owe(1.0)
    signs.heard_s = 2.0
    signs.asked(2.5)
    life_signs.forgive(3.0)
    assert (signs.heard_s, signs.owing_since_s, signs.asked_s) == (2.0, 5.0, 5.5)


class Listening(Director):
    """Keeps what it is told of life."""

    def __init__(self, watch: WatchSettings | None) -> None:
        policy = LeastRequests()
        super().__init__(DirectorSettings(prefill=policy, decode=policy, profiles={}, watch=watch))
        self.heard: list[EndpointsHeard] = []

    def on_event(self, event: Event | SettingsChanged, now_s: float) -> list:  # type: ignore[type-arg]
        if isinstance(event, EndpointsHeard):
            self.heard.append(event)
        return super().on_event(event, now_s)


async def test_the_driver_tells_at_each_tick_only_if_there_is_a_watch() -> None:
    watching, blind = Listening(WatchSettings()), Listening(None)
    drivers = [Driver(watching), Driver(blind)]
    for driver in drivers:
        driver.watch()
    await until(lambda: len(watching.heard) >= 2)
    assert not blind.heard
    for driver in drivers:
        driver.close()
    told = len(watching.heard)
    await asyncio.sleep(2 * WATCH_S)
    assert len(watching.heard) == told


async def test_a_client_that_reads_nothing_makes_no_engine_late(tmp_path: Path) -> None:
    """The gateway stops reading the engine meanwhile: its silence is ours."""

    async def endless(asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        event = b'data: {"choices": [{"index": 0, "text": "%b", "finish_reason": null}]}\n\n' % (b"x" * 8000)
        while True:
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()

    async with (
        scripted_engine(endless) as engine,
        running_gateway(tmp_path, {"f0": engine.address}) as gateway,
    ):
        signs = gateway.gateway.driver.life_signs.of(EndpointId("f0"))
        body = b'{"model": "tiny", "prompt": "a", "stream": true, "max_tokens": 100}'
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=1024)
        head = b"POST /v1/completions HTTP/1.1\r\nhost: g\r\ncontent-length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        await until(lambda: signs.heard_s > -inf and signs.legs == 0)
        writer.close()
        await until(lambda: gateway.gateway.proxy is not None and gateway.gateway.proxy.in_flight == 0)
        assert signs.legs == 0
