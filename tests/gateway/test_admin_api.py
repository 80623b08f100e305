"""The admin API: health, readiness with reasons, metrics, inventory and "why this pod?"."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from ballast_api.metrics import METRICS
from tests.support.gateway_kit import post, raw_exchange, running_gateway, until
from tests.support.scripted_engine import decode_script, prefill_script, scripted_engine, silent_server

COMPLETION = {"model": "tiny", "prompt": "hello", "max_tokens": 3}
PATH = "/v1/completions"


async def test_a_decision_is_explained_with_the_cost_of_every_candidate(tmp_path: Path) -> None:
    """Newest first; of one request if asked so; in the decision log file too."""
    log = tmp_path / "decisions.jsonl"
    async with (
        scripted_engine(prefill_script) as prefill,
        scripted_engine(decode_script) as decode,
        running_gateway(
            tmp_path, {"p0": prefill.address, "d0": decode.address}, logs={"decisionsFile": str(log)}
        ) as gateway,
        httpx.AsyncClient(base_url=gateway.admin_url) as admin,
    ):
        for name in ("one", "two"):
            await raw_exchange(gateway.port, post(PATH, COMPLETION, f"x-request-id: {name}"), answers=1)
        shown = (await admin.get("/ballast/v1/decisions", params={"limit": 1})).json()["decisions"]
        assert [(d["request_id"], d["decision"], d["decode"]) for d in shown] == [("two", "handoff", "d0")]
        shown = (await admin.get("/ballast/v1/decisions", params={"request_id": "one"})).json()["decisions"]
        assert [d["decision"] for d in shown] == ["handoff", "dispatch"]
        dispatch = shown[1]
        assert (dispatch["prefill"], dispatch["decode"]) == ("p0", "d0")
        first, second = dispatch["placements"]
        assert (first["stage"], first["policy"], first["chosen"]) == ("prefill", "least-uncached-tokens", "p0")
        assert (second["stage"], second["policy"], second["chosen"]) == ("decode", "ballast", "d0")
        for placement in (first, second):
            [candidate] = placement["candidates"]
            assert candidate["endpoint"] == placement["chosen"]
            assert candidate["cost"] > 0
        assert (await admin.get("/ballast/v1/decisions", params={"limit": 0})).status_code == 422
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["decision"] for line in lines] == ["dispatch", "handoff"] * 2


async def test_a_full_disk_under_the_decision_log_costs_no_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor the place of one: more requests than may be in flight are served, and the API has their decisions."""
    async with (
        scripted_engine(decode_script) as engine,
        running_gateway(
            tmp_path, {"f0": engine.address}, logs={"decisionsFile": "/dev/full"}, limits={"maxInFlight": 2}
        ) as gateway,
        httpx.AsyncClient(base_url=gateway.admin_url) as admin,
    ):
        for _ in range(4):
            [answer] = await raw_exchange(gateway.port, post(PATH, COMPLETION), answers=1)
            assert answer.status == 200
        assert not gateway.gateway.driver.director.ledger
        shown = (await admin.get("/ballast/v1/decisions")).json()["decisions"]
        assert [each["decision"] for each in shown] == ["dispatch"] * 4
    told = [record for record in caplog.records if vars(record).get("file") == "/dev/full"]
    assert [vars(record)["problem"] for record in told] == ["No space left on device"]


BEHIND = ("/ballast/v1/endpoints", "/ballast/v1/decisions", "/openapi.json", "/docs", "/nothing")
OPEN = ("/healthz", "/readyz", "/metrics")


async def test_without_a_token_only_loopback_is_answered(tmp_path: Path) -> None:
    """From elsewhere, and for a proxy that speaks for somebody else: 403 names the setting. Probes are open."""
    async with running_gateway(tmp_path, {}) as gateway:

        async def asked(path: str, source: str, **headers: str) -> httpx.Response:
            transport = httpx.AsyncHTTPTransport(local_address=source)
            async with httpx.AsyncClient(base_url=gateway.admin_url, transport=transport) as admin:
                return await admin.get(path, headers=headers)

        for path in BEHIND:
            assert (await asked(path, "127.0.0.1")).status_code == (404 if path in ("/docs", "/nothing") else 200)
            for refused in (
                await asked(path, "127.0.0.6"),
                await asked(path, "127.0.0.1", **{"x-forwarded-for": "127.0.0.1"}),
                await asked(path, "127.0.0.1", forwarded="for=10.0.0.1"),
            ):
                assert refused.status_code == 403
                assert "admin.tokenFile" in refused.json()["detail"]
        assert [(await asked(path, "127.0.0.6")).status_code for path in OPEN] == [200] * 3


async def test_the_api_asks_for_the_token_of_its_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Loopback or not. Health and metrics stay open; the file is read anew, so that a rotated token works at once.

    Without a token in the file everybody is refused, and the log says once why.
    """
    file = tmp_path / "token"
    file.write_text("sesame\n")
    async with (
        running_gateway(tmp_path, {}, admin={"tokenFile": str(file)}) as gateway,
        httpx.AsyncClient(base_url=gateway.admin_url) as admin,
    ):

        async def status(path: str, token: str | None = None) -> int:
            headers = {} if token is None else {"authorization": token}
            return (await admin.get(path, headers=headers)).status_code

        for path in BEHIND:
            assert [await status(path), await status(path, "Bearer wrong"), await status(path, "sesame")] == [401] * 3
        for path in ("/ballast/v1/endpoints", "/ballast/v1/decisions", "/openapi.json"):
            assert await status(path, "Bearer sesame") == 200
        assert [await status(path) for path in OPEN] == [200, 200, 200]
        file.write_text("rotated")
        assert await status("/ballast/v1/endpoints", "Bearer rotated") == 200
        file.write_text("")
        for given in ("Bearer", "Bearer rotated"):
            assert await status("/ballast/v1/endpoints", given) == 503
        file.unlink()
        for _ in range(2):
            assert await status("/ballast/v1/endpoints", "Bearer rotated") == 503
        assert [record.getMessage() for record in caplog.records if "admin" in record.getMessage()] == [
            "the admin API refuses everybody: admin.tokenFile is empty",
            "the admin API refuses everybody: admin.tokenFile cannot be read: No such file or directory",
        ]


async def test_readiness_names_what_is_missing(tmp_path: Path) -> None:
    """An endpoint that was not scraped yet; later the drain."""
    async with (
        silent_server() as address,
        running_gateway(
            tmp_path, {"d0": address}, wait=False, scrape={"timeoutS": 0.5}, limits={"drainGraceS": 0.3}
        ) as gateway,
        httpx.AsyncClient(base_url=gateway.admin_url) as admin,
    ):
        first = await admin.get("/readyz")
        assert (first.status_code, first.json()["reasons"]) == (503, ["some endpoints have not been scraped yet"])
        assert (await admin.get("/healthz")).status_code == 200
        await until(lambda: gateway.gateway.fleet.settled)
        assert (await admin.get("/readyz")).json() == {"status": "ok"}
        drain = asyncio.create_task(gateway.gateway.drain())
        await until(gateway.gateway.not_ready)
        draining = await admin.get("/readyz")
        assert draining.status_code == 503
        assert draining.json()["reasons"] == ["draining: the gateway is about to stop"]
        (answer,) = await raw_exchange(gateway.port, b"GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n", answers=1)
        assert answer.status == 200  # in its grace period it still serves
        assert await drain
        with pytest.raises(OSError, match=r"refused|Connect"):
            await asyncio.open_connection("127.0.0.1", gateway.port)


async def test_probes_are_read_and_the_rest_is_not_found(tmp_path: Path) -> None:
    """As the framework behind them answers it."""
    async with (
        running_gateway(tmp_path, {}) as gateway,
        httpx.AsyncClient(base_url=gateway.admin_url) as admin,
    ):
        for path in ("/healthz", "/readyz", "/metrics"):
            refused = await admin.post(path)
            assert (refused.status_code, refused.headers["allow"]) == (405, "GET")
            assert refused.json() == (await admin.post("/ballast/v1/endpoints")).json()
        assert (await admin.get("/nothing")).status_code == 404


async def test_a_drain_lets_running_requests_end(tmp_path: Path) -> None:
    """Idle connections close at once; a running request is served to its end, and its answer closes the connection."""
    release = asyncio.Event()

    async def slow(asked: object, writer: asyncio.StreamWriter) -> None:
        await release.wait()
        await decode_script(asked, writer)  # type: ignore[arg-type]

    async with (
        scripted_engine(slow) as engine,
        running_gateway(tmp_path, {"f0": engine.address}, limits={"drainGraceS": 0}) as gateway,
    ):
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        call = asyncio.create_task(raw_exchange(gateway.port, post(PATH, COMPLETION)))
        await until(lambda: len(engine.asked) == 1)
        drain = asyncio.create_task(gateway.gateway.drain())
        async with asyncio.timeout(20):
            assert await idle_reader.read() == b""
        assert not drain.done()
        release.set()
        (answer,) = await call
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert await drain
        idle_writer.close()


async def test_a_drain_ends_at_its_time_limit(tmp_path: Path) -> None:
    """It returns that a request was cut off; the client is told why."""

    async def never(asked: object, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with (
        scripted_engine(never) as engine,
        running_gateway(tmp_path, {"f0": engine.address}, limits={"drainGraceS": 0, "drainTimeoutS": 0.2}) as gateway,
    ):
        call = asyncio.create_task(raw_exchange(gateway.port, post(PATH, COMPLETION)))
        await until(lambda: len(engine.asked) == 1)
        assert await gateway.gateway.drain() is False
        (answer,) = await call
        assert (answer.status, answer.headers["x-ballast-reason"]) == (503, "gateway-shutdown")
        async with asyncio.timeout(20):
            await engine.hung_up.wait()


async def test_the_names_of_the_metrics_are_an_interface(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    """Names, kinds and labels, which dashboards use; values are tested elsewhere."""
    async with (
        scripted_engine(prefill_script) as prefill,
        scripted_engine(decode_script) as decode,
        running_gateway(
            tmp_path,
            {"p0": prefill.address, "d0": decode.address, "d1": "127.0.0.1:1"},
            wait=False,
            objectives=[{"name": "fast", "ttftS": 1.0}],
        ) as gateway,
        httpx.AsyncClient(base_url=gateway.admin_url) as admin,
    ):
        await gateway.ready_endpoints(2)
        await until(lambda: gateway.gateway.fleet.settled)
        await raw_exchange(gateway.port, post(PATH, {**COMPLETION, "stream": True}), answers=1)
        await raw_exchange(gateway.port, post(PATH, {"model": "other"}), answers=1)
        text = (await admin.get("/metrics")).text
    families = [family for family in text_string_to_metric_families(text) if family.name.startswith("ballast_gateway_")]
    lines = []
    for family in sorted(families, key=lambda family: family.name):
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        name = family.name.removesuffix("_total") + ("_total" if family.type == "counter" else "")
        if not name.endswith("_created"):
            declared = METRICS[name]
            assert set(labels) <= set(declared.labels)
            assert (family.type, family.documentation) == (declared.kind, declared.about)
            lines.append(f"{name} {family.type} {{{', '.join(labels)}}} {family.documentation}")
    golden("gateway/metrics.txt", "\n".join(lines) + "\n")
    assert value(text, "ballast_gateway_requests_total", outcome="completed", model="tiny") == 1
    assert value(text, "ballast_gateway_requests_total", outcome="invalid", reason="invalid-request") == 1
    assert value(text, "ballast_gateway_dispatches_total", stage="prefill", role="prefill", pool="pool-p") == 1
    assert value(text, "ballast_gateway_dispatches_total", stage="decode", role="decode", pool="pool-d") == 1
    assert value(text, "ballast_gateway_handoffs_total") == 1
    assert value(text, "ballast_gateway_placements_total", stage="decode", policy="ballast") == 2
    assert value(text, "ballast_gateway_placed_prompt_tokens_total", prefix="miss") > 0
    for part in ("wait", "prefill", "decode"):
        assert value(text, "ballast_gateway_time_to_first_token_part_seconds_count", part=part) == 1
    assert value(text, "ballast_gateway_time_to_first_token_seconds_count", model="tiny") == 1
    assert value(text, "ballast_gateway_time_per_output_token_seconds_count", model="tiny") == 1
    assert value(text, "ballast_gateway_request_duration_seconds_count", model="tiny") == 1
    assert value(text, "ballast_gateway_output_tokens_total", model="tiny") == 3
    assert value(text, "ballast_gateway_requests_in_flight") == 0
    assert value(text, "ballast_gateway_decision_seconds_count") >= 2


def value(text: str, name: str, **labels: str) -> float:
    """The sum over the samples that have these labels."""
    found = [
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert found, f"no {name} {labels}"
    return sum(found)
