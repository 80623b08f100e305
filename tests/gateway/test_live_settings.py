"""A gateway takes new settings while it serves: nothing is lost, the new ones decide, and bad text changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ballast_api.gateway_settings import GatewaySettings
from ballast_api.settings_changes import text_hash
from ballast_core.directing.settings import DirectorSettings
from ballast_gateway.settings_file import SettingsFile
from tests.gateway.test_proxy_engine_sim import Line
from tests.gateway.test_workers import running
from tests.support.gateway_kit import RunningGateway, endpoints_text, settings, until
from tests.support.scripted_engine import decode_script, scripted_engine

ROUND_ROBIN = {"prefill": {"type": "round-robin"}, "decode": {"type": "round-robin"}}
BY_LOAD = {"prefill": {"type": "least-requests"}, "decode": {"type": "least-requests"}}
BODY = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 40, "stream": True, "ignore_eos": True}


class Mounted:
    """A settings file as a kubelet mounts it: `gateway.yaml` -> `..data/gateway.yaml`, `..data` -> a folder."""

    def __init__(self, folder: Path, text: str) -> None:
        self._folder = folder
        self._versions = 0
        self.path = folder / "gateway.yaml"
        self.write(text)
        self.path.symlink_to("..data/gateway.yaml")

    def write(self, text: str) -> None:
        self._versions += 1
        version = self._folder / f"..version_{self._versions}"
        version.mkdir()
        (version / "gateway.yaml").write_text(text)
        (self._folder / "..data_tmp").symlink_to(version.name)
        os.replace(self._folder / "..data_tmp", self._folder / "..data")

    def change(self, now: GatewaySettings, **parts: Any) -> str:
        """Write `now` with other parts; returns the text's hash."""
        data = now.dump()
        for key, value in parts.items():
            data[key] = {**data[key], **value} if isinstance(value, dict) and isinstance(data.get(key), dict) else value
        text = json.dumps(data)
        self.write(text)
        return text_hash(text.encode())


@asynccontextmanager
async def followed(line: Line, tmp_path: Path, **first: Any) -> AsyncIterator[tuple[RunningGateway, Mounted]]:
    """A gateway before engine-sims, and the file that it follows."""
    async with line:
        gateway = await line.start(**first)
        mounted = Mounted(tmp_path, gateway.gateway.settings.to_yaml())
        file = SettingsFile(mounted.path)
        file.load()
        gateway.gateway.run(file.follow(lambda: gateway.gateway.settings, gateway.gateway.hear))
        yield gateway, mounted


async def stream(client: httpx.AsyncClient, url: str, **more: Any) -> int:
    """Tokens of one whole stream."""
    tokens = 0
    async with client.stream("POST", f"{url}/v1/completions", json=BODY | more) as answer:
        assert answer.status_code == 200, await answer.aread()
        done = False
        async for row in answer.aiter_lines():
            done |= row == "data: [DONE]"
            tokens += row.startswith("data: {") and bool(json.loads(row[6:])["choices"])
            assert '"error"' not in row, row
    assert done, "the stream was cut"
    return tokens


def decided_by(gateway: RunningGateway) -> list[str]:
    """The policies of the last decisions about decodes, newest first."""
    found: list[Any] = gateway.gateway.decisions.last(1000)
    return [trace["policy"] for each in found for trace in each.get("placements", ()) if trace["stage"] == "decode"]


@pytest.mark.rotating(4)
async def test_a_policy_is_swapped_under_load(tmp_path: Path) -> None:
    """Streams that began before go on to their ends, nothing is refused, and the new policy decides what comes."""
    async with followed(Line(tmp_path), tmp_path, policy=ROUND_ROBIN) as (running_, mounted):
        gateway, stop = running_.gateway, asyncio.Event()
        whole: list[int] = []
        async with httpx.AsyncClient(timeout=60, limits=httpx.Limits(max_connections=None)) as client:

            async def load() -> None:
                while not stop.is_set():
                    whole.append(await stream(client, running_.url))

            long = [asyncio.create_task(stream(client, running_.url, max_tokens=1500)) for _ in range(6)]
            loads = [asyncio.create_task(load()) for _ in range(4)]
            await until(lambda: len(gateway.driver.director.ledger) >= 10 and len(whole) >= 4)
            learned = gateway.driver.director.beliefs
            for generation, policy in enumerate([BY_LOAD, {**BY_LOAD, "decode": {"type": "ballast"}}], 2):
                in_flight = {entry.request.id for entry in gateway.driver.director.ledger}
                hash_ = mounted.change(gateway.settings, policy=policy)
                await until(lambda generation=generation: gateway.settings_state.generation == generation)
                assert gateway.settings_state.hash == hash_
                assert in_flight & {entry.request.id for entry in gateway.driver.director.ledger}, "the ledger is kept"
                before = len(whole)
                await until(lambda before=before: len(whole) > before + 4)
            assert gateway.driver.director.beliefs is learned
            stop.set()
            assert set(await asyncio.gather(*long)) == {1500}
            await asyncio.gather(*loads)
            assert set(whole) == {40}
            await stream(client, running_.url)
        assert {entry["outcome"] for entry in running_.requests()} == {"completed"}
        types = decided_by(running_)
        assert types[0] == "ballast"
        assert set(types) == {"ballast", "least-requests", "round-robin"}
        assert types == sorted(types, key=["ballast", "least-requests", "round-robin"].index), "none after its swap"
        assert not len(gateway.driver.director.ledger)


async def test_a_text_that_is_refused_leaves_the_settings_in_force(tmp_path: Path) -> None:
    """The admin API and the metrics say so; the next good text is taken."""
    async with followed(Line(tmp_path), tmp_path) as (running_, mounted), httpx.AsyncClient() as client:
        state, before = running_.gateway.settings_state, running_.gateway.settings
        bad = mounted.change(before, policy={"decode": {"type": "best"}})
        await until(lambda: state.problem)
        assert running_.gateway.settings is before
        said = (await client.get(f"{running_.admin_url}/ballast/v1/settings")).json()
        assert (said["generation"], said["refused"]["hash"]) == (1, bad)
        assert "policy.decode.type" in said["refused"]["problem"]
        assert said["settings"]["policy"] == before.dump()["policy"]
        metrics = (await client.get(f"{running_.admin_url}/metrics")).text
        assert "ballast_gateway_settings_refused 1.0" in metrics
        assert 'ballast_gateway_settings_texts_total{result="refused"} 1.0' in metrics
        good = mounted.change(before, policy=BY_LOAD)
        await until(lambda: state.hash == good)
        said = (await client.get(f"{running_.admin_url}/ballast/v1/settings")).json()
        assert (said["generation"], said["refused"], said["waits_for_restart"]) == (2, None, [])
        assert said["settings"]["policy"]["decode"]["type"] == "least-requests"


@pytest.mark.rotating(3)
async def test_a_fault_in_taking_settings_brings_those_before_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It costs no stream: the gateway goes on, and says what happened."""
    async with followed(Line(tmp_path), tmp_path, policy=ROUND_ROBIN) as (running_, mounted):
        gateway, before = running_.gateway, running_.gateway.settings
        use = gateway.driver.use

        def once(settings: DirectorSettings) -> None:
            monkeypatch.setattr(gateway.driver, "use", use)
            use(settings)
            raise RuntimeError("a fault")

        monkeypatch.setattr(gateway.driver, "use", once)
        async with httpx.AsyncClient(timeout=60) as client:
            long = asyncio.create_task(stream(client, running_.url, max_tokens=300))
            await until(lambda: len(gateway.driver.director.ledger) == 1)
            mounted.change(before, policy=BY_LOAD)
            await until(lambda: gateway.settings_state.problem)
            assert "a fault" in gateway.settings_state.problem
            assert await long == 300
        assert gateway.settings is before
        assert gateway.driver.director.settings.decode.type == "round-robin"
        assert not gateway.failed.is_set()


async def test_what_needs_a_restart_waits_and_the_rest_is_taken(tmp_path: Path) -> None:
    async with followed(Line(tmp_path), tmp_path) as (running_, mounted):
        gateway = running_.gateway
        drain_s = gateway.settings.limits.drain_timeout_s
        mounted.change(gateway.settings, limits={"drainTimeoutS": 7.0, "maxRetries": 5}, listeners={"proxy": 1})
        await until(lambda: gateway.settings_state.generation == 2)
        assert gateway.settings_state.report()["waits_for_restart"] == ["limits.drainTimeoutS", "listeners"]
        assert (gateway.settings.limits.max_retries, gateway.settings.limits.drain_timeout_s) == (5, drain_s)
        assert gateway.driver.director.settings.max_retries == 5


@pytest.mark.rotating(3)
async def test_names_limits_and_trust_are_those_of_the_new_text(tmp_path: Path) -> None:
    async with followed(Line(tmp_path), tmp_path) as (running_, mounted), httpx.AsyncClient() as client:
        renamed = {"servedNames": ["tiny", "renamed"]}
        mounted.change(running_.gateway.settings, model=renamed, limits={"maxInFlight": 1}, corsOrigins=["*"])
        await until(lambda: running_.gateway.settings_state.generation == 2)
        listed = (await client.get(f"{running_.url}/v1/models", headers={"origin": "https://a.example"})).json()
        assert [each["id"] for each in listed["data"]] == ["tiny", "renamed"]
        held = asyncio.create_task(stream(client, running_.url, max_tokens=400))
        await until(lambda: len(running_.gateway.driver.director.ledger) == 1)
        refused = await client.post(f"{running_.url}/v1/completions", json=BODY)
        assert (refused.status_code, refused.headers["x-ballast-reason"]) == (429, "saturated")
        assert await held == 400


async def test_the_picker_serves_by_the_new_text(tmp_path: Path) -> None:
    """Streams that begin later know the new names and policies; the transport stays."""
    listeners = {"extProc": 0, "grpcHealth": 0}
    async with followed(Line(tmp_path), tmp_path, face="Both", listeners=listeners) as (running_, mounted):
        gateway = running_.gateway
        face = gateway.picker._face  # type: ignore[union-attr]
        ports = dict(gateway.ports)
        assert "renamed" not in face.settings.served_models
        mounted.change(gateway.settings, model={"servedNames": ["renamed"]}, policy=BY_LOAD)
        await until(lambda: gateway.settings_state.generation == 2)
        assert "renamed" in face.settings.served_models
        assert gateway.ports == ports


def _decodes(said: dict[str, Any]) -> str | None:
    return said["settings"]["policy"]["decode"]["type"] if said else None


@pytest.mark.rotating(4)
async def test_every_worker_takes_a_change_and_so_does_one_that_is_started_again(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(scripted_engine(decode_script))
        at = await stack.enter_async_context(running(tmp_path, {"d0": engine.address}, policy=ROUND_ROBIN))
        client = await stack.enter_async_context(httpx.AsyncClient())

        async def said(worker: int) -> dict[str, Any]:
            answer = await client.get(f"{at.admin_url}/ballast/v1/settings", params={"worker": worker})
            return dict(answer.json()) if answer.status_code == 200 else {}

        async def all_say(policy: str) -> None:
            async with asyncio.timeout(60):
                while not all([_decodes(await said(worker)) == policy for worker in range(2)]):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

        await all_say("round-robin")
        file = tmp_path / "gateway.yaml"
        data = settings(tmp_path / "endpoints.yaml", workers=2, limits={"drainGraceS": 0}, policy=BY_LOAD).dump()
        file.write_text(json.dumps(data))
        await all_say("least-requests")
        assert {(await said(worker))["hash"] for worker in range(2)} == {text_hash(file.read_bytes())}
        assert await at.ask() == 200
        os.kill(at.workers()[0], 9)
        await until(lambda: any(each.get("event") == "worker-ended" for each in at.messages()))
        await all_say("least-requests")
        file.write_text("model: [")
        async with asyncio.timeout(60):
            while not all([(await said(worker)).get("refused") for worker in range(2)]):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await at.ask() == 200


@pytest.mark.rotating(4)
async def test_a_worker_that_is_started_again_says_what_waits_and_what_is_refused(tmp_path: Path) -> None:
    """As those do that heard of it."""
    async with running(tmp_path, {}, policy=ROUND_ROBIN) as at, httpx.AsyncClient() as client:

        async def all_say(what: tuple[list[str], bool]) -> None:
            async with asyncio.timeout(60):
                for worker in range(2):
                    while await said(worker) != what:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)

        async def said(worker: int) -> tuple[list[str], bool] | None:
            answer = await client.get(f"{at.admin_url}/ballast/v1/settings", params={"worker": worker})
            if answer.status_code != 200:
                return None
            return answer.json()["waits_for_restart"], answer.json()["refused"] is not None

        await all_say(([], False))
        file = tmp_path / "gateway.yaml"
        data = settings(tmp_path / "endpoints.yaml", workers=2, limits={"drainGraceS": 1}, policy=ROUND_ROBIN).dump()
        file.write_text(json.dumps(data))
        await all_say((["limits.drainGraceS"], False))
        file.write_text("model: [")
        await all_say((["limits.drainGraceS"], True))
        for worker in at.workers():
            os.kill(worker, 9)
            await until(lambda gone=worker: gone not in at.workers())
            await at.ready()
            await all_say((["limits.drainGraceS"], True))


@pytest.mark.rotating(3)
async def test_each_gateway_of_one_process_follows_its_own_file(tmp_path: Path) -> None:
    """`ballast gateway --config a --config b`: a change of one is none of the other's."""
    (tmp_path / "endpoints.yaml").write_text(endpoints_text({}))
    now = settings(tmp_path / "endpoints.yaml", policy=ROUND_ROBIN, limits={"drainGraceS": 0})
    files = [tmp_path / f"{name}.yaml" for name in ("chat", "code")]
    for file in files:
        file.write_text(now.to_yaml())
    arguments = [part for file in files for part in ("--config", str(file))]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ballast_cli", "gateway", *arguments), stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        admin: dict[str, int] = {}

        async def said(event: str) -> dict[str, Any]:
            """The next line of the log about this."""
            assert process.stderr is not None
            async with asyncio.timeout(60):
                while line := await process.stderr.readline():
                    if (found := json.loads(line)).get("event") == event:
                        return dict(found)
            raise AssertionError("the process has ended")

        for _ in files:
            listening = await said("listening")
            admin[listening["gateway"]] = listening["ports"]["admin"]
        files[1].write_text(json.dumps(now.dump() | {"policy": BY_LOAD, "logLevel": "debug"}))
        taken = await said("settings")
        assert (taken["gateway"], taken["generation"]) == ("code", 2)
        async with httpx.AsyncClient() as client:
            found = {
                name: _decodes((await client.get(f"http://127.0.0.1:{port}/ballast/v1/settings")).json())
                for name, port in admin.items()
            }
        assert found == {"chat": "round-robin", "code": "least-requests"}
        files[0].write_text("model: [")
        refused = await said("settings-refused")
        assert refused["gateway"] == "chat"
        assert "is not YAML" in refused["problem"]
    finally:
        process.terminate()
        await process.communicate()
    assert process.returncode == 0


def test_a_text_is_read_whole_and_once(tmp_path: Path) -> None:
    """A new link to the same text is no news; one that cannot be read is."""
    (tmp_path / "endpoints.yaml").write_text(endpoints_text({}))
    now = settings(tmp_path / "endpoints.yaml")
    mounted = Mounted(tmp_path, now.to_yaml())
    file = SettingsFile(mounted.path)
    assert file.load() == now
    mounted.write(now.to_yaml())
    assert file.news(now) is None
    mounted.path.unlink()
    news = file.news(now)
    assert news is not None
    assert news.settings is None
    assert "cannot be read" in news.problem
    mounted.path.write_text(now.to_yaml())
    back = file.news(now)
    assert back is not None
    assert back.settings == now, "what was refused is in force again"


@pytest.mark.parametrize("port", [0, 9002])
def test_what_does_not_go_together_until_a_restart_is_refused(tmp_path: Path, port: int) -> None:
    """The text is good, and what would be taken of it is not: a partition beside the workers that run."""
    file = tmp_path / "gateway.yaml"
    now = settings(tmp_path / "endpoints.yaml", workers=2, listeners={"proxy": port})
    file.write_text(now.to_yaml())
    followed_file = SettingsFile(file)
    followed_file.load()
    partition = {"partition": {"type": "fixed"}}
    file.write_text(json.dumps(now.dump() | {"workers": 1, "policy": partition}))
    news = followed_file.news(now)
    assert news is not None
    assert news.settings is None
    assert "policy.partition" in news.problem
    assert "until a restart" in news.problem
