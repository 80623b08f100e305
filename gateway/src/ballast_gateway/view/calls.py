"""Signed calls of other holders' and gateways' pod APIs. An answer without its proof is no answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ballast_api.signatures import PROOF, RECIPIENT, Recipients, Signed, refusal_of
from ballast_gateway.http.client import Collect, UpstreamError, UpstreamPool
from ballast_gateway.http.responses import Headers

CALL_S: Final = 5.0
"""How long an answer may take."""
_MOST_ANSWER_BYTES: Final = 64 * 1024
_PROOF: Final = PROOF.encode()
_RECIPIENT: Final = RECIPIENT.encode()


class CallFailed(Exception):
    """No answer that counts, and why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered, and by one who has the token."""

    status: int
    body: bytes


class Calls:
    """Calls with one fleet's token."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pool: UpstreamPool,
        tokens: Callable[[], tuple[bytes, ...]],
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        self.pool = pool
        self._loop = loop
        self._tokens = tokens
        self._unix_s = unix_s
        self._recipients = Recipients()

    def signed(
        self, address: str, method: str, target: str, body: bytes = b"", *, header: str = ""
    ) -> tuple[bytes, Signed]:
        """The bytes of a call, and what its answer must prove. `header`: one more, which is not signed."""
        signed = Signed(self._tokens()[0], method, target, body, self._unix_s(), to=self._recipients.at(address))
        more = f"{header}\r\n" if header else ""
        head = (
            f"{method} {target} HTTP/1.1\r\nhost: {address}\r\nauthorization: {signed.authorization}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{more}\r\n"
        )
        return head.encode() + body, signed

    def learns(self, address: str, status: int, headers: Headers, signed: Signed) -> bool:
        """Whether the answer to a call says for whom to sign there, so that the call is to be made anew."""
        named = (value for name, value in headers if name == _RECIPIENT)
        return self._recipients.learn(address, status, next(named, b"").decode("latin-1"), signed)

    async def call(
        self, address: str, method: str, target: str, body: bytes = b"", *, limit_bytes: int = _MOST_ANSWER_BYTES
    ) -> Answer:
        """Call and wait for the answer. Raises `CallFailed`."""
        try:
            async with asyncio.timeout(CALL_S):
                signed, exchange = await self._made(address, method, target, body, limit_bytes)
                if self.learns(address, exchange.status, exchange.headers, signed):
                    signed, exchange = await self._made(address, method, target, body, limit_bytes)
        except (UpstreamError, TimeoutError) as error:
            raise CallFailed(f"{address}: {error or 'no answer in time'}") from error
        if not proven(signed, exchange.headers):
            why = refusal_of(exchange.status, exchange.body)
            raise CallFailed(f"{address} answered {exchange.status} without proof that it has the fleet's token{why}")
        return Answer(exchange.status, exchange.body)

    async def _made(
        self, address: str, method: str, target: str, body: bytes, limit_bytes: int
    ) -> tuple[Signed, Collect]:
        payload, signed = self.signed(address, method, target, body)
        exchange = Collect(limit_bytes=limit_bytes)
        await self.pool.perform(address, payload, exchange)
        return signed, exchange


def proven(signed: Signed, headers: Headers) -> bool:
    """Whether an answer's headers prove that it comes from one who has the token."""
    return any(name == _PROOF and signed.is_proof(value.decode("latin-1")) for name, value in headers)
