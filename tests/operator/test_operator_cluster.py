"""The client of the API server, on the wire: what it sends, and what it makes of each answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from kubernetes import client

from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.api.cluster import Cluster
from ballast_operator.kinds import DEPLOYMENT, HARDWARE_PROFILE, POD, SERVICE, SERVING_POOL
from tests.support.operator_builders import deployment, profile


class ApiServer:
    """Answers with what `answers` has for a path (status and body), and keeps the requests."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {}
        self.requests: list[tuple[str, str, dict[str, list[str]], str, Any]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                url = urlsplit(self.path)
                query = parse_qs(url.query)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                content_type = self.headers.get("Content-Type", "")
                outer.requests.append((self.command, url.path, query, content_type, json.loads(body) if body else None))
                key = f"{url.path}#{query['continue'][0]}" if "continue" in query else url.path
                status, answer = outer.answers.get(key, (404, {"reason": "NotFound", "message": "not found"}))
                text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """A server on loopback, which the client takes for the cluster."""
    server = ApiServer()
    client.Configuration.set_default(client.Configuration(host=server.url))
    yield server
    client.Configuration.set_default(None)
    server.close()


@pytest.fixture
def cluster(server: ApiServer) -> Cluster:
    """The client."""
    return Cluster(timeout_s=5.0, connections=1)


def test_apply_is_a_forced_server_side_apply(server: ApiServer, cluster: Cluster) -> None:
    """Path, query, content type and body as the API server wants them."""
    server.answers["/apis/apps/v1/namespaces/team/deployments/chat-decode"] = (200, {"kind": "Deployment"})
    assert cluster.apply(deployment("chat-decode"), "us") == {"kind": "Deployment"}
    method, path, query, content_type, body = server.requests[0]
    assert (method, path) == ("PATCH", "/apis/apps/v1/namespaces/team/deployments/chat-decode")
    assert (query["fieldManager"], query["force"][0].lower()) == (["us"], "true")
    assert content_type == "application/apply-patch+yaml"
    assert body == deployment("chat-decode")


def test_a_status_is_applied_to_this_very_object(server: ApiServer, cluster: Cluster) -> None:
    """By uid: an object that was deleted and made anew does not get its predecessor's status."""
    server.answers["/apis/serving.ballast.dev/v1alpha1/hardwareprofiles/h20/status"] = (200, {})
    cluster.apply_status(HARDWARE_PROFILE, profile("h20"), {"observedGeneration": 1}, "us")
    assert server.requests[0][4] == {
        "apiVersion": "serving.ballast.dev/v1alpha1",
        "kind": "HardwareProfile",
        "metadata": {"name": "h20", "uid": "profile-h20"},
        "status": {"observedGeneration": 1},
    }


def test_labels_are_set_on_this_very_object(server: ApiServer, cluster: Cluster) -> None:
    """With the uid: a pod of the same name that came after it keeps its own."""
    path = "/api/v1/namespaces/team/pods/chat-flex-0"
    server.answers[path] = (200, {})
    metadata = {"name": "chat-flex-0", "namespace": "team", "uid": "u", "labels": {"role": "decode"}}
    cluster.relabel(POD, metadata, "us")
    [(method, asked, query, content_type, body)] = server.requests
    assert (method, asked, query["fieldManager"]) == ("PATCH", path, ["us"])
    assert content_type == "application/apply-patch+yaml"
    assert body == {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


def test_delete_is_of_this_very_object_and_gone_already_is_fine(server: ApiServer, cluster: Cluster) -> None:
    """The precondition keeps a successor of the same name alive."""
    cluster.delete(deployment("chat-decode"))
    method, _, _, _, body = server.requests[0]
    assert method == "DELETE"
    assert body == {"preconditions": {"uid": "uid-chat-decode"}, "propagationPolicy": "Background"}


def test_a_list_has_all_pages_and_items_know_their_kind(server: ApiServer, cluster: Cluster) -> None:
    """The server leaves kind and apiVersion out of items."""
    path = "/api/v1/namespaces/team/services"
    server.answers[path] = (200, {"metadata": {"continue": "next"}, "items": [{"metadata": {"name": "a"}}]})
    server.answers[f"{path}#next"] = (200, {"metadata": {}, "items": [{"metadata": {"name": "b"}}]})
    found = cluster.list(SERVICE, "team", labels="x=y")
    assert [(item["kind"], item["apiVersion"], item["metadata"]["name"]) for item in found] == [
        ("Service", "v1", "a"),
        ("Service", "v1", "b"),
    ]
    assert server.requests[0][2]["labelSelector"] == ["x=y"]


def test_what_is_not_there_is_none(cluster: Cluster) -> None:
    """Neither the object nor, for all we know, its kind."""
    assert cluster.get(SERVING_POOL, "team", "chat") is None


@pytest.mark.parametrize(
    ("status", "answer", "transient", "words"),
    [
        (403, {"reason": "Forbidden", "message": "no right"}, False, "no right"),
        (422, {"reason": "Invalid", "message": "spec.x: bad"}, False, "spec.x: bad"),
        (429, {"reason": "TooManyRequests", "message": "slower"}, True, "slower"),
        (500, {"reason": "InternalError", "message": "etcd"}, True, "etcd"),
        (503, b"upstream connect error", True, "HTTP 503"),
    ],
    ids=["forbidden", "invalid", "too-many", "internal", "not-json"],
)
def test_a_refusal_says_why_and_whether_to_try_again(
    server: ApiServer, cluster: Cluster, *, status: int, answer: Any, transient: bool, words: str
) -> None:
    """Kubernetes' own message where there is one."""
    server.answers["/apis/apps/v1/namespaces/team/deployments/chat"] = (status, answer)
    with pytest.raises(ApiFailure, match=words) as caught:
        cluster.get(DEPLOYMENT, "team", "chat")
    assert (caught.value.status, caught.value.transient) == (status, transient)


def test_no_answer_is_transient(server: ApiServer, cluster: Cluster) -> None:
    """The API server restarts."""
    server.close()
    with pytest.raises(ApiFailure) as caught:
        cluster.get(DEPLOYMENT, "team", "chat")
    assert (caught.value.status, caught.value.transient) == (0, True)


def test_a_list_says_where_a_watch_goes_on(server: ApiServer, cluster: Cluster) -> None:
    """By the first page: all pages are of one moment."""
    path = "/api/v1/namespaces/team/services"
    server.answers[path] = (200, {"metadata": {"continue": "next", "resourceVersion": "41"}, "items": []})
    server.answers[f"{path}#next"] = (200, {"metadata": {"resourceVersion": "41"}, "items": []})
    assert cluster.snapshot(SERVICE, "team").version == 41


def test_a_watch_is_its_lines(server: ApiServer, cluster: Cluster) -> None:
    """From a version on, with bookmarks, for as long as it was asked for."""
    events = [{"type": "ADDED", "object": {"metadata": {"name": "a"}}}, {"type": "BOOKMARK", "object": {}}]
    lines = b"".join(json.dumps(event).encode() + b"\n" for event in events)
    server.answers["/api/v1/services"] = (200, lines)
    watch = cluster.watch(SERVICE, None, labels="x=y", since=41, lasts_s=300.0)
    assert list(watch) == events
    watch.close()
    [(method, _, query, _, _)] = server.requests
    asked = {key: values[0].lower() for key, values in query.items()}
    assert (method, asked.pop("watch"), asked.pop("allowWatchBookmarks")) == ("GET", "true", "true")
    assert asked == {"labelSelector": "x=y", "resourceVersion": "41", "timeoutSeconds": "300"}


def test_what_the_cluster_has_is_asked_by_group_and_version(server: ApiServer, cluster: Cluster) -> None:
    """A group that it does not know has nothing."""
    path = "/apis/gateway.networking.k8s.io/v1"
    server.answers[path] = (200, {"resources": [{"name": "gateways"}, {"name": "httproutes"}]})
    assert cluster.kinds_of("gateway.networking.k8s.io/v1") == {"gateways", "httproutes"}
    assert cluster.kinds_of("inference.networking.k8s.io/v1") == frozenset()


def test_what_a_deletion_leaves_is_told(server: ApiServer, cluster: Cluster) -> None:
    """An object with finalizers stays for a while; of any other only its end is said."""
    path = "/apis/apps/v1/namespaces/team/deployments/chat-decode"
    ending = {"metadata": {"name": "chat-decode", "deletionTimestamp": "x", "finalizers": ["theirs"]}}
    for answer, left in ((ending, ending), ({"kind": "Status", "status": "Success"}, None)):
        server.answers[path] = (200, answer)
        assert cluster.delete(deployment("chat-decode")) == left


def test_a_lease_is_made_and_written_as_it_is(server: ApiServer, cluster: Cluster) -> None:
    """Not applied: of two writers of one version the second gets 409."""
    path = "/apis/coordination.k8s.io/v1/namespaces/sys/leases"
    metadata = {"name": "ballast", "namespace": "sys", "resourceVersion": "7"}
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {}}
    server.answers = {path: (201, lease), f"{path}/ballast": (409, {"reason": "Conflict", "message": "modified"})}
    cluster.create(lease)
    with pytest.raises(ApiFailure, match="modified") as caught:
        cluster.replace(lease)
    assert caught.value.status == 409
    sent = [(method, where, kind, body) for method, where, _, kind, body in server.requests]
    assert sent == [("POST", path, "application/json", lease), ("PUT", f"{path}/ballast", "application/json", lease)]
