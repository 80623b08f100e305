"""Attainment at the gateway: each request once, against the objective of its class, by what its client saw."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballast_api.attainment_report import AttainmentReport, read_report, summed, together
from ballast_api.errors import InvalidInput
from ballast_api.gateway_settings import ClassObjective, GatewaySettings
from ballast_api.loading import parse_settings
from ballast_api.signatures import PROOF, RECIPIENT, Signed
from ballast_core.attainment import Counts, Threshold
from ballast_core.directing.settings import SettingsChanged
from ballast_core.model import Request, RequestId
from ballast_core.model.events import Event, RequestArrived
from ballast_gateway import admin as admin_api
from ballast_gateway.attainment import Attainment
from ballast_gateway.records import HOLDER_LOST, RequestRecord
from ballast_gateway.service_classes import ServiceClasses
from ballast_gateway.settings_file import News
from tests.support.gateway_kit import RunningGateway, post, raw_exchange, running_gateway, until
from tests.support.pod_api_calls import TOKEN
from tests.support.scripted_engine import SSE_HEAD, Asked, chunk, json_reply, scripted_engine, sse_events

PATH = "/v1/completions"
LATE_S = 1.6
"""Far above `TTFT_S`, which is far above what a prompt answer takes here."""
TTFT_S = 1.0
CLASSES: list[dict[str, Any]] = [
    {"name": "gold", "ttftS": TTFT_S, "match": {"headers": [{"name": "x-tier", "value": "gold"}]}, "priority": -5},
    {"name": "alias", "e2eS": 30.0, "match": {"model": "tiny-alias"}},
]


def with_objectives(values: list[dict[str, Any]]) -> GatewaySettings:
    return parse_settings(
        json.dumps({"model": {"servedNames": ["m"]}, "discovery": {"file": "e"}, "objectives": values})
    )


def objectives(*values: dict[str, Any]) -> list[ClassObjective]:
    return [ClassObjective.parse(value) for value in values]


async def script(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """By the prompt: prompt, late, refuse (400), fail, or hang until the client leaves."""
    match asked.body["prompt"]:
        case "refuse":
            writer.write(json_reply({"error": {"message": "no"}}, status=400))
            return
        case "fail":
            writer.write(json_reply({"error": {"message": "broken"}}, status=500))
            return
        case "hang":
            await asyncio.sleep(60)
        case "late":
            await asyncio.sleep(LATE_S)
    events = sse_events(["a", "b", "c"])
    writer.write(SSE_HEAD + b"".join(chunk(event) for event in events) + b"0\r\n\r\n")


async def report_of(gateway: RunningGateway) -> AttainmentReport:
    async with httpx.AsyncClient(base_url=gateway.admin_url) as admin:
        return read_report((await admin.get("/ballast/v1/attainment")).content)


def counted(report: AttainmentReport, name: str, threshold: Threshold = Threshold.JOINT) -> Counts:
    return summed((each for each in report.objectives if each.name == name), 300, threshold)


async def ask(gateway: RunningGateway, prompt: str, tier: str = "gold", model: str = "tiny") -> float:
    """Seconds to the whole answer, by the client's own clock."""
    began_s = time.monotonic()
    body = {"model": model, "prompt": prompt, "stream": True, "max_tokens": 3}
    await raw_exchange(gateway.port, post(PATH, body, f"x-tier: {tier}"), answers=1)
    return time.monotonic() - began_s


@pytest.mark.rotating(3)
async def test_each_way_to_end_counts_as_it_must(tmp_path: Path) -> None:
    """Prompt and late ones as their clients timed them; failed ones missed; refused and abandoned ones not at all."""
    async with (
        scripted_engine(script) as engine,
        running_gateway(
            tmp_path,
            {"f0": engine.address},
            objectives=CLASSES,
            limits={"maxRetries": 0},
            health={"failuresInARow": 100},
            watch={"enabled": False},
        ) as gateway,
    ):
        timed = await asyncio.gather(*(ask(gateway, "prompt") for _ in range(12)))
        timed += await asyncio.gather(*(ask(gateway, "late") for _ in range(5)))
        for prompt in ("fail", "fail", "refuse"):
            await ask(gateway, prompt)
        _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(post(PATH, {"model": "tiny", "prompt": "hang", "stream": True}, "x-tier: gold"))
        await until(lambda: engine.asked[-1].body["prompt"] == "hang")
        writer.close()
        await until(lambda: len(gateway.requests()) == 21)
        await ask(gateway, "late", tier="none", model="tiny-alias")
        await ask(gateway, "prompt", tier="none")
        report = await report_of(gateway)
        async with httpx.AsyncClient(base_url=gateway.admin_url) as admin:
            metrics = (await admin.get("/metrics")).text
            traffic = [json.loads(line) for line in (await admin.get("/ballast/v1/traffic")).text.splitlines()]
    within = sum(took_s < TTFT_S for took_s in timed)
    assert within == 12  # else this machine stood still, and nothing is shown
    assert counted(report, "gold") == Counts(12, 5 + 2, 0)
    assert counted(report, "gold", Threshold.TTFT) == Counts(12, 5 + 2, 0)
    assert counted(report, "alias") == Counts(1, 0, 0)
    named = 'ballast_gateway_objective_requests_total{objective="gold",'
    assert f'{named}result="outside",threshold="joint"}} 7.0' in metrics
    assert f'{named}result="within",threshold="ttft"}} 12.0' in metrics
    assert 'ballast_gateway_objective_target_ratio{objective="alias"} 0.99' in metrics
    logged = [line for line in gateway.requests() if line.get("objective") == "gold"]
    assert [line.get("met") for line in logged].count(True) == 12
    assert [line.get("met") for line in logged].count(None) == 2
    rows = [row for row in traffic if row.get("objective") == "gold"]
    assert ([row["met"] for row in rows if "met" in row].count(False), len(rows)) == (7, 21)
    assert {row["priority"] for row in rows} == {-5}
    assert [row["outcome"] for row in traffic if "objective" not in row] == ["completed"]


@pytest.mark.parametrize("trusted", [False, True], ids=["untrusted", "trusted"])
async def test_a_class_gives_its_requests_a_priority_and_a_ttft_to_be_admitted_by(
    tmp_path: Path, trusted: bool
) -> None:
    """Where the request says no priority itself, and is believed if it does. Others have neither."""
    arrived: dict[str, Request] = {}

    def hear(event: Event | SettingsChanged) -> None:
        if isinstance(event, RequestArrived):
            arrived[event.request.id] = event.request

    async with (
        scripted_engine(script) as engine,
        running_gateway(tmp_path, {"f0": engine.address}, objectives=CLASSES, trust={"priorities": trusted}) as gateway,
    ):
        gateway.gateway.driver.on_event = hear
        for name, tier, own in (("a", "gold", {}), ("b", "gold", {"priority": 0}), ("c", "none", {"priority": 7})):
            body = {"model": "tiny", "prompt": "x", "stream": True} | own
            await raw_exchange(gateway.port, post(PATH, body, f"x-tier: {tier}", f"x-request-id: {name}"), answers=1)
    found = {name: (request.priority, request.ttft_objective_s) for name, request in arrived.items()}
    expected = {"a": (-5, TTFT_S), "b": (0, TTFT_S), "c": (7, None)}
    assert found == (expected if trusted else {"a": (-5, TTFT_S), "b": (-5, TTFT_S), "c": (0, None)})


@pytest.mark.rotating(3)
async def test_objectives_reach_a_running_gateway(tmp_path: Path) -> None:
    """A changed target keeps the counts; changed thresholds begin anew; requests that come are held to the new ones."""
    async with (
        scripted_engine(script) as engine,
        running_gateway(tmp_path, {"f0": engine.address}, objectives=[{"name": "all", "ttftS": 60.0}]) as gateway,
    ):

        def take(**objective: Any) -> None:
            data = gateway.gateway.settings.dump() | {"objectives": [{"name": "all", **objective}]}
            gateway.gateway.hear(News("hash", GatewaySettings.parse(data)))

        await ask(gateway, "prompt")
        take(ttftS=60.0, attainment=0.5)
        await ask(gateway, "prompt")
        assert counted(await report_of(gateway), "all") == Counts(2)
        take(ttftS=TTFT_S)
        await ask(gateway, "late")
        assert counted(await report_of(gateway), "all") == Counts(0, 1)


@pytest.mark.rotating(3)
async def test_what_is_shed_has_missed(tmp_path: Path) -> None:
    """With one place and no queue, all but the first are answered 429, and count."""
    async with (
        scripted_engine(script) as engine,
        running_gateway(
            tmp_path, {"f0": engine.address}, objectives=CLASSES, limits={"maxInFlight": 1}, watch={"enabled": False}
        ) as gateway,
    ):
        first = asyncio.create_task(ask(gateway, "late"))
        await until(lambda: len(engine.asked) == 1)
        await asyncio.gather(*(ask(gateway, "prompt") for _ in range(4)))
        await first
        assert counted(await report_of(gateway), "gold") == Counts(0, 5, 0)


@pytest.mark.rotating(3)
async def test_a_whole_answer_is_timed_inside(tmp_path: Path) -> None:
    """The client sees nothing before the end; the first token within it is what counts."""

    async def slow_end(asked: Asked, writer: asyncio.StreamWriter) -> None:
        first, *others = sse_events(["a", "b", "c"])
        writer.write(SSE_HEAD + chunk(first))
        await writer.drain()
        await asyncio.sleep(LATE_S)
        writer.write(b"".join(chunk(event) for event in others) + b"0\r\n\r\n")

    classes = [{"name": "all", "ttftS": TTFT_S}, {"name": "never", "ttftS": 9.0}]
    async with (
        scripted_engine(slow_end) as engine,
        running_gateway(tmp_path, {"f0": engine.address}, objectives=classes) as gateway,
    ):
        body = {"model": "tiny", "prompt": "x", "stream": True, "max_tokens": 3}
        await raw_exchange(gateway.port, post(PATH, body), answers=1)
        report = await report_of(gateway)
        assert (counted(report, "all"), counted(report, "never")) == (Counts(1, 0, 0), Counts())


@pytest.mark.rotating(3)
async def test_two_gateways_sum_up_and_a_restart_loses_windows_alone(tmp_path: Path) -> None:
    """Each request is in one gateway's counts; a gateway that starts anew begins at zero, and says since when."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with scripted_engine(script) as engine:
        fleet: dict[str, Any] = {"objectives": CLASSES}
        async with running_gateway(tmp_path / "a", {"f0": engine.address}, **fleet) as first:
            async with running_gateway(tmp_path / "b", {"f0": engine.address}, **fleet) as second:
                for number in range(9):
                    await ask(first if number % 3 else second, "prompt")
                await asyncio.gather(ask(first, "late"), ask(second, "late"))
                parts = [await report_of(first), await report_of(second)]
            assert [counted(part, "gold").requests for part in parts] == [7, 4]
            both = [each for part in parts for each in part.objectives if each.name == "gold"]
            assert summed(both, 60, Threshold.JOINT).requests == 11
            assert summed(both, 3600, Threshold.JOINT).outside == 2
            async with running_gateway(tmp_path / "b", {"f0": engine.address}, **fleet) as again:
                report = await report_of(again)
                assert counted(report, "gold") == Counts()
                assert report.since_unix_s > parts[1].since_unix_s
                await ask(again, "prompt")
                assert counted(await report_of(again), "gold") == Counts(1, 0, 0)


async def test_a_gateway_that_is_asked_for_its_counts_alone_loads_no_framework(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator asks each gateway every few seconds; other methods and paths are the admin API's."""
    built: list[str] = []
    make = admin_api.build_admin

    def build(**parts: Any) -> Any:
        built.append("admin")
        return make(**parts)

    monkeypatch.setattr(admin_api, "build_admin", build)
    async with (
        running_gateway(tmp_path, {}, objectives=CLASSES) as gateway,
        httpx.AsyncClient(base_url=gateway.admin_url) as admin,
    ):
        answer = await admin.get("/ballast/v1/attainment")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        assert built == []
        assert (await admin.post("/ballast/v1/attainment")).status_code == 404
        assert built == ["admin"]


async def test_the_fleets_own_may_ask_from_anywhere_without_sending_the_token(tmp_path: Path) -> None:
    """Signed, and answered with a proof. A signature of another token, for another path or used twice is refused."""
    token = tmp_path / "token"
    token.write_bytes(TOKEN)
    (tmp_path / "admin").write_text("admin-token\n")
    async with (
        running_gateway(
            tmp_path,
            {},
            podApi={"tokenFile": str(token), "port": 0},
            admin={"tokenFile": str(tmp_path / "admin")},
            objectives=CLASSES,
        ) as gateway,
        httpx.AsyncClient(base_url=gateway.admin_url) as admin,
    ):
        target = "/ballast/v1/traffic?minutes=1"
        first = Signed(TOKEN, "GET", target, b"", time.time())
        asked = await admin.get(target, headers={"authorization": first.authorization})
        to = asked.headers[RECIPIENT]
        assert asked.status_code == 401
        signed = Signed(TOKEN, "GET", target, b"", time.time(), to=to)
        answer = await admin.get(target, headers={"authorization": signed.authorization})
        assert answer.status_code == 200
        assert signed.is_proof(answer.headers[PROOF])
        again = await admin.get(target, headers={"authorization": signed.authorization})
        other = Signed(TOKEN, "GET", target, b"", time.time(), to=to)
        elsewhere = await admin.get("/ballast/v1/endpoints", headers={"authorization": other.authorization})
        stranger = Signed(b"x" * 32, "GET", target, b"", time.time(), to=to)
        strange = await admin.get(target, headers={"authorization": stranger.authorization})
        unsigned = await admin.get(target)
        assert [each.status_code for each in (again, elsewhere, strange, unsigned)] == [401] * 4
        bearer = await admin.get(target, headers={"authorization": "Bearer admin-token"})
        assert (bearer.status_code, PROOF in bearer.headers) == (200, False)


CHOICES: list[tuple[str, dict[str, str], str | None]] = [
    ("m", {}, None),
    ("m", {"x-tier": "gold"}, "gold"),
    ("n", {"x-tier": "gold"}, "gold"),
    ("n", {}, "of-n"),
    ("m", {"x-tier": "silver"}, None),
    ("m", {"x-tier": "silver", "x-team": "a"}, "both"),
]


@pytest.mark.parametrize(("model", "given", "expected"), CHOICES, ids=str)
def test_the_first_class_counts_whose_every_condition_holds(
    model: str, given: dict[str, str], expected: str | None
) -> None:
    """In the order of the settings."""
    team = [{"name": "x-tier", "value": "silver"}, {"name": "x-team", "value": "a"}]
    classes = ServiceClasses(
        objectives(
            {"name": "gold", "ttftS": 1.0, "match": {"headers": [{"name": "x-tier", "value": "gold"}]}},
            {"name": "of-n", "ttftS": 1.0, "match": {"model": "n"}},
            {"name": "both", "ttftS": 1.0, "match": {"model": "m", "headers": team}},
        )
    )
    found = classes.objective(model, given.get)
    assert (None if found is None else found.name) == expected


def record(classes: ServiceClasses, **more: Any) -> RequestRecord:
    found = classes.objective("m", lambda name: None)
    asked = Request(RequestId("r"), 10)
    times: dict[str, Any] = {"arrived_s": 90.0, "first_token_s": 90.5, "ended_s": 91.5, "output_tokens": 11}
    return RequestRecord(id="r", asked=asked, objective=found, **{**times, **more})


ENDS: list[tuple[str, dict[str, Any], Counts]] = [
    ("served", {}, Counts(1, 0, 0)),
    ("routed", {"outcome": "routed", "first_token_s": None, "tokens_seen": False}, Counts(0, 0, 1)),
    ("first token seen, tokens not", {"output_tokens": 0, "tokens_seen": False}, Counts(0, 0, 1)),
    ("late, tokens not seen", {"first_token_s": 92.5, "ended_s": 93.0, "tokens_seen": False}, Counts(0, 1, 0)),
    ("failed", {"outcome": "failed", "reason": "upstream-broke"}, Counts(0, 1, 0)),
    ("shed", {"outcome": "rejected", "reason": "saturated", "first_token_s": None}, Counts(0, 1, 0)),
    ("client gone", {"outcome": "cancelled", "reason": "client-gone"}, Counts()),
    ("cancelled by order", {"outcome": "failed", "reason": "cancelled"}, Counts()),
    ("holder lost", {"outcome": "cancelled", "reason": HOLDER_LOST}, Counts(0, 0, 1)),
    ("client's fault", {"outcome": "invalid", "reason": "upstream-400"}, Counts()),
]


@pytest.mark.parametrize(("more", "expected"), [each[1:] for each in ENDS], ids=[each[0] for each in ENDS])
def test_an_end_counts_by_what_is_known_of_it(more: dict[str, Any], expected: Counts) -> None:
    """TTFT 1 s, TPOT 0.2 s."""
    classes = ServiceClasses(objectives({"name": "a", "ttftS": 1.0, "tpotS": 0.2}))
    attainment = Attainment(classes, now_s=lambda: 100.0, unix_s=1e9)
    ended = record(classes, **more)
    attainment(ended)
    [found] = read_report(attainment.report()).objectives
    assert found.counts(60, Threshold.JOINT) == expected
    assert ended.met is (None if not expected.within + expected.outside else expected.within == 1)


def test_counts_outlive_a_change_of_target_but_not_of_thresholds() -> None:
    """Other thresholds are another question; requests keep the objective that they came with."""
    classes = ServiceClasses(objectives({"name": "a", "ttftS": 1.0}))
    attainment = Attainment(classes, now_s=lambda: 100.0, unix_s=1e9)

    def joint() -> Counts:
        return read_report(attainment.report()).objectives[0].counts(60, Threshold.JOINT)

    attainment(record(classes))
    in_flight = record(classes)
    attainment.adopt(objectives({"name": "a", "ttftS": 1.0, "attainment": 0.5, "priority": 3}))
    assert joint() == Counts(1, 0, 0)
    attainment(in_flight)
    assert joint() == Counts(2, 0, 0)
    early = record(classes)
    attainment.adopt(objectives({"name": "a", "ttftS": 0.1, "attainment": 0.5}))
    assert joint() == Counts()
    attainment(early)
    assert (early.met, joint()) == (True, Counts())


@pytest.mark.parametrize(
    ("classes", "field"),
    [
        ([{"name": "a", "ttftS": 1.0}, {"name": "a", "ttftS": 2.0}], "objectives[1]"),
        ([{"name": "a"}], "objectives[0].ttftS"),
        ([{"name": "a", "ttftS": 0}], "objectives[0].ttftS"),
        ([{"name": "", "ttftS": 1.0}], "objectives[0].name"),
    ],
)
def test_wrong_objectives_are_refused_with_their_field(classes: list[dict[str, Any]], field: str) -> None:
    """As in a manifest."""
    with pytest.raises(InvalidInput) as caught:
        with_objectives(classes)
    assert [problem.field for problem in caught.value.problems] == [field]


def test_there_are_sixteen_objectives_at_most() -> None:
    """So memory and series are bounded."""
    most = [{"name": f"class-{number}", "ttftS": 1.0} for number in range(17)]
    assert len(with_objectives(most[:16]).objectives) == 16
    with pytest.raises(InvalidInput):
        with_objectives(most)


def test_workers_that_go_by_other_thresholds_are_not_added_up() -> None:
    """One has taken an objective's new thresholds, the other one has not yet: each counts for its own."""
    reports = []
    for thresholds in ({"ttftS": 1.0}, {"ttftS": 1.0}, {"ttftS": 2.0}, {"ttftS": 1.0, "e2eS": 9.0}):
        classes = ServiceClasses(with_objectives([{"name": "all", **thresholds}]).objectives)
        counted = Attainment(classes, now_s=lambda: 0.0, unix_s=0.0)
        [objective] = classes.objectives
        counted(RequestRecord("r", 0.0, first_token_s=0.5, ended_s=1.0, output_tokens=2, objective=objective))
        reports.append(read_report(counted.report()))
    found = read_report(together(reports)).objectives
    assert [(each.ttft_s, each.e2e_s) for each in found] == [(1.0, None), (2.0, None), (1.0, 9.0)]
    assert [each.counts(60, Threshold.JOINT).requests for each in found] == [2, 1, 1]
