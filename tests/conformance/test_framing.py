"""Wrong HTTP/2: an honest picker behind a relay that does one thing wrong with frames."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from ballast_conformance.http2 import PREFACE, Flag, FrameType, Setting, frame, read_frame
from ballast_conformance.verdicts import Verdict
from tests.conformance.asking import IMPATIENT, ask, ids
from tests.conformance.pickers import ENDPOINTS, Honest, running


class Close(Exception):
    """The relay breaks the connection off."""


Change = Callable[[int, int, int, bytes], bytes]
"""From a frame of the proxy to the bytes that the picker gets."""


def no_ping(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return b"" if kind == FrameType.PING and not flags & Flag.ACK else frame(kind, flags, stream, payload)


def wide_window(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    if kind == FrameType.SETTINGS and payload:
        settings = dict(struct.iter_unpack(">HI", payload)) | {Setting.INITIAL_WINDOW_SIZE: 1 << 20}
        payload = b"".join(struct.pack(">HI", key, value) for key, value in settings.items())
    return frame(kind, flags, stream, payload)


def deaf_to_windows(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    deaf = kind == FrameType.WINDOW_UPDATE and stream and len(payload) == 4 and int.from_bytes(payload, "big") == 64
    return b"" if deaf else frame(kind, flags, stream, payload)


def known_frames_only(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    if kind > max(FrameType):
        raise Close
    return frame(kind, flags, stream, payload)


def whole_messages_only(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    if kind == FrameType.DATA and len(payload) < 5 and payload:
        raise Close
    return frame(kind, flags, stream, payload)


def one_message_a_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    if kind == FrameType.DATA and payload and len(payload) > 5 + int.from_bytes(payload[1:5], "big"):
        payload = payload[: 5 + int.from_bytes(payload[1:5], "big")]
    return frame(kind, flags, stream, payload)


def no_end_with_data(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    if kind == FrameType.DATA and payload:
        flags &= ~Flag.END_STREAM
    return frame(kind, flags, stream, payload)


WRONG: dict[Change, set[str]] = {
    no_ping: {"framing.ping"},
    wide_window: {"framing.window"},
    deaf_to_windows: {"framing.window-opens"},
    known_frames_only: {"framing.unknown-frame"},
    whole_messages_only: {"framing.split"},
    one_message_a_frame: {"framing.joined"},
    no_end_with_data: {"framing.last-frame"},
}


@asynccontextmanager
async def relay(port: int, change: Change) -> AsyncIterator[int]:
    """A port that passes frames on to another one, changed."""

    async def upwards(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(len(PREFACE)))
        while True:
            writer.write(change(*await read_frame(reader)))

    async def downwards(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while content := await reader.read(1 << 16):
            writer.write(content)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
        tasks = [asyncio.create_task(upwards(reader, up_writer)), asyncio.create_task(downwards(up_reader, writer))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, asyncio.IncompleteReadError, OSError, Close):
                    await task
            writer.close()
            up_writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


@pytest.mark.rotating(3)
@pytest.mark.parametrize("change", WRONG, ids=lambda change: change.__name__)
async def test_wrong_frames_fail_exactly_their_case(change: Change) -> None:
    """All else that the picker says is right."""
    async with running(Honest) as picker, relay(picker.port, change) as port:
        results = await ask(port, ENDPOINTS, plan=IMPATIENT)
    assert ids(results, Verdict.FAIL) == WRONG[change], [each for each in results if each.verdict is Verdict.FAIL]
