"""A relay in front of the API server that counts writes, and can end a process after the k-th one was answered.

Plain HTTP on the near side: its one client is a process that the same test started, on the same machine.
"""

from __future__ import annotations

import collections
import contextlib
import http.client
import json
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from kit.commands import Kubectl

_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "host"})


class _QuietServer(ThreadingHTTPServer):
    """Connections of a killed client break: that is what this is for."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class ApiRelay:
    """Forwards everything, with the client's own credentials. Thread-safe."""

    def __init__(self, kubectl: Kubectl) -> None:
        config: dict[str, Any] = json.loads(kubectl.text("config", "view", "--minify", "--raw", "-o", "json"))
        self._target = urlsplit(config["clusters"][0]["cluster"]["server"])
        # The relay proves nothing about TLS: the scenario is about what the operator writes.
        self._tls = ssl._create_unverified_context()
        self._lock = threading.Lock()
        self._kill_at: int | None = None
        self._kill: Callable[[], None] = lambda: None
        self.writes: list[str] = []
        self.reads: collections.Counter[str] = collections.Counter()
        self.down = False
        """While set, every request is refused as by an API server that is away."""
        self.delay_s = 0.0
        """Each answer comes so much later, as from an API server that is slow; a watch begins so much later."""
        self._server = _QuietServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def kubeconfig(self, original: Path, target: Path) -> Path:
        """`original` with this relay as its server, written to `target`."""
        config = json.loads(original.read_text())
        config["clusters"][0]["cluster"] = {"server": self.url}
        target.write_text(json.dumps(config))
        return target

    def reset(self, *, kill_at: int | None = None, kill: Callable[[], None] = lambda: None) -> None:
        """Count anew; call `kill` when the API server has answered the `kill_at`-th write, before the client knows."""
        with self._lock:
            self.writes, self._kill_at, self._kill = [], kill_at, kill
            self.reads.clear()

    def _wrote(self, what: str) -> None:
        with self._lock:
            self.writes.append(what)
            if len(self.writes) == self._kill_at:
                self._kill()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        relay = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _forward(self) -> None:
                if relay.down:
                    self.close_connection = True
                    self.connection.close()
                    return
                time.sleep(relay.delay_s)
                with contextlib.closing(relay._connect()) as upstream, contextlib.suppress(OSError):
                    self._relay(upstream)

            def _relay(self, upstream: http.client.HTTPConnection) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {key: value for key, value in self.headers.items() if key.lower() not in _HOP_BY_HOP}
                upstream.request(self.command, self.path, body=body or None, headers=headers)
                answer = upstream.getresponse()
                path = urlsplit(self.path).path
                if self.command in _WRITES:
                    relay._wrote(f"{self.command} {path} {answer.status}")
                else:
                    relay.reads[path] += 1
                self.send_response(answer.status)
                for key, value in answer.getheaders():
                    if key.lower() not in _HOP_BY_HOP:
                        self.send_header(key, value)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for piece in _pieces(answer):
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _forward  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Quiet."""

        return Handler

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._target.hostname or "127.0.0.1", self._target.port or 443
        return http.client.HTTPSConnection(host, port, context=self._tls, timeout=600)


def _pieces(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    while piece := answer.read1(65536):
        yield piece
