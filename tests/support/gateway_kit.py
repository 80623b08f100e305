"""A gateway inside the test's own loop, and clients that control every byte."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httptools

from ballast_api.gateway_settings import GatewaySettings
from ballast_gateway.app import Gateway


@dataclass(slots=True)
class RunningGateway:
    """A started gateway, its log and its ports."""

    gateway: Gateway
    out: io.StringIO
    endpoints_file: Path

    @property
    def port(self) -> int:
        return self.gateway.ports["proxy"]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def admin_url(self) -> str:
        return f"http://127.0.0.1:{self.gateway.ports['admin']}"

    def requests(self) -> list[dict[str, Any]]:
        """The request log so far.

        Without scrapes: a gateway of a test that runs beside this one goes on to scrape an engine that it has lost,
        at a port that may be ours by now.
        """
        self.gateway._lines.flush()
        entries = [json.loads(line) for line in self.out.getvalue().splitlines()]
        return [entry for entry in entries if not _is_scrape(entry)]

    def request(self) -> dict[str, Any]:
        """The only entry of the request log; what else is there is shown."""
        entries = self.requests()
        assert len(entries) == 1, entries
        return entries[0]

    async def ready_endpoints(self, count: int, timeout_s: float = 20.0) -> None:
        """Wait until so many endpoints are ready; those that are not are named with what is wrong."""
        members = self.gateway.fleet.members
        try:
            await until(lambda: sum(m.state == "ready" for m in members.values()) == count, timeout_s)
        except TimeoutError:
            found = {str(key): (member.state, member.problem) for key, member in members.items()}
            raise AssertionError(f"not {count} endpoints are ready after {timeout_s:g} s: {found}") from None


def _is_scrape(entry: Mapping[str, Any]) -> bool:
    return entry.get("reason") == "not-found" and "/metrics" in entry.get("detail", "")


def endpoints_text(addresses: Mapping[str, str], revisions: Mapping[str, str] | None = None) -> str:
    """An endpoints file; roles follow from names: p* prefill, f* flexible, else decode. `revisions`: by name."""
    roles = {"p": "prefill", "f": "flexible"}
    entries = [
        {"name": name, "address": address, "role": roles.get(name[0], "decode"), "pool": f"pool-{name[0]}"}
        | ({"revision": revisions[name]} if revisions else {})
        for name, address in addresses.items()
    ]
    return json.dumps({"endpoints": entries})


def settings(endpoints_file: Path, **more: Any) -> GatewaySettings:
    """Settings of a local gateway on free ports, with quick scrapes."""
    data: dict[str, Any] = {
        "model": {"servedNames": ["tiny", "tiny-alias"]},
        "discovery": {"file": str(endpoints_file)},
        "listeners": {"host": "127.0.0.1", "proxy": 0, "admin": 0},
        "scrape": {"intervalS": 0.05, "timeoutS": 5.0},
    }
    for key, value in more.items():
        data[key] = {**data[key], **value} if isinstance(value, dict) and isinstance(data.get(key), dict) else value
    return GatewaySettings.parse(data)


@asynccontextmanager
async def running_gateway(
    tmp_path: Path,
    addresses: Mapping[str, str],
    *,
    wait: bool = True,
    ready_s: float = 20.0,
    revisions: Mapping[str, str] | None = None,
    **more: Any,
) -> AsyncIterator[RunningGateway]:
    """A gateway in front of these endpoints, all of them ready, which may take them up to `ready_s`."""
    file = tmp_path / "endpoints.yaml"
    file.write_text(endpoints_text(addresses, revisions))
    out = io.StringIO()
    gateway = Gateway(settings(file, **more), out=out)
    try:
        await gateway.start()
        running = RunningGateway(gateway, out, file)
        if wait:
            await running.ready_endpoints(len(addresses), ready_s)
        yield running
    finally:
        await gateway.close()


async def until(condition: Any, timeout_s: float = 20.0) -> None:
    """Wait until a condition holds; fail after a time that only a hang reaches."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0.01)


@dataclass(slots=True)
class Answer:
    """One HTTP answer, read byte by byte."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool
    """It ended as its framing says."""

    def json(self) -> Any:
        return json.loads(self.body)


class _Reader:
    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.headers: dict[str, str] = {}
        self.body = b""
        self.in_body = False
        self.parser = httptools.HttpResponseParser(self)

    def on_message_begin(self) -> None:
        self.headers, self.body = {}, b""

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_headers_complete(self) -> None:
        self.in_body = True

    def on_body(self, part: bytes) -> None:
        self.body += part

    def on_message_complete(self) -> None:
        self.in_body = False
        self.answers.append(Answer(self.parser.get_status_code(), self.headers, self.body, whole=True))


async def raw_exchange(
    port: int,
    *parts: bytes | Callable[[], bytes],
    answers: int | None = None,
    pause_s: float = 0.0,
    timeout_s: float = 20.0,
) -> list[Answer]:
    """Send bytes, part by part, and read answers until so many are there, or until the server closes. A part may be
    made when it is its turn."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    parsed = _Reader()
    try:
        async with asyncio.timeout(timeout_s):
            for part in parts:
                writer.write(part if isinstance(part, bytes) else part())
                await asyncio.sleep(pause_s)
            while answers is None or len(parsed.answers) < answers:
                try:
                    data = await reader.read(1 << 16)
                except ConnectionError:
                    break
                if not data:
                    break
                parsed.parser.feed_data(data)
    finally:
        writer.close()
    if parsed.in_body:
        parsed.answers.append(
            Answer(
                parsed.parser.get_status_code(),
                parsed.headers,
                parsed.body,
                whole="content-length" not in parsed.headers and "transfer-encoding" not in parsed.headers,
            )
        )
    return parsed.answers


def post(path: str, body: bytes | object, *headers: str) -> bytes:
    """The bytes of a POST."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1", "host: gateway", f"content-length: {len(raw)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + raw


def assert_openai_error(answer: Answer) -> dict[str, Any]:
    """The body has the shape of OpenAI's errors; returns the error."""
    document = answer.json()
    assert set(document) == {"error"}
    error = document["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert error["code"] == answer.headers["x-ballast-reason"]
    return dict(error)
