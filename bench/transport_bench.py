"""What HTTP/2 and gRPC's framing cost an exchange: processor time of the bytes in and out, without socket and picker.

As Envoy sends a request in full duplex: three reads (headers and their message; the body's message; the end), one
answer of two messages, trailers. The handler only answers.
"""

from __future__ import annotations

import statistics
import sys
import time

from ballast_gateway.h2.calls import Call
from ballast_gateway.h2.server import Server
from tests.support.h2_peer import DATA, END_HEADERS, END_STREAM, HEADERS, PATH, Peer, message, raw

EXCHANGES = 5_000
HEADERS_MESSAGE, BODY_MESSAGE = b"h" * 500, b"b" * 500


class Handler:
    """Answers the body's message."""

    def __init__(self, call: Call) -> None:
        self._call = call

    def message(self, raw: bytes) -> None:
        if raw[:1] == b"b":
            self._call.write([HEADERS_MESSAGE, raw])

    def ended(self) -> None:
        self._call.finish()

    def closed(self, *, broken: bool) -> None:
        pass


def once_us() -> float:
    """Microseconds of an exchange, mean of some thousands on one connection."""
    peer = Peer(Server({PATH: Handler}, max_message_bytes=1 << 20))
    peer.resize(1 << 20)
    for stream in (1, 3):  # from the third on, the header block has the same bytes each time
        peer.open(stream, flags=END_STREAM)
    connection, written = peer.connection, peer.pipe.written
    block = peer.headers_block()
    reads = []
    for stream in range(5, 2 * EXCHANGES + 5, 2):
        head = raw(HEADERS, END_HEADERS, stream, block) + raw(DATA, 0, stream, message(HEADERS_MESSAGE))
        reads += [head, raw(DATA, 0, stream, message(BODY_MESSAGE)), raw(DATA, END_STREAM, stream)]
    connection.window = 1 << 40
    begin_s = time.process_time()
    for data in reads:
        connection.data_received(data)
        written.clear()
    used_s = time.process_time() - begin_s
    assert not connection.streams
    assert peer.goaway is None
    return used_s / EXCHANGES * 1e6


def main() -> int:
    print(f"HTTP/2 and gRPC framing of an exchange, no socket: {statistics.median(once_us() for _ in range(5)):.1f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
