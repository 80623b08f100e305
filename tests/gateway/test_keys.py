"""API keys: who is served, how much of each tenant's, and that no key shows anywhere."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballast_api.errors import InvalidInput
from ballast_api.gateway_files import TenantEntry
from ballast_api.gateway_settings import Keys
from ballast_gateway.file_stamps import stamp
from ballast_gateway.keys import KeyRing
from ballast_gateway.tenants import Tenant, Usage
from tests.support.gateway_kit import (
    Answer,
    RunningGateway,
    endpoints_text,
    post,
    raw_exchange,
    running_gateway,
    until,
)
from tests.support.scripted_engine import Asked, completion, decode_script, json_reply, scripted_engine

PATH, BODY = "/v1/completions", {"model": "tiny", "prompt": "hello", "max_tokens": 3}


HASH = sha256(b"one").hexdigest()


def hashed(key: str) -> str:
    return sha256(key.encode()).hexdigest()


def write(file: Path, *tenants: dict[str, Any]) -> str:
    """In place of what is there, by a new link, as a Secret's volume changes."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps({"tenants": list(tenants)}))
    new.replace(file)
    return str(file)


def team(name: str, *keys: str, **limits: int) -> dict[str, Any]:
    return {"name": name, "keys": [hashed(key) for key in keys], **limits}


async def ask(gateway: RunningGateway, *headers: str, path: str = PATH) -> Answer:
    [answer] = await raw_exchange(gateway.port, post(path, BODY, *headers), answers=1)
    return answer


@pytest.mark.parametrize(
    ("header", "served"),
    [
        ("authorization: Bearer one", True),
        ("authorization: bearer   two ", True),
        ("x-api-key: one", True),
        ("authorization: Bearer three", False),
        ("authorization: Basic one", False),
        ("authorization: one", False),
        ("authorization: Bearer ", False),
        ("x-api-key: " + hashed("one"), False),
        ("x-other: one", False),
    ],
)
async def test_who_has_a_known_key_is_served(header: str, served: bool, tmp_path: Path) -> None:
    """The hash is no key. Engines never see one."""
    file = write(tmp_path / "keys", team("a", "one", "two"))
    async with (
        scripted_engine(decode_script) as engine,
        running_gateway(tmp_path, {"d0": engine.address}, keys={"file": file}) as gateway,
    ):
        answer = await ask(gateway, header)
        assert answer.status == (200 if served else 401)
        if not served:
            assert answer.json()["error"]["code"] == "invalid-api-key"
            assert answer.json()["error"]["type"] == "invalid_request_error"
        for asked in engine.asked:
            assert not {"authorization", "x-api-key"} & asked.headers.keys()
        assert len(engine.asked) == served
        assert gateway.request()["outcome"] == ("completed" if served else "invalid")


async def test_models_need_a_key_and_health_does_not(tmp_path: Path) -> None:
    file = write(tmp_path / "keys", team("a", "one"))
    async with running_gateway(tmp_path, {}, keys={"file": file}) as gateway:
        asked = [b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % path for path in (b"/v1/models", b"/health")]
        models, health = await raw_exchange(gateway.port, *asked, answers=2)
        assert (models.status, health.status) == (401, 200)


async def test_without_a_keys_file_keys_pass_to_the_engines(tmp_path: Path) -> None:
    async with (
        scripted_engine(decode_script) as engine,
        running_gateway(tmp_path, {"d0": engine.address}) as gateway,
    ):
        assert (await ask(gateway, "authorization: Bearer anything")).status == 200
        assert engine.asked[0].headers["authorization"] == "Bearer anything"


async def test_a_changed_file_counts_at_once_and_a_bad_one_not_at_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A new key comes, the old one goes; a file with a key in place of its hash is refused, and not repeated."""
    caplog.set_level("INFO")
    file = tmp_path / "keys"
    write(file, team("a", "one"))
    async with (
        scripted_engine(decode_script) as engine,
        running_gateway(tmp_path, {"d0": engine.address}, keys={"file": str(file)}) as gateway,
    ):
        assert (await ask(gateway, "x-api-key: one")).status == 200
        write(file, team("a", "two"))
        await until(lambda: "read the keys file" in caplog.text)
        assert (await ask(gateway, "x-api-key: one")).status == 401
        assert (await ask(gateway, "x-api-key: two")).status == 200
        write(file, {"name": "a", "keys": ["canary-key"]})
        await until(lambda: "the keys file is not usable" in caplog.text)
        assert (await ask(gateway, "x-api-key: two")).status == 200
        assert "canary-key" not in str([vars(record) for record in caplog.records])
        os.remove(file)
        await until(lambda: caplog.text.count("the keys file is not usable") == 2)
        assert (await ask(gateway, "x-api-key: two")).status == 200
        assert hashed("two") not in str([vars(record) for record in caplog.records])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tenants: [{name: a, keys: [plain-secret]}]", "tenants[0].keys[0]: must be one or more SHA-256"),
        ("tenants: [{name: a, keys: [1234567890]}]", "tenants[0].keys[0]"),
        ("tenants: [{name: a, keys: []}]", "tenants[0].keys"),
        (f"tenants: [{{name: a, keys: [{HASH}]}}, {{name: b, keys: [{HASH}]}}]", "that no other tenant has"),
        (f"tenants: [{{name: a, keys: [{HASH}], maxInFlight: 0}}]", "tenants[0].maxInFlight: must be a whole number"),
        (f"tenants: [{{name: a, keys: [{HASH}]}}, {{name: a, keys: [{HASH}]}}]", "tenants"),
        ("plain-secret: []", "must be YAML: `tenants:`"),
        ("tenants: {plain-secret", "must be YAML"),
        ("tenants: [{name: a, plain-secret: 1}]", "tenants"),
    ],
    ids=["a key", "a number", "none", "a key of two", "no request", "a name twice", "a field", "no YAML", "inside"],
)
def test_a_bad_file_is_refused_at_the_start(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(text)
    with pytest.raises(InvalidInput) as raised:
        KeyRing(Keys(file=str(tmp_path / "keys")), lambda: 0.0)
    assert said in str(raised.value)
    assert "plain-secret" not in str(raised.value)
    assert "1234567890" not in str(raised.value)


def test_a_missing_file_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        KeyRing(Keys(file=str(tmp_path / "keys")), lambda: 0.0)


def tenant(now_s: Callable[[], float] = lambda: 0.0, **limits: int) -> Tenant:
    return Tenant(TenantEntry.parse(team("a", "one", **limits)), now_s, Usage())


def test_a_tenant_has_so_many_requests_in_flight() -> None:
    a = tenant(maxInFlight=2)
    assert [a.begin(10) is None for _ in range(3)] == [True, True, False]
    a.end(10, 5)
    assert a.begin(10) is None
    refused = a.begin(10)
    assert refused is not None
    assert (refused.status, refused.code, refused.retry_after_s) == (429, "tenant-limit", 1)


def test_tokens_are_let_in_at_their_rate_after_a_minutes_worth() -> None:
    """Prompts count at their beginning, output at its end; a debt is paid before the next request."""
    clock = [0.0]
    a = tenant(lambda: clock[0], tokensPerMinute=600)
    assert a.begin(500) is None
    assert a.begin(50) is None
    a.end(500, 200)
    refused = a.begin(1)
    assert refused is not None
    assert refused.retry_after_s == 16  # 151 tokens at 10 a second
    clock[0] = 15.0
    assert a.begin(1) is not None
    clock[0] = float(refused.retry_after_s)
    assert a.begin(1) is None
    clock[0] = 1e6
    assert [a.begin(600) is None for _ in range(2)] == [True, False]


def test_what_other_gateways_let_in_counts_in_the_same_share() -> None:
    a = tenant(maxInFlight=2, tokensPerMinute=100)
    a.began_elsewhere(10)
    assert [a.begin(10) is None for _ in range(2)] == [True, False]
    a.ended_elsewhere(90)
    refused = a.begin(10)
    assert refused is not None
    assert "tokens a minute" in refused.message
    assert not a.idle


def test_limits_change_while_requests_run() -> None:
    a = tenant(maxInFlight=1)
    assert a.begin(1) is None
    a.limit(TenantEntry.parse(team("a", "one", maxInFlight=2, tokensPerMinute=100)))
    assert [a.begin(1) is None for _ in range(2)] == [True, False]
    a.end(1, 0)
    a.end(1, 0)
    assert [a.begin(100) is None for _ in range(2)] == [True, False]


async def test_limits_are_the_tenants_and_come_back_with_the_end(tmp_path: Path) -> None:
    """Two keys, one tenant: its third request at once is refused with Retry-After; another tenant's is not."""
    going: list[Any] = []

    async def slow(asked: Asked, writer: Any) -> None:
        going.append(asked)
        await until(lambda: len(going) > 2)
        writer.write(json_reply(completion()))

    file = write(tmp_path / "keys", team("a", "one", "two", maxInFlight=2), team("b", "three"))
    plain = {**BODY, "logprobs": 1}
    async with (
        scripted_engine(slow) as engine,
        running_gateway(tmp_path, {"d0": engine.address}, keys={"file": file}) as gateway,
    ):

        async def one(key: str) -> Answer:
            [answer] = await raw_exchange(gateway.port, post(PATH, plain, f"x-api-key: {key}"), answers=1)
            return answer

        first = [asyncio.create_task(one(key)) for key in ("one", "two")]
        await until(lambda: len(going) == 2)
        refused = await one("one")
        assert (refused.status, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["code"] == "tenant-limit"
        assert (await one("three")).status == 200
        assert [(await each).status for each in first] == [200, 200]
        assert (await one("two")).status == 200


async def test_a_prompt_that_no_engine_is_asked_for_costs_no_tokens(tmp_path: Path) -> None:
    """However often its client comes back; one that an engine has refused has been read."""

    async def refuse(asked: Asked, writer: Any) -> None:
        writer.write(json_reply({"error": {"message": "no"}}, status=400))

    file = write(tmp_path / "keys", team("a", "one", tokensPerMinute=10))
    body = {"model": "tiny", "prompt": [1] * 9}
    async with (
        scripted_engine(refuse) as engine,
        running_gateway(tmp_path, {}, wait=False, keys={"file": file}) as gateway,
    ):

        async def status() -> int:
            [answer] = await raw_exchange(gateway.port, post(PATH, body, "x-api-key: one"), answers=1)
            return answer.status

        assert [await status() for _ in range(5)] == [503] * 5
        gateway.endpoints_file.write_text(endpoints_text({"d0": engine.address}))
        await gateway.ready_endpoints(1)
        assert [await status() for _ in range(3)] == [400, 400, 429]


def test_a_file_that_is_mended_by_its_rights_alone_has_changed(tmp_path: Path) -> None:
    """Who may not read a file may look at it: what has failed then is tried again after `chmod`."""
    file = Path(write(tmp_path / "keys"))
    os.chmod(file, 0o600)
    before = stamp(file)
    assert stamp(file) == before
    while os.stat(file).st_ctime_ns == (before or (0, 0))[1]:  # the clock of the file system may be coarse
        os.chmod(file, 0o644)
    assert stamp(file) != before


async def test_a_fault_in_a_look_at_the_keys_is_not_the_last_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the last sweep of connections."""
    looks: list[int] = []

    def fault(_: KeyRing) -> None:
        looks.append(1)
        if len(looks) == 2:  # the first look is at the start
            raise RuntimeError("a fault")

    monkeypatch.setattr(KeyRing, "refresh", fault)
    file = write(tmp_path / "keys", team("a", "one"))
    async with running_gateway(tmp_path, {}, wait=False, keys={"file": file}):
        await until(lambda: len(looks) > 2)


async def test_what_tenants_use_is_in_metrics_the_log_and_the_admin_api(tmp_path: Path) -> None:
    """By the names of the file, each once; strangers are in none of them."""
    file = write(tmp_path / "keys", team("a", "one", maxInFlight=5, tokensPerMinute=4), team("b", "two"))
    async with (
        scripted_engine(decode_script) as engine,
        running_gateway(tmp_path, {"d0": engine.address}, keys={"file": file}) as gateway,
        httpx.AsyncClient(base_url=gateway.admin_url) as admin,
    ):
        statuses = [(await ask(gateway, f"x-api-key: {key}")).status for key in ("one", "one", "one", "two", "three")]
        assert statuses[0] == 200
        assert (statuses[2:], statuses.count(429)) == ([429, 200, 401], statuses[:3].count(429))
        let_in = statuses[:3].count(200)
        page = (await admin.get("/metrics")).text
        assert f'ballast_gateway_tenant_requests_total{{tenant="a"}} {let_in}.0' in page
        assert f'ballast_gateway_tenant_refused_total{{limit="tokens",tenant="a"}} {3 - let_in}.0' in page
        assert 'ballast_gateway_tenant_refused_total{limit="in-flight",tenant="a"} 0.0' in page
        assert 'ballast_gateway_tenant_output_tokens_total{tenant="b"} 3.0' in page
        assert "three" not in page
        shares = {each["name"]: each for each in (await admin.get("/ballast/v1/tenants")).json()["tenants"]}
        assert shares["a"]["in_flight"] == {"here": 0, "elsewhere": 0, "limit": 5}
        assert shares["a"]["tokens"]["left"] <= 0
        assert shares["b"]["tokens"] == {"left": None, "a_minute": None}
        assert shares["b"]["used"]["output_tokens"] == 3
        assert [line.get("tenant") for line in gateway.requests()] == ["a", "a", "a", "b", None]
