"""Asking gateways: signed calls to the admin ports of their pods, many at a time."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx

from ballast_api import load_report
from ballast_api.attainment_report import ATTAINMENT, read_report
from ballast_api.demand_report import DEMAND, DemandReport, read_demand
from ballast_api.load_report import LoadReport
from ballast_api.profile_report import PROFILES, ProfilesReport, read_profiles
from ballast_api.recorded_traffic import TRAFFIC
from ballast_api.signatures import PROOF, RECIPIENT, Recipients, Signed, refusal_of
from ballast_operator.gateways.measured import Answer

ANSWER_S: Final = 3.0
"""How long a report may take, from the connection to its last byte."""
TRAFFIC_S: Final = 30.0
"""How long a gateway's recorded traffic may take."""
_AT_ONCE: Final = 64
_MOST_REPORT_BYTES: Final = 1 << 20
_MOST_TRAFFIC_BYTES: Final = 64 << 20
_RECIPIENTS: Final = Recipients()
"""Of this process: askers come and go."""


class NoAnswer(Exception):
    """No answer that counts, and why."""


class Asker:
    """Asks gateways within one event loop. No connection is kept: gateways come and go."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def report(self, gateway: str, address: str, token: bytes) -> Answer:
        """What a gateway has counted, or why it does not say. `address`: `host:port` of its admin API."""
        try:
            body = await self._get(address, ATTAINMENT, token, ANSWER_S, _MOST_REPORT_BYTES)
            return Answer(gateway, read_report(body))
        except (NoAnswer, ValueError) as error:
            return Answer(gateway, problem=str(error))

    async def demand(self, address: str, token: bytes) -> DemandReport:
        """What a gateway's clients ask for. Raises `NoAnswer`."""
        body = await self._get(address, DEMAND, token, ANSWER_S, _MOST_REPORT_BYTES)
        try:
            return read_demand(body)
        except ValueError as error:
            raise NoAnswer(str(error)) from error

    async def load(self, address: str, token: bytes) -> LoadReport:
        """What it would take to empty each endpoint. Raises `NoAnswer`."""
        body = await self._get(address, load_report.LOAD, token, ANSWER_S, _MOST_REPORT_BYTES)
        try:
            return load_report.read_report(body)
        except ValueError as error:
            raise NoAnswer(str(error)) from error

    async def profiles(self, address: str, token: bytes) -> ProfilesReport:
        """What a gateway has learned of engines. Raises `NoAnswer`."""
        body = await self._get(address, PROFILES, token, ANSWER_S, _MOST_REPORT_BYTES)
        try:
            return read_profiles(body)
        except ValueError as error:
            raise NoAnswer(str(error)) from error

    async def traffic(
        self, address: str, token: bytes, *, names: str, minutes: float, within_s: float = TRAFFIC_S
    ) -> bytes:
        """Named rows of the last minutes, for `ballast_api.recorded_traffic.merged`. Raises `NoAnswer`."""
        target = f"{TRAFFIC}?names={names}&minutes={minutes:g}"
        return await self._get(address, target, token, min(within_s, TRAFFIC_S), _MOST_TRAFFIC_BYTES)

    async def _get(self, address: str, target: str, token: bytes, limit_s: float, most_bytes: int) -> bytes:
        async with self._turns:
            try:
                async with asyncio.timeout(limit_s):
                    signed, answer, body = await self._signed(address, target, token, most_bytes)
                    if _RECIPIENTS.learn(address, answer.status_code, answer.headers.get(RECIPIENT, ""), signed):
                        signed, answer, body = await self._signed(address, target, token, most_bytes)
            except TimeoutError as error:
                raise NoAnswer(f"no answer within {limit_s:.2g} s") from error
            except httpx.HTTPError as error:
                raise NoAnswer(f"no answer ({type(error).__name__})") from error
        if answer.status_code != 200:
            raise NoAnswer(f"answered {answer.status_code}{refusal_of(answer.status_code, body)}")
        if not signed.is_proof(answer.headers.get(PROOF, "")):
            raise NoAnswer("answered without proof that it has the fleet's token")
        return body

    async def _signed(
        self, address: str, target: str, token: bytes, most_bytes: int
    ) -> tuple[Signed, httpx.Response, bytes]:
        signed = Signed(token, "GET", target, b"", time.time(), to=_RECIPIENTS.at(address))
        headers = {"authorization": signed.authorization, "connection": "close"}
        async with self._client.stream("GET", f"http://{address}{target}", headers=headers) as answer:
            return signed, answer, await _read(answer, most_bytes)


async def _read(answer: httpx.Response, most_bytes: int) -> bytes:
    parts: list[bytes] = []
    left = most_bytes
    async for part in answer.aiter_bytes():
        parts.append(part)
        left -= len(part)
        if left < 0:
            raise NoAnswer(f"answered more than {most_bytes} bytes")
    return b"".join(parts)


@asynccontextmanager
async def asker() -> AsyncIterator[Asker]:
    """One for the running loop. It reads no proxy settings, and has no use for certificates."""
    unused = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(trust_env=False, verify=unused, limits=limits, timeout=None) as client:
        yield Asker(client)
