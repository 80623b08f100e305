"""A small, real HTTP server that speaks Kubernetes' list and watch of pods. The real API server is for e2e."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit


def pod(
    name: str,
    *,
    role: str | None = "decode",
    ready: bool = True,
    ip: str = "10.0.0.1",
    uid: str = "uid-1",
    deleting: bool = False,
    labels: dict[str, str] | None = None,
    **metadata: Any,
) -> dict[str, Any]:
    """A pod as the API server gives it."""
    given = {"serving.ballast.dev/role": role} if role is not None else {}
    meta = {"name": name, "namespace": "ns", "uid": uid, "labels": {**given, **(labels or {})}, **metadata}
    if deleting:
        meta["deletionTimestamp"] = "2026-11-21T06:00:00Z"
    return {
        "metadata": meta,
        "status": {
            "phase": "Running",
            "podIP": ip,
            "conditions": [{"type": "Initialized", "status": "True"}, {"type": "Ready", "status": str(ready)}],
        },
    }


WatchFault = Literal["gets 410", "gets an expired event", "ends at once"]
EXPIRED = {
    "type": "ERROR",
    "object": {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"},
}


class PodApi:
    """Holds pods by name and a log of changes; watches see what comes after their resourceVersion."""

    def __init__(self) -> None:
        self.port = 0
        self.pods: dict[str, dict[str, Any]] = {}
        self.version = 100
        self.oldest = 0
        """Watches from before this version are answered 410."""
        self.queries: list[dict[str, str]] = []
        self.listed_s: list[float] = []
        """When each list was asked for, on the loop's clock."""
        self.headers: list[dict[str, str]] = []
        self.fail_with: int | None = None
        """Every request is answered with this status."""
        self.watch_fault: WatchFault | None = None
        """What happens to every new watch."""
        self._log: list[tuple[int, dict[str, Any]]] = []
        self._changed = asyncio.Event()
        self.watchers: set[asyncio.StreamWriter] = set()

    def put(self, item: dict[str, Any]) -> None:
        """Add or change a pod."""
        known = item["metadata"]["name"] in self.pods
        self._record("MODIFIED" if known else "ADDED", item)
        self.pods[item["metadata"]["name"]] = item

    def delete(self, name: str) -> None:
        """Delete a pod."""
        self._record("DELETED", self.pods.pop(name))

    def bookmark(self) -> None:
        """Move all watches on."""
        self._record("BOOKMARK", {"kind": "Pod", "metadata": {}})

    def expire(self) -> None:
        """Forget the past: running watches get an ERROR event of code 410."""
        self.version += 1
        self.oldest = self.version
        for writer in list(self.watchers):
            _write_event(writer, EXPIRED)
        self.watchers.clear()
        self._wake()

    def cut(self) -> None:
        """Break every watch off, as a restarting API server does."""
        for writer in list(self.watchers):
            writer.transport.abort()
        self.watchers.clear()
        self._wake()

    def _record(self, kind: str, item: dict[str, Any]) -> None:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        self._log.append((self.version, {"type": kind, "object": item}))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        try:
            while line := await reader.readline():
                target = urlsplit(line.split()[1].decode())
                headers: dict[str, str] = {}
                while (header := await reader.readline()) not in (b"\r\n", b""):
                    name, _, value = header.decode().partition(":")
                    headers[name.lower()] = value.strip()
                query = {key: values[0] for key, values in parse_qs(target.query).items()}
                self.queries.append(query)
                self.headers.append(headers)
                assert target.path == "/api/v1/namespaces/ns/pods"
                await self._answer(query, writer)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.watchers.discard(writer)
            writer.close()

    async def _answer(self, query: dict[str, str], writer: asyncio.StreamWriter) -> None:
        if self.fail_with is not None:
            writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 2\r\n\r\n{}" % self.fail_with)
        elif query.get("watch") != "true":
            self.listed_s.append(asyncio.get_running_loop().time())
            body = json.dumps(
                {
                    "kind": "PodList",
                    "metadata": {"resourceVersion": str(self.version)},
                    "items": list(self.pods.values()),
                }
            ).encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        elif self.watch_fault == "gets 410" or int(query["resourceVersion"]) < self.oldest:
            writer.write(b"HTTP/1.1 410 Gone\r\ncontent-length: 2\r\n\r\n{}")
        else:
            await self._watch(int(query["resourceVersion"]), writer)

    async def _watch(self, since: int, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n")
        if self.watch_fault == "gets an expired event":
            _write_event(writer, EXPIRED)
        if self.watch_fault is not None:
            writer.write(b"0\r\n\r\n")
            return
        self.watchers.add(writer)
        while writer in self.watchers:
            changed = self._changed
            for version, event in self._log:
                if version > since:
                    since = version
                    _write_event(writer, event)
            await writer.drain()
            await changed.wait()
        writer.write(b"0\r\n\r\n")


def _write_event(writer: asyncio.StreamWriter, event: dict[str, Any]) -> None:
    """In two chunks: a line need not come in one piece."""
    line = json.dumps(event).encode() + b"\n"
    for part in (line[:20], line[20:]):
        writer.write(b"%x\r\n%b\r\n" % (len(part), part))


@asynccontextmanager
async def pod_api() -> AsyncIterator[PodApi]:
    """A running one."""
    made = PodApi()
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await made.serve(reader, writer)
        tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
