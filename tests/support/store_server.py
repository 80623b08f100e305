"""An `ObjectStore` behind real HTTP, at the paths of the Kubernetes API: what the operator's own client speaks to."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ballast_operator import kinds
from ballast_operator.api_failure import ApiFailure
from ballast_operator.kinds import Kind, Manifest
from tests.support.object_store import ObjectStore

KINDS = {
    (kind.api_version, kind.plural): kind
    for kind in (*kinds.CHILDREN, *kinds.REFERRED, kinds.SERVING_POOL, kinds.POD, kinds.EVENT, kinds.GATEWAY)
}
Answer = tuple[int, Manifest]


@contextmanager
def served(store: ObjectStore) -> Iterator[str]:
    """The URL of the store while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def _serve(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = answer_of(store, self.command, self.path, json.loads(body) if body else {})
            text = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
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
    api_version, rest = "/".join(path[1:length]), path[length:]
    if not rest:
        return _discovery(store, api_version)
    namespace = rest[1] if rest[0] == "namespaces" else None
    plural, *names = rest[2:] if namespace is not None else rest
    kind = KINDS[api_version, plural]
    match method, names:
        case "GET", []:
            items = store.list(kind, namespace, labels=query.get("labelSelector", ""))
            bare = [{key: item[key] for key in item if key not in ("apiVersion", "kind")} for item in items]
            return 200, {"metadata": {}, "items": bare}
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


def _discovery(store: ObjectStore, api_version: str) -> Answer:
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
