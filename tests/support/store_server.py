"""An `ObjectStore` behind real HTTP, at the paths of the Kubernetes API: what the operator's own client speaks to."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ballast_operator import kinds
from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.kinds import Kind, Manifest
from tests.support.object_store import ObjectStore
from tests.support.versioned_store import VersionedStore

KINDS = {(kind.api_version, kind.plural): kind for kind in (*kinds.CHILDREN, *kinds.WATCHED, kinds.POD, kinds.EVENT)}
_POLL_S = 0.01
"""Seconds between two looks of a watch at what has changed."""
Answer = tuple[int, Manifest]


class _Server(ThreadingHTTPServer):
    """A client that ends leaves its watches: no trouble."""

    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def served(store: ObjectStore, reads: list[str] | None = None) -> Iterator[str]:
    """The URL of the store while the block runs. Paths that are read are added to `reads`: lists with `?list`, watches
    with `?watch`. A `VersionedStore` can be watched."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            if self.command == "GET" and reads is not None:
                last = parts.path.rpartition("/")[2]
                listed = any(plural == last for _, plural in KINDS)
                reads.append(parts.path + ("?watch" if "watch" in query else "?list" if listed else ""))
            if "watch" in query:
                self._watch(parts.path, query)
                return
            status, answer = answer_of(store, self.command, self.path, json.loads(body) if body else {})
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _watch(self, path: str, query: dict[str, str]) -> None:
            kind, namespace, _ = _place(path.strip("/").split("/"))
            assert isinstance(store, VersionedStore)
            labels, since = query.get("labelSelector", ""), int(query["resourceVersion"])
            try:
                events: Iterable[Manifest] = store.watch(kind, namespace, labels=labels, since=since, lasts_s=0.0)
            except ApiFailure as error:
                self.send_response(error.status)
                self.end_headers()
                self.wfile.write(json.dumps({"reason": error.reason, "message": str(error)}).encode())
                return
            self.send_response(200)
            self.end_headers()
            while not over.is_set():
                for event in events:
                    self.wfile.write(json.dumps(event).encode() + b"\n")
                    since = int(event["object"]["metadata"]["resourceVersion"])
                over.wait(_POLL_S)
                events = store.changes(kind, namespace, labels=labels, since=since) if store.version > since else ()

        do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Quiet."""

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def answer_of(store: ObjectStore, method: str, url: str, body: Manifest) -> Answer:
    """Status code and body; refusals of the store as Kubernetes' Status object."""
    parts = urlsplit(url)
    query = {key: values[0] for key, values in parse_qs(parts.query).items()}
    try:
        return _answer(store, method, parts.path.strip("/").split("/"), query, body)
    except ApiFailure as error:
        return error.status, {"kind": "Status", "reason": error.reason, "message": str(error)}


def _answer(store: ObjectStore, method: str, path: list[str], query: dict[str, str], body: Manifest) -> Answer:
    length = 2 if path[0] == "api" else 3
    if not path[length:]:
        return _discovery(store, "/".join(path[1:length]))
    kind, namespace, names = _place(path)
    match method, names:
        case "GET", []:
            labels, version = query.get("labelSelector", ""), "1"
            if isinstance(store, VersionedStore):
                found_all = store.snapshot(kind, namespace, labels=labels)
                items, version = found_all.items, str(found_all.version)
            else:
                items = store.list(kind, namespace, labels=labels)
            bare = [{key: item[key] for key in item if key not in ("apiVersion", "kind")} for item in items]
            return 200, {"metadata": {"resourceVersion": version}, "items": bare}
        case "GET", [name]:
            found = store.get(kind, namespace, name)
            return (200, found) if found else _not_found(name)
        case "PATCH", [_]:
            return 200, store.apply(body, query["fieldManager"])
        case "PATCH", [_, "status"]:
            return 200, store.apply_status(kind, body, body["status"], query["fieldManager"])
        case "POST", []:
            store.create_event(body)
            return 201, body
        case "DELETE", [name]:
            return _deleted(store, kind, namespace, name, body)
    raise AssertionError(f"{method} {path}")


def _place(path: list[str]) -> tuple[Kind, str | None, list[str]]:
    """Kind, namespace, and what follows: name and subresource."""
    length = 2 if path[0] == "api" else 3
    rest = path[length:]
    namespace = rest[1] if rest[0] == "namespaces" else None
    plural, *names = rest[2:] if namespace is not None else rest
    return KINDS["/".join(path[1:length]), plural], namespace, names


def _discovery(store: ObjectStore, api_version: str) -> Answer:
    if isinstance(store, VersionedStore):
        return 200, {"resources": [{"name": plural} for plural in store.kinds_of(api_version)]}
    available = store.available(kind for kind in KINDS.values() if kind.api_version == api_version)
    if not available:
        return _not_found(api_version)
    return 200, {"resources": [{"name": kind.plural} for kind in available]}


def _deleted(store: ObjectStore, kind: Kind, namespace: str | None, name: str, body: Any) -> Answer:
    found = store.get(kind, namespace, name)
    if found is None:
        return _not_found(name)
    if found["metadata"]["uid"] != body["preconditions"]["uid"]:
        raise ApiFailure(409, "Conflict", "the uid in the precondition does not match")
    store.delete(found)
    return 200, {}


def _not_found(name: str) -> Answer:
    return 404, {"kind": "Status", "reason": "NotFound", "message": f"{name} not found"}
