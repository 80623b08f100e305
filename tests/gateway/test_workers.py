"""Several processes of one gateway: one set of ports, one admin port, one signal; dead ones come back."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import resource
import signal
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import ValidationError

from ballast_api.attainment_report import ATTAINMENT, read_report, summed
from ballast_api.demand_report import DEMAND, read_demand
from ballast_api.recorded_traffic import TRAFFIC
from ballast_cli.demo.ports import free_port
from ballast_core.attainment import Threshold
from ballast_gateway.live.page import page
from ballast_gateway.live.rows import EVENTS, LIVE, PAGE, REQUEST, WORKERS
from ballast_gateway.logs import LineWriter
from ballast_gateway.who_may_ask import WhoMayAsk
from ballast_gateway.workers import admin as worker_admin
from ballast_gateway.workers.admin import merged
from tests.gateway.test_keys import team
from tests.gateway.test_keys import write as write_keys
from tests.support.gateway_kit import endpoints_text, post, raw_exchange, settings, until
from tests.support.scripted_engine import Asked, completion, decode_script, json_reply, scripted_engine

pytestmark = pytest.mark.rotating(4, each=True)

PATH, BODY = "/v1/completions", {"model": "tiny", "prompt": "hello", "max_tokens": 3}


@dataclass(slots=True)
class Running:
    """A supervisor with its workers."""

    process: asyncio.subprocess.Process
    ports: dict[str, int]
    folder: Path

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.ports['admin']}"

    def workers(self) -> list[int]:
        """Process ids."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in listed.split()]

    async def metrics(self) -> str:
        async with httpx.AsyncClient() as client:
            return (await client.get(f"{self.admin_url}/metrics")).text

    async def served(self) -> Counter[str]:
        """Requests that have ended, by worker."""
        found: Counter[str] = Counter()
        for row in (await self.metrics()).splitlines():
            if row.startswith("ballast_gateway_requests_total{") and (which := re.search(r'worker="(\d+)"', row)):
                found[which[1]] += int(float(row.rpartition(" ")[2]))
        return found

    async def ready(self) -> None:
        async with asyncio.timeout(60), httpx.AsyncClient() as client:
            while (await client.get(f"{self.admin_url}/readyz")).status_code != 200:  # noqa: ASYNC110 - of another process
                await asyncio.sleep(0.02)

    async def ask(self) -> int:
        """A request over a connection of its own; returns its status."""
        [answer] = await raw_exchange(self.ports["proxy"], post(PATH, BODY), answers=1)
        return answer.status

    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "err.log").read_text().splitlines()]


def begun(worker: int) -> bool:
    """Whether this process runs the worker's program yet: until then its supervisor waits for it to do so."""
    return b"ballast_gateway.workers.process" in Path(f"/proc/{worker}/cmdline").read_bytes()


def written(folder: Path, addresses: dict[str, str], **more: Any) -> Path:
    (folder / "endpoints.yaml").write_text(endpoints_text(addresses))
    data = {"workers": 2, "limits": {"drainGraceS": 0}, **more}
    (folder / "gateway.yaml").write_text(settings(folder / "endpoints.yaml", **data).to_yaml())
    return folder / "gateway.yaml"


COMMAND = ("-m", "ballast_cli")
IMPATIENT = (
    "-c",
    "from ballast_cli.start import run\n"
    "from ballast_gateway.workers import supervisor\n"
    "supervisor._LOOK_S = 0.1\n"
    "supervisor._LONGEST_START_S = 15.0\n"
    "run()",
)
"""Looks at its workers a hundred times as often, and waits an eighth of the time for a new one."""


@asynccontextmanager
async def running(
    folder: Path, addresses: dict[str, str], *, command: tuple[str, ...] = COMMAND, **more: Any
) -> AsyncIterator[Running]:
    """Workers that are ready; none is left at the end."""
    config = written(folder, addresses, **more)
    with (folder / "out.log").open("wb") as out, (folder / "err.log").open("wb") as err:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *command, "gateway", "--config", str(config)), stdout=out, stderr=err
        )
    pids: list[int] = []
    try:
        at = Running(process, {}, folder)
        await until(
            lambda: process.returncode is not None or '"event": "listening"' in (folder / "err.log").read_text(), 60
        )
        assert process.returncode is None, (folder / "err.log").read_text()
        [listening] = [each for each in at.messages() if each.get("event") == "listening"]
        at.ports = listening["ports"]
        await at.ready()
        pids = at.workers()
        yield at
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await until(lambda: not any(map(alive, pids)), 60)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


async def test_attainment_demand_and_traffic_are_those_of_all_workers_together(tmp_path: Path) -> None:
    """Each request once, and shared prefixes shared; `?worker=N` asks one alone. Strangers get neither."""
    (tmp_path / "token").write_text("admin-token\n")
    more: dict[str, Any] = {
        "objectives": [{"name": "all", "ttftS": 60.0}],
        "admin": {"tokenFile": str(tmp_path / "token")},
    }
    async with scripted_engine(decode_script) as engine, running(tmp_path, {"d0": engine.address}, **more) as at:
        for number in range(40):
            body = {"model": "tiny", "prompt": [number % 2] * 64, "max_tokens": 3}
            await raw_exchange(at.ports["proxy"], post(PATH, body), answers=1)
        token = {"authorization": "Bearer admin-token"}
        async with httpx.AsyncClient(base_url=at.admin_url, headers=token) as admin:

            async def requests(**asked: str) -> int:
                report = read_report((await admin.get(ATTAINMENT, params=asked)).content)
                return summed(report.objectives, 300, Threshold.JOINT).requests

            parts = [await requests(worker="0"), await requests(worker="1")]
            assert min(parts) > 0
            assert (await requests(), sum(parts)) == (40, 40)
            demand = read_demand((await admin.get(DEMAND)).content)
            assert (sum(demand.arrivals), len(demand.requests)) == (40, 40)
            rows = [json.loads(line) for line in (await admin.get(TRAFFIC)).text.splitlines()]
            assert len(rows) == 40
            assert {tuple(row["hash_ids"]) for row in rows} == {(0,), (1,)}
            assert rows == sorted(rows, key=lambda row: row["arrival_s"])
            assert len((await admin.get(TRAFFIC, params={"limit": 3})).text.splitlines()) == 3
            assert len((await admin.get(TRAFFIC, params={"limit": "3.0"})).text.splitlines()) == 3
            assert (await admin.get(TRAFFIC, params={"limit": 0})).status_code == 422
            assert (await admin.get(TRAFFIC, headers={"authorization": "Bearer other"})).status_code == 401


async def test_a_tenants_limit_is_that_of_all_workers_together(tmp_path: Path) -> None:
    """Once the other one knows of what the one has let in."""
    going = asyncio.Event()

    async def slow(asked: Asked, writer: Any) -> None:
        await going.wait()
        writer.write(json_reply(completion()))

    keys = write_keys(tmp_path / "keys", team("a", "one", maxInFlight=1))
    request = post(PATH, {**BODY, "logprobs": 1}, "x-api-key: one")
    async with (
        scripted_engine(slow) as engine,
        running(tmp_path, {"d0": engine.address}, keys={"file": keys}) as at,
    ):

        async def one() -> int:
            [answer] = await raw_exchange(at.ports["proxy"], request, answers=1)
            return answer.status

        first = asyncio.create_task(one())
        try:
            async with asyncio.timeout(60), httpx.AsyncClient(base_url=at.admin_url) as admin:
                for worker in "01":
                    view = {"published": 0, "followed": 0}
                    while not (view["published"] or view["followed"]):
                        view = (await admin.get("/ballast/v1/view", params={"worker": worker})).json()
            assert {await one() for _ in range(20)} == {429}
        finally:
            going.set()
        assert await first == 200


async def test_workers_share_the_ports_and_end_together(tmp_path: Path) -> None:
    """Connections are dealt out to all; a page of metrics has each one's; SIGTERM ends all, with status 0."""
    async with scripted_engine(decode_script) as engine, running(tmp_path, {"d0": engine.address}) as at:
        pids = at.workers()
        assert len(pids) == 2
        for _ in range(60):
            assert await at.ask() == 200
        served = await at.served()
        assert set(served) == {"0", "1"}
        assert sum(served.values()) == 60
        assert min(served.values()) > 5, "the system deals them out"
        text = await at.metrics()
        assert text.count("# TYPE ballast_gateway_requests_total counter") == 1
        assert text.count("process_resident_memory_bytes{") == 2
        at.process.send_signal(signal.SIGTERM)
        assert await at.process.wait() == 0
        assert not any(map(alive, pids))
    logged = [json.loads(line) for line in (tmp_path / "out.log").read_text().splitlines()]
    assert len(logged) == 60
    assert {line["worker"] for line in logged} == {"0", "1"}


async def test_a_dead_worker_is_started_again_and_new_requests_go_to_the_other(tmp_path: Path) -> None:
    async with scripted_engine(decode_script) as engine, running(tmp_path, {"d0": engine.address}) as at:
        before = at.workers()
        os.kill(before[0], signal.SIGKILL)
        await until(lambda: before[0] not in at.workers())  # reaped: until then its threads may hold its listener
        for _ in range(20):
            assert await at.ask() == 200
        await until(lambda: len(at.workers()) == 2 and before[0] not in at.workers(), 60)
        await until(lambda: any(each.get("event") == "worker-ended" for each in at.messages()))
        async with asyncio.timeout(60):
            while len(await at.served()) < 2:
                assert await at.ask() == 200
        await at.ready()
        for _ in range(20):
            assert await at.ask() == 200


async def test_a_worker_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    """The system may have no descriptor or no process to give for a while."""
    async with running(tmp_path, {}) as at:
        before, supervisor = at.workers(), at.process.pid
        soft, hard = resource.prlimit(supervisor, resource.RLIMIT_NOFILE)
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (3, hard))
        os.kill(before[0], signal.SIGKILL)
        await until(lambda: sum(each.get("event") == "worker-not-started" for each in at.messages()) >= 2, 60)
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (soft, hard))
        await until(lambda: len(at.workers()) == 2 and before[0] not in at.workers(), 60)
        async with asyncio.timeout(60):
            while (await at.metrics()).count("process_resident_memory_bytes{") < 2:  # noqa: ASYNC110 - other processes
                await asyncio.sleep(0.05)


async def test_a_worker_that_hangs_is_no_ready_one(tmp_path: Path) -> None:
    """The system goes on to give it connections."""
    async with running(tmp_path, {}) as at, httpx.AsyncClient(timeout=60) as client:
        hung = at.workers()[0]
        os.kill(hung, signal.SIGSTOP)
        try:
            answer = await client.get(f"{at.admin_url}/readyz")
        finally:
            os.kill(hung, signal.SIGCONT)
        assert answer.status_code == 503
        [reason] = answer.json()["reasons"]
        assert re.fullmatch(r"worker [01]: does not answer", reason)
        await at.ready()


async def test_a_worker_that_hangs_for_long_is_killed_and_started_again(tmp_path: Path) -> None:
    """Its connections break, and new ones are answered; the others go on."""
    async with running(tmp_path, {}, command=IMPATIENT) as at:
        hung, other = at.workers()
        os.kill(hung, signal.SIGSTOP)
        await until(lambda: any(each.get("event") == "worker-ended" for each in at.messages()), 60)
        assert [each.get("event") for each in at.messages()].count("worker-hung") == 1
        await until(lambda: len(at.workers()) == 2 and hung not in at.workers(), 60)
        await at.ready()
        assert other in at.workers()
        assert {await at.ask() for _ in range(20)} == {503}  # no engine, and all are answered


async def test_a_worker_that_hangs_before_it_serves_is_killed_and_started_again(tmp_path: Path) -> None:
    """It has no port yet at which it could be asked."""
    async with running(tmp_path, {}, command=IMPATIENT) as at:
        before = at.workers()
        os.kill(before[0], signal.SIGKILL)
        await until(lambda: len(new := set(at.workers()) - set(before)) == 1 and begun(*new), 60)
        [hung] = set(at.workers()) - set(before)
        os.kill(hung, signal.SIGSTOP)
        await until(lambda: len(at.workers()) == 2 and hung not in at.workers(), 60)
        await at.ready()
        assert {await at.ask() for _ in range(20)} == {503}  # no engine, and all are answered


async def test_a_worker_that_cannot_be_asked_is_not_taken_for_one_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the supervisor has no descriptor left, say, it kills nobody for that."""
    monkeypatch.setattr(worker_admin, "_WAIT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as hangs:
        asks = worker_admin.Admin(lambda: {"0": hangs.getsockname()[1], "1": free_port(), "2": None}, WhoMayAsk(None))
        assert await asks.silent() == ["0"]
        await asks.aclose()


async def test_workers_place_by_the_requests_of_all(tmp_path: Path) -> None:
    """As many requests as engines, by whichever worker they come: each engine gets one. Metrics of these engines say
    nothing; a worker that knew its own requests only would send its first to the same engine as the other."""
    going: list[str] = []
    done = asyncio.Event()

    async with AsyncExitStack() as stack:
        addresses = {}
        for number in range(6):

            async def slow(asked: Asked, writer: Any, name: str = f"d{number}") -> None:
                going.append(name)
                await done.wait()
                writer.write(json_reply(completion()))

            engine = await stack.enter_async_context(scripted_engine(slow))
            addresses[f"d{number}"] = engine.address
        least = {"prefill": {"type": "least-requests"}, "decode": {"type": "least-requests"}}
        at = await stack.enter_async_context(running(tmp_path, addresses, policy=least))
        plain = post(PATH, {**BODY, "logprobs": 1})
        asked = []
        for count in range(1, 7):
            asked.append(asyncio.create_task(raw_exchange(at.ports["proxy"], plain, answers=1, timeout_s=60)))
            async with asyncio.timeout(60):
                while len(going) < count or not await known_to_all(at, count):  # noqa: ASYNC110 - other processes
                    await asyncio.sleep(0.02)
        assert sorted(going) == sorted(addresses)
        done.set()
        assert {answer.status for each in asked for answer in await each} == {200}


async def in_flight(at: Running, what: str) -> list[int]:
    """Of each worker's view: requests that it has `published`, or `followed`."""
    async with httpx.AsyncClient() as client:
        views = [await client.get(f"{at.admin_url}/ballast/v1/view", params={"worker": each}) for each in ("0", "1")]
    return [view.json()[what] for view in views]


async def known_to_all(at: Running, count: int) -> bool:
    published, followed = await in_flight(at, "published"), await in_flight(at, "followed")
    return all(own + others == count for own, others in zip(published, followed, strict=True))


async def test_one_worker_leads_and_another_does_when_it_dies(tmp_path: Path) -> None:
    """So rounds of moves are one's: `rescheduling` may be set."""
    async with running(tmp_path, {}, policy={"rescheduling": {"type": "ares"}}) as at:

        async def leaders() -> list[str]:
            rows = [row for row in (await at.metrics()).splitlines() if row.startswith("ballast_gateway_view_leads{")]
            return [row for row in rows if row.endswith(" 1.0")] if len(rows) == 2 else []

        async def one_leads() -> str:
            async with asyncio.timeout(60):
                while len(found := await leaders()) != 1:  # noqa: ASYNC110 - other processes
                    await asyncio.sleep(0.05)
            return found[0]

        await one_leads()
        before = at.workers()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
            await until(lambda: len(at.workers()) == 2 and pid not in at.workers(), 60)  # noqa: B023
            await at.ready()
            await one_leads()


async def test_running_requests_of_all_workers_are_finished(tmp_path: Path) -> None:
    """SIGTERM waits for them; a second one does not."""
    going: list[Asked] = []
    done = asyncio.Event()

    async def slow(asked: Asked, writer: Any) -> None:
        going.append(asked)
        await done.wait()
        writer.write(json_reply(completion()))

    plain = post(PATH, {**BODY, "logprobs": 1})

    async def ask(port: int) -> int:
        [answer] = await raw_exchange(port, plain, answers=1, timeout_s=60)
        return answer.status

    async with scripted_engine(slow) as engine, running(tmp_path, {"d0": engine.address}) as at:
        asked = [asyncio.create_task(ask(at.ports["proxy"])) for _ in range(12)]
        await until(lambda: len(going) == 12)
        at.process.send_signal(signal.SIGTERM)
        await until(lambda: sum(each["message"] == "draining" for each in at.messages()) == 3)
        assert at.process.returncode is None
        done.set()
        assert [await each for each in asked] == [200] * 12
        assert await at.process.wait() == 0


async def test_a_second_signal_cuts_the_drains_short(tmp_path: Path) -> None:
    going: list[Asked] = []

    async def never(asked: Asked, writer: Any) -> None:
        going.append(asked)
        await asyncio.Event().wait()

    async with scripted_engine(never) as engine, running(tmp_path, {"d0": engine.address}) as at:
        plain = post(PATH, {**BODY, "logprobs": 1})
        asked = [asyncio.create_task(raw_exchange(at.ports["proxy"], plain, answers=1)) for _ in range(6)]
        await until(lambda: len(going) == 6)
        at.process.send_signal(signal.SIGTERM)
        await until(lambda: sum(each["message"] == "draining" for each in at.messages()) == 3)
        at.process.send_signal(signal.SIGINT)
        assert {answer.status for each in asked for answer in await each} == {503}
        assert await at.process.wait() == 0


async def test_workers_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    async with running(tmp_path, {}) as at:
        pids = at.workers()
        at.process.kill()
        await until(lambda: not any(map(alive, pids)), 60)


async def test_the_admin_api_of_each_worker_is_to_be_had(tmp_path: Path) -> None:
    """By those who may ask the gateway's own; a worker asked on loopback would answer everybody."""
    token = tmp_path / "token"
    token.write_text("secret")
    async with running(tmp_path, {}, admin={"tokenFile": str(token)}) as at, httpx.AsyncClient() as client:
        url = f"{at.admin_url}/ballast/v1/endpoints"
        assert (await client.get(url)).status_code == 401
        mine = {"authorization": "Bearer secret"}
        for worker in ("0", "1"):
            answer = await client.get(url, params={"worker": worker}, headers=mine)
            assert (answer.status_code, answer.json()) == (200, {"endpoints": []})
        assert (await client.get(url, params={"worker": "2"}, headers=mine)).status_code == 404
        assert (await client.post(url, headers=mine)).status_code == 405
        await watched(client, at.admin_url, mine)
        assert (await client.get(f"{at.admin_url}/healthz")).status_code == 200


async def watched(client: httpx.AsyncClient, url: str, mine: dict[str, str]) -> None:
    """The live page is for everybody; its stream is that of the worker that is asked for, or of all."""
    assert (await client.get(f"{url}{PAGE}")).content == page().body
    assert (await client.get(f"{url}{EVENTS}")).status_code == 401
    assert (await client.get(f"{url}{EVENTS}", params={"worker": "2"}, headers=mine)).status_code == 404
    together = "all 2 workers"
    for params, whose in (({"worker": "1"}, "worker 1"), ({}, together)):
        async with client.stream("GET", f"{url}{EVENTS}", params=params, headers=mine) as answer:
            assert (answer.status_code, answer.headers[WORKERS]) == (200, "2")
            lines = answer.aiter_lines()
            event = [await anext(lines) for _ in range(3)]
            assert event[:2] == ["event: all", "id: 0"]
            assert json.loads(event[2].removeprefix("data: "))["about"]["whose"] == whose
            while await anext(lines) != "event: delta":
                pass
    assert (await client.get(f"{url}{LIVE}", headers=mine)).json()["about"]["whose"] == together
    assert (await client.get(f"{url}{LIVE}")).status_code == 401
    assert (await client.get(f"{url}{REQUEST}", params={"id": "none"}, headers=mine)).status_code == 404


async def test_what_no_worker_has_is_said_to_be_missing(tmp_path: Path) -> None:
    """Whatever its characters; one that would be too long for a worker is refused."""
    async with running(tmp_path, {}) as at:
        for target, status in {
            "/ballast/v1/none": 404,
            "/ballast/v1/x%0ay": 404,
            "/ballast/v1/endpoints%3Fworker=1": 404,
            "/%ff%00": 404,
            "*": 404,
            "/ballast/v1/endpoints?%0a=%ff": 200,
            "/ballast/v1/endpoints?" + 5000 * "%ff": 200,
            "/ballast/v1/endpoints?" + 30_000 * "!": 414,
        }.items():
            request = f"GET {target} HTTP/1.1\r\nhost: a\r\n\r\n".encode()
            [answer] = await raw_exchange(at.ports["admin"], request, answers=1)
            assert (answer.status, target) == (status, target)


async def test_without_a_token_only_loopback_is_answered(tmp_path: Path) -> None:
    async with running(tmp_path, {}) as at, httpx.AsyncClient() as client:
        url = f"{at.admin_url}/ballast/v1/endpoints"
        assert (await client.get(url)).status_code == 200
        assert (await client.get(url, headers={"x-forwarded-for": "10.0.0.1"})).status_code == 403


async def test_workers_of_the_picker_share_its_ports_too(tmp_path: Path) -> None:
    """With TLS and without, ext_proc and health; calls over many connections reach both."""
    ports = {"extProc": 0, "grpcHealth": 0}
    async with running(tmp_path, {}, face="Picker", listeners=ports) as at:
        for _ in range(10):
            async with grpc.aio.insecure_channel(
                f"127.0.0.1:{at.ports['grpc_health']}", options=[("grpc.use_local_subchannel_pool", 1)]
            ) as channel:
                stub = health_pb2_grpc.HealthStub(channel)
                answer = await stub.Check(health_pb2.HealthCheckRequest(service="readiness"), timeout=20)
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with socket.create_connection(("127.0.0.1", at.ports["ext_proc"]), timeout=10):
            pass


# --- what cannot be ----------------------------------------------------------------------------------------------


async def refused(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ballast_cli", "gateway", *arguments), stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(60):
        _, err = await process.communicate()
    assert process.returncode == 2
    assert b"Traceback" not in err
    return err.decode()


async def test_a_taken_port_is_reported_once(tmp_path: Path) -> None:
    """By another gateway with workers, too, which would share it without a word."""
    async with running(tmp_path, {}) as at:
        other = tmp_path / "other"
        other.mkdir()
        config = written(other, {}, listeners={"host": "127.0.0.1", "proxy": at.ports["proxy"], "admin": 0})
        said = await refused("--config", str(config))
        assert said.count("in use") == 1
        assert f"listeners.proxy: cannot listen on 127.0.0.1:{at.ports['proxy']}: " in said


async def test_the_workers_own_ports_are_kept_for_them(tmp_path: Path) -> None:
    """Those of the pod API, one for each: another gateway is told so, and does not share them."""
    (tmp_path / "token").write_text("t" * 32)
    own: dict[str, Any] = {"podApi": {"tokenFile": str(tmp_path / "token"), "port": free_port()}}
    async with running(tmp_path, {}, **own):
        other = tmp_path / "other"
        other.mkdir()
        said = await refused("--config", str(written(other, {}, **own)))
        assert said.count("in use") == 1
        assert "podApi.port: cannot listen on " in said


async def test_what_a_worker_cannot_read_is_said_by_each_and_ends_all(tmp_path: Path) -> None:
    config = written(tmp_path, {})
    (tmp_path / "endpoints.yaml").unlink()
    assert "endpoints.yaml: cannot be read" in await refused("--config", str(config))


async def test_several_gateways_have_no_workers(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one, two = written(tmp_path / "a", {}), written(tmp_path / "b", {})
    assert "workers: several gateways" in await refused("--config", str(one), "--config", str(two))


def test_cuts_are_refused(tmp_path: Path) -> None:
    """Rather than let each worker plan by a part of what is planned."""
    policy = {"partition": {"type": "libra", "parameters": {"cuts": "prompt"}}}
    settings(tmp_path / "endpoints.yaml", policy=policy)
    with pytest.raises(ValidationError, match=r"policy.partition\n *plans cuts in one book"):
        settings(tmp_path / "endpoints.yaml", policy=policy, workers=2)


def test_workers_are_no_pods_of_their_own(tmp_path: Path) -> None:
    """An annotation names one port of a pod."""
    fleet = {"podApi": {"tokenFile": "x"}, "peers": {"kubernetes": {"namespace": "n", "selector": "a=b"}}}
    settings(tmp_path / "endpoints.yaml", **fleet)
    with pytest.raises(ValidationError, match=r"workers\n *a pod has one pod API there"):
        settings(tmp_path / "endpoints.yaml", **fleet, workers=2)


def test_pages_are_merged_metric_by_metric() -> None:
    page = (
        "# HELP a_total Of a.\n# TYPE a_total counter\n"
        'a_total{{worker="{0}"}} {0}\n'
        "# HELP h Of h.\n# TYPE h histogram\n"
        'h_bucket{{le="1.0",worker="{0}"}} 1\nh_bucket{{le="+Inf",worker="{0}"}} 2\n'
        'h_count{{worker="{0}"}} 2\nh_sum{{worker="{0}"}} 3\n'
    )
    text = merged(page.format(number) for number in (1, 2)).decode()
    assert text.count("# TYPE a_total counter") == text.count("# TYPE h histogram") == 1
    assert 'a_total{worker="1"} 1.0\na_total{worker="2"} 2.0\n' in text
    assert text.count("h_bucket{") == 4
    assert merged([]) == b""


async def test_lines_that_processes_write_to_one_pipe_stay_whole() -> None:
    """In pieces that a pipe takes at once."""

    class Pieces(io.StringIO):
        def __init__(self) -> None:
            super().__init__()
            self.pieces: list[str] = []

        def write(self, text: str) -> int:
            self.pieces.append(text)
            return len(text)

    make: Callable[[int], str] = lambda number: f"{number:04d}" + "x" * 500  # noqa: E731
    out = Pieces()
    writer = LineWriter(out, asyncio.get_running_loop(), shared=True)
    for number in range(50):
        writer.write(make(number))
    writer.write("y" * 6000)
    writer.flush()
    assert all(len(piece) <= 4096 for piece in out.pieces[:-1])
    assert all(piece.endswith("\n") for piece in out.pieces)
    assert "".join(out.pieces).splitlines() == [*map(make, range(50)), "y" * 6000]
