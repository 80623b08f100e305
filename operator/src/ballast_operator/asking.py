"""Asking gateways: signed calls to the admin ports of their pods. Blocking; called in threads."""

from __future__ import annotations

import time
from typing import Final

import urllib3
from urllib3.exceptions import HTTPError

from ballast_api.attainment_report import ATTAINMENT, read_report
from ballast_api.recorded_traffic import TRAFFIC
from ballast_api.signatures import PROOF, Signed
from ballast_operator.measured import Answer

ANSWER_S: Final = 3.0
"""How long a report may take."""
TRAFFIC_S: Final = 30.0
"""How long a gateway's recorded traffic may take."""
_CONNECT_S: Final = 1.0
_MOST_REPORT_BYTES: Final = 1 << 20
_MOST_TRAFFIC_BYTES: Final = 64 << 20
_PART_BYTES: Final = 1 << 16


class NoAnswer(Exception):
    """No answer that counts, and why."""


class Asker:
    """Safe to use from several threads. No connection is kept: gateways come and go."""

    def __init__(self, *, threads: int = 16) -> None:
        self._pool = urllib3.PoolManager(num_pools=1, maxsize=threads, retries=False)

    def report(self, gateway: str, address: str, token: bytes) -> Answer:
        """What a gateway has counted, or why it does not say. `address`: `host:port` of its admin API."""
        try:
            return Answer(gateway, read_report(self._get(address, ATTAINMENT, token, ANSWER_S, _MOST_REPORT_BYTES)))
        except (NoAnswer, ValueError) as error:
            return Answer(gateway, problem=str(error))

    def traffic(self, address: str, token: bytes, *, names: str, minutes: float) -> bytes:
        """Named rows of the last minutes, for `ballast_api.recorded_traffic.merged`. Raises `NoAnswer`."""
        target = f"{TRAFFIC}?names={names}&minutes={minutes:g}"
        return self._get(address, target, token, TRAFFIC_S, _MOST_TRAFFIC_BYTES)

    def _get(self, address: str, target: str, token: bytes, limit_s: float, most_bytes: int) -> bytes:
        signed = Signed(token, "GET", target, b"", time.time())
        headers = {"authorization": signed.authorization, "connection": "close"}
        until_s = time.monotonic() + limit_s
        try:
            answer = self._pool.request(
                "GET",
                f"http://{address}{target}",
                headers=headers,
                preload_content=False,
                redirect=False,
                timeout=urllib3.Timeout(connect=_CONNECT_S, read=limit_s),
            )
            try:
                body = _read(answer, until_s, most_bytes)
            finally:
                answer.close()
        except (HTTPError, OSError) as error:
            raise NoAnswer(f"no answer ({type(error).__name__})") from error
        if answer.status != 200:
            raise NoAnswer(f"answered {answer.status}")
        if not signed.is_proof(answer.headers.get(PROOF, "")):
            raise NoAnswer("answered without proof that it has the fleet's token")
        return body


def _read(answer: urllib3.BaseHTTPResponse, until_s: float, most_bytes: int) -> bytes:
    """All of it. Raises `NoAnswer`: one that trickles, or does not end, must not hold a thread."""
    parts: list[bytes] = []
    left = most_bytes
    for part in answer.stream(_PART_BYTES):
        parts.append(part)
        left -= len(part)
        if left < 0:
            raise NoAnswer(f"answered more than {most_bytes} bytes")
        if time.monotonic() > until_s:
            raise NoAnswer("no answer in time")
    return b"".join(parts)
