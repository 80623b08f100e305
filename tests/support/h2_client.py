"""A gRPC client over a real socket that sends what it is told, also to a server that has ended the call."""

from __future__ import annotations

import asyncio
from struct import pack, unpack

import hpack

from tests.support.h2_peer import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Answer,
    message,
    raw,
    setting,
)


class Client:
    """One connection; calls one after the other. Its windows are wide open, the server's are not looked at."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._encoder, self._decoder = hpack.Encoder(), hpack.Decoder()
        self._next = 1
        writer.write(PREFACE + raw(SETTINGS, 0, 0, setting(4, 2**31 - 1)))
        writer.write(raw(WINDOW_UPDATE, 0, 0, pack(">L", 2**30)))

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def aclose(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def call(self, path: str, messages: list[bytes]) -> Answer:
        """Send all messages, then read to the end. Keep them below 64 KiB in all, or below what the server takes."""
        stream, self._next = self._next, self._next + 2
        usual = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"), ("te", "trailers")]
        block = self._encoder.encode([*usual, ("content-type", "application/grpc")])
        self._writer.write(raw(HEADERS, END_HEADERS, stream, block))
        body = b"".join(message(content) for content in messages)
        for at in range(0, len(body), 16_384):
            self._writer.write(raw(DATA, 0, stream, body[at : at + 16_384]))
        self._writer.write(raw(DATA, END_STREAM, stream))
        answer = Answer()
        while not answer.ended and answer.reset is None:
            await self._read(stream, answer)
        return answer

    async def _read(self, ours: int, answer: Answer) -> None:
        head = await self._reader.readexactly(9)
        kind, flags, stream = head[3], head[4], unpack(">L", head[5:])[0]
        payload = await self._reader.readexactly(int.from_bytes(head[:3], "big"))
        if kind == SETTINGS and not flags & ACK:
            self._writer.write(raw(SETTINGS, ACK))
        elif kind == PING and not flags & ACK:
            self._writer.write(raw(PING, ACK, 0, payload))
        elif kind == GOAWAY:
            raise ConnectionError(payload)
        elif kind == HEADERS:
            fields = [(str(name), str(value)) for name, value in self._decoder.decode(payload)]
            if stream == ours:
                answer.headers, answer.trailers = (answer.headers, fields) if answer.headers else (fields, [])
        elif kind == DATA:
            answer.data += payload if stream == ours else b""
        elif kind == RST_STREAM and stream == ours:
            answer.reset = unpack(">L", payload)[0]
        if kind in (DATA, HEADERS) and stream == ours:
            answer.ended = bool(flags & END_STREAM)
