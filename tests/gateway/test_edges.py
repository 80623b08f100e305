"""What clients find at the edges: routes that exist, the model's limit, health, browsers of other origins."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from ballast_api.gateway_settings import GatewayTuning
from ballast_gateway import paths
from ballast_gateway.observe.model_card import UNKNOWN, ModelCard, read_card
from ballast_gateway.picker.exchange import Exchange, ExchangeSettings
from ballast_gateway.picker.messages import Immediate, Inbound, Kind
from ballast_sim.engine_sim.server import EngineSimServer
from tests.support.engine_sim import engine_sim
from tests.support.gateway_kit import Answer, assert_openai_error, post, raw_exchange, running_gateway, until
from tests.support.scripted_engine import Asked, completion, decode_script, json_reply, scripted_engine

BODY = {"model": "tiny", "prompt": "hello"}
PAGE = "https://chat.example.org"


def get(path: str, *headers: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "host: g", *headers, "", ""]).encode()


# --- /v1/models and /health -----------------------------------------------------------------------------------------


def sim_at(server: EngineSimServer) -> str:
    return f"127.0.0.1:{server.port}"


async def test_models_say_the_longest_context_that_every_engine_takes(tmp_path: Path) -> None:
    """As the engines themselves say it."""
    async with (
        engine_sim(served_model_names=("m", "alias")) as (long, _),
        engine_sim(served_model_names=("m", "alias"), max_model_len=2048) as (short, _),
        running_gateway(
            tmp_path, {"f0": sim_at(long), "f1": sim_at(short)}, model={"servedNames": ["m", "alias"]}
        ) as gateway,
    ):
        assert long.config.max_model_len > 2048
        await until(lambda: all(m.card is not None for m in gateway.gateway.fleet.members.values()))
        (answer,) = await raw_exchange(gateway.port, get("/v1/models"), answers=1)
    assert [(card["id"], card["max_model_len"]) for card in answer.json()["data"]] == [("m", 2048), ("alias", 2048)]


async def test_each_model_has_the_context_of_its_own_engines(tmp_path: Path) -> None:
    """Of several models in one pool, a short one does not shorten the others; an adapter has its engines'."""
    names = ["short", "long", "adapter"]
    async with (
        engine_sim(served_model_names=("short",), max_model_len=1024) as (short, _),
        engine_sim(served_model_names=("long",), lora_modules={"adapter": "/a"}, max_model_len=8192) as (long, _),
        running_gateway(
            tmp_path, {"f0": sim_at(short), "f1": sim_at(long)}, model={"servedNames": [*names, "nowhere"]}
        ) as gateway,
    ):
        await until(lambda: all(m.card is not None for m in gateway.gateway.fleet.members.values()))
        (answer,) = await raw_exchange(gateway.port, get("/v1/models"), answers=1)
    lengths = {card["id"]: card.get("max_model_len") for card in answer.json()["data"]}
    assert lengths == {"short": 1024, "long": 8192, "adapter": 8192, "nowhere": None}


async def test_models_without_a_known_limit_name_none(tmp_path: Path) -> None:
    async with (
        scripted_engine(decode_script) as engine,
        running_gateway(tmp_path, {"f0": engine.address}) as gateway,
    ):
        (answer,) = await raw_exchange(gateway.port, get("/v1/models"), answers=1)
    assert all("max_model_len" not in card for card in answer.json()["data"])


@pytest.mark.parametrize(
    ("body", "card"),
    [
        (
            {"data": [{"id": "lora", "max_model_len": 5}, {"id": "m", "max_model_len": 9}]},
            ModelCard(("lora", "m"), max_model_len=9),
        ),
        ({"data": [{"id": "other", "max_model_len": 5}]}, ModelCard(("other",), max_model_len=5)),
        ({"data": [{"id": "m", "max_model_len": True}]}, ModelCard(("m",), max_model_len=None)),
        ({"data": [{"id": "m"}]}, ModelCard(("m",), max_model_len=None)),
        (
            {"data": [{"id": "m", "root": "/w"}, {"id": "n", "root": 5}]},
            ModelCard(("m", "n"), roots={"m": "/w"}),
        ),
        ({"data": []}, ModelCard()),
        ({"data": [{}]}, UNKNOWN),
        ({"data": [5]}, UNKNOWN),
        ({}, UNKNOWN),
        ([], UNKNOWN),
        ("x", UNKNOWN),
    ],
)
def test_a_card_is_read_or_unknown(body: Any, card: ModelCard) -> None:
    assert read_card(json.dumps(body).encode(), ["m"]) == card


async def test_an_engine_that_serves_other_models_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Before clients find out."""
    async with engine_sim() as (engine, _), running_gateway(tmp_path, {"f0": sim_at(engine)}) as gateway:
        await until(lambda: all(m.card is not None for m in gateway.gateway.fleet.members.values()))
    (record,) = [each for each in caplog.records if "serves other models" in each.message]
    assert (record.__dict__["endpoint"], record.__dict__["serves"]) == ("f0", ["m"])


async def test_health_is_that_of_the_whole_gateway(tmp_path: Path) -> None:
    """As vLLM's: no body; and load balancers leave nothing in the request log."""
    async with (
        scripted_engine(decode_script) as engine,
        running_gateway(tmp_path, {"f0": engine.address}) as gateway,
    ):
        (healthy,) = await raw_exchange(gateway.port, get("/health"), answers=1)
        gateway.gateway._draining = True
        (draining,) = await raw_exchange(gateway.port, get("/health"), answers=1)
        gateway.gateway._draining = False
        assert gateway.requests() == []
    assert (healthy.status, healthy.body, draining.status) == (200, b"", 503)


# --- browsers -------------------------------------------------------------------------------------------------------


def names(answer: Answer) -> set[str]:
    return {name for name in answer.headers if name.startswith("access-control")}


async def test_a_page_of_an_admitted_origin_reads_answers_errors_and_streams(tmp_path: Path) -> None:
    async with (
        scripted_engine(decode_script) as engine,
        running_gateway(tmp_path, {"f0": engine.address}, corsOrigins=[PAGE]) as gateway,
    ):
        origin = f"Origin: {PAGE}"
        asks = (origin, "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization,x-a")
        preflight, whole, stream, error, models = await raw_exchange(
            gateway.port,
            get("/v1/chat/completions", *asks, method="OPTIONS"),
            post("/v1/completions", BODY, origin, "Content-Type: text/plain"),
            post("/v1/completions", {**BODY, "stream": True}, origin),
            post("/v1/completions", {"model": "tiny"}, origin),
            get("/v1/models", origin),
            answers=5,
        )
        assert preflight.status == 200
        assert preflight.headers["access-control-allow-methods"] == "POST"
        assert preflight.headers["access-control-allow-headers"] == "authorization,x-a"
        for answer in (preflight, whole, stream, error, models):
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert answer.headers["vary"] == "origin"
            assert "access-control-allow-credentials" not in answer.headers
        assert (whole.status, stream.status, error.status) == (200, 200, 400)
        assert all("origin" not in asked.headers for asked in engine.asked)


async def test_a_page_reads_why_its_request_was_refused_before_it_was_whole(tmp_path: Path) -> None:
    limits = {"maxTextBodyBytes": 1000}
    async with running_gateway(tmp_path, {}, wait=False, corsOrigins=[PAGE], limits=limits) as gateway:
        for origin in (PAGE, "https://other.example.org"):
            large = post("/v1/completions", {**BODY, "prompt": "a" * 2000}, f"Origin: {origin}")
            (refused,) = await raw_exchange(gateway.port, large)
            assert refused.status == 413
            assert refused.headers.get("access-control-allow-origin") == (PAGE if origin == PAGE else None)


async def open_to_all(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """As vLLM answers by default."""
    writer.write(json_reply(completion(), extra=b"access-control-allow-origin: *\r\n"))


@pytest.mark.parametrize("origins", [[], ["https://other.example.org"]])
async def test_a_page_of_another_origin_reads_nothing(tmp_path: Path, origins: list[str]) -> None:
    """Also not by what an engine says of origins itself."""
    async with (
        scripted_engine(open_to_all) as engine,
        running_gateway(tmp_path, {"f0": engine.address}, corsOrigins=origins) as gateway,
    ):
        asks = (f"Origin: {PAGE}", "Access-Control-Request-Method: POST")
        preflight, whole = await raw_exchange(
            gateway.port,
            get("/v1/completions", *asks, method="OPTIONS"),
            post("/v1/completions", BODY, f"Origin: {PAGE}", "Content-Type: application/json"),
            answers=2,
        )
    assert not names(preflight)
    assert not names(whole)
    assert whole.status == 200


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("Content-Type: text/plain;charset=UTF-8", 415),
        ("Content-Type: application/x-www-form-urlencoded", 415),
        ("Content-Type: Multipart/Form-Data; boundary=x", 415),
        ("X-Nothing: 1", 415),
        ("Content-Type: application/json", 200),
    ],
)
async def test_a_foreign_page_makes_nobody_s_browser_ask_engines(tmp_path: Path, kind: str, status: int) -> None:
    """What needs no preflight is refused where it comes from a page; other clients write what they like."""
    async with scripted_engine(decode_script) as engine, running_gateway(tmp_path, {"f0": engine.address}) as gateway:
        of_page = post("/v1/completions", BODY, f"Origin: {PAGE}", kind)
        page, other = await raw_exchange(gateway.port, of_page, post("/v1/completions", BODY, kind), answers=2)
    assert (page.status, other.status) == (status, 200)
    assert len(engine.asked) == (1 if status == 415 else 2)


async def hop_by_hop(asked: Asked, writer: asyncio.StreamWriter) -> None:
    """With all that is of this connection, or the gateway's to say."""
    lines = b"connection: keep-alive, X-Hop\r\nx-hop: 1\r\naccess-control-allow-methods: *\r\nx-engine: 1\r\n"
    writer.write(json_reply(completion(), extra=lines))


async def test_what_an_engine_says_of_its_connection_and_of_origins_goes_no_further(tmp_path: Path) -> None:
    async with scripted_engine(hop_by_hop) as engine, running_gateway(tmp_path, {"f0": engine.address}) as gateway:
        (answer,) = await raw_exchange(gateway.port, post("/v1/completions", {**BODY, "n": 2}), answers=1)
    assert answer.headers["x-engine"] == "1"
    assert not {"connection", "x-hop", "access-control-allow-methods"} & answer.headers.keys()


async def test_every_origin_may_be_admitted(tmp_path: Path) -> None:
    async with (
        scripted_engine(decode_script) as engine,
        running_gateway(tmp_path, {"f0": engine.address}, corsOrigins=["*"]) as gateway,
    ):
        (answer,) = await raw_exchange(gateway.port, post("/v1/completions", BODY, f"Origin: {PAGE}"), answers=1)
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "vary" not in answer.headers


@pytest.mark.parametrize(
    "origin", ["chat.example.org", "https://a/b", "https://a/", "ftp://a", "null", "https://*.a b"]
)
def test_a_wrong_origin_is_refused_by_name(origin: str) -> None:
    with pytest.raises(ValidationError, match="scheme://host"):
        GatewayTuning(cors_origins=(origin,))


# --- routes through the picker --------------------------------------------------------------------------------------

CLOSED = [
    *("/sleep", "/wake_up", "/collective_rpc", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/update_weights"),
    *("/reset_prefix_cache", "/pause", "/abort_requests", "/scale_elastic_ep", "/start_profile", "/metrics", "/docs"),
    *("/openapi.json", "/inference/v1/generate", "/invocations", "/v1", "/", "", "/v1/completions/", "//sleep"),
    *("/%73leep", "/v1/../sleep", "/v1/completions/../../sleep", "/v1/responses/a/../../sleep", "/v1/responses/"),
    *("/V1/completions", "/v1/completions;x", "/v1/completions%2f..", "/v1/responses/a/cancel/b"),
]


@pytest.mark.parametrize("path", [path for path in CLOSED if path])
def test_what_runs_engines_never_reaches_them(path: str) -> None:
    """However it is written, query and all."""
    for shown in (path, f"{path}?a=/v1/completions"):
        exchange = Exchange(ExchangeSettings(max_body_bytes=1000))
        (answer,) = exchange.receive(
            Inbound(Kind.REQUEST_HEADERS, {":path": shown, ":method": "POST"}, b"", end_of_stream=False)
        )
        assert isinstance(answer, Immediate)
        assert answer.status == 404


@pytest.mark.parametrize("path", [*sorted(paths.INFERENCE), "/v1/responses/resp_1-a", "/v1/responses/resp_1/cancel"])
def test_the_inference_api_passes(path: str) -> None:
    assert paths.passes(path)


def test_settings_add_paths() -> None:
    assert not paths.passes("/mine")
    assert paths.passes("/mine", frozenset({"/mine"}))


async def test_the_proxy_face_has_its_routes_only(tmp_path: Path) -> None:
    async with (
        scripted_engine(decode_script) as engine,
        running_gateway(tmp_path, {"f0": engine.address}) as gateway,
    ):
        asked = [post(path or "*", {}) for path in CLOSED]
        answers = await raw_exchange(gateway.port, *asked, answers=len(asked))
        assert engine.asked == []
    for answer in answers:
        assert answer.status == 404
        assert "known: /health, /v1/models" in assert_openai_error(answer)["message"]
