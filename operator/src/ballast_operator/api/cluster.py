"""The API server: the only module that imports the Kubernetes client. Blocking; called in threads.

Paths come from `kinds`, so that no discovery (and no discovery cache on disk) is needed.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import urllib3
import urllib3.exceptions
from kubernetes import client, config
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import DynamicApiError
from yaml import YAMLError

from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.kinds import EVENT, Kind, Manifest, kind_of

PAGE = 500
"""Objects of one page of a list."""
WATCH_SILENCE_S: Final = 90.0
"""A watch is not believed for longer without a word: the server sends a bookmark each minute."""
_READ_BYTES: Final = 1 << 16


def load_credentials() -> None:
    """In a pod those of its ServiceAccount, else KUBECONFIG. Raises `ApiFailure` when there are none."""
    load: Any = config  # ships no types
    try:
        load.load_incluster_config()
    except config.ConfigException:
        try:
            load.load_kube_config()
        # A malformed file comes as whatever it makes the loader stumble over.
        except (config.ConfigException, OSError, TypeError, ValueError, KeyError, AttributeError, YAMLError) as error:
            message = f"no cluster to talk to: this is no pod, and KUBECONFIG (or ~/.kube/config) is no use: {error}"
            raise ApiFailure(0, "NoCredentials", message) from error


def context_namespace() -> str:
    """The namespace of KUBECONFIG's context; `default` where it names none, and in a pod."""
    load: Any = config  # ships no types
    try:
        _, context = load.list_kube_config_contexts()
    except (config.ConfigException, OSError, TypeError, ValueError, KeyError, AttributeError, YAMLError):
        return "default"
    return str((context.get("context") or {}).get("namespace") or "default")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Objects of a kind at one moment."""

    items: tuple[Manifest, ...]
    version: int
    """The list's resourceVersion."""


class Cluster:
    """Reads and writes objects. Safe to use from several threads."""

    def __init__(self, *, timeout_s: float, connections: int, retries: bool = True) -> None:
        """`retries`: whether a request that got no answer is sent again, up to three times, each with the time."""
        configuration = client.Configuration.get_default_copy()
        if not retries:
            configuration.retries = False
        configuration.connection_pool_maxsize = connections
        if not configuration.verify_ssl:  # the user's own choice, made in KUBECONFIG: no warning for each request
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        self._timeout_s = timeout_s
        # The stubs know the client, not its dynamic part.
        make: Any = DynamicClient
        self._client = make(client.ApiClient(configuration), discoverer=lambda *_: None)

    def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        """The object, or None if none of that name exists (or not even its kind)."""
        return self._or_none(lambda: self._request("GET", kind.path(namespace, name)))

    def list(self, kind: Kind, namespace: str | None, *, labels: str = "") -> tuple[Manifest, ...]:
        """All objects of a kind that match a label selector; of all namespaces without one."""
        return self.snapshot(kind, namespace, labels=labels).items

    def snapshot(self, kind: Kind, namespace: str | None, *, labels: str = "") -> Snapshot:
        """The same, with the version that a watch goes on from."""
        items: list[Manifest] = []
        token: str | None = None
        version = ""
        while True:
            page = self._request(
                "GET", kind.path(namespace), label_selector=labels or None, limit=PAGE, _continue=token
            )
            # The server writes both once for the list and leaves them out of its items.
            items += [{**item, "apiVersion": kind.api_version, "kind": kind.kind} for item in page["items"]]
            version = version or str(page["metadata"].get("resourceVersion", ""))
            token = page["metadata"].get("continue")
            if not token:
                return Snapshot(tuple(items), int(version or 0))

    def watch(self, kind: Kind, namespace: str | None, *, labels: str = "", since: int, lasts_s: float) -> Watch:
        """What changes after the version `since`, and bookmarks, for about `lasts_s` seconds."""
        response = self._send(
            "GET",
            kind.path(namespace),
            label_selector=labels or None,
            watch=True,
            resource_version=str(since),
            allow_watch_bookmarks=True,
            timeout_seconds=int(lasts_s),
            _request_timeout=(self._timeout_s, WATCH_SILENCE_S),
        )
        return Watch(response)

    def kinds_of(self, api_version: str) -> frozenset[str]:
        """Plural names of the kinds that the API server has at a group and version; empty if it does not know it."""
        found = self._or_none(lambda: self._request("GET", f"/apis/{api_version}"))
        return frozenset(item["name"] for item in found["resources"]) if found else frozenset()

    def apply(self, manifest: Manifest, manager: str) -> Manifest:
        """Server-side apply; takes over fields that others own, creates what does not exist."""
        metadata = manifest["metadata"]
        path = kind_of(manifest).path(metadata["namespace"], metadata["name"])
        return self._apply(path, manifest, manager)

    def apply_status(self, kind: Kind, of: Manifest, status: Manifest, manager: str) -> Manifest:
        """Server-side apply of the status. The uid makes sure that it is still the same object."""
        metadata = {key: of["metadata"][key] for key in ("name", "namespace", "uid") if key in of["metadata"]}
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "status": status}
        return self._apply(kind.path(metadata.get("namespace"), metadata["name"], "status"), body, manager)

    def relabel(self, kind: Kind, metadata: Manifest, manager: str) -> Manifest:
        """Set the labels of `metadata` on the very object that it names (by uid); 404 or 409 where it is gone."""
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
        return self._apply(kind.path(metadata["namespace"], metadata["name"]), body, manager)

    def delete(self, manifest: Manifest) -> Manifest | None:
        """Delete this very object (by uid), its own children after it. Gone already is fine.

        Returns the object if it stays until its finalizers have run, else None.
        """
        metadata = manifest["metadata"]
        body = {"preconditions": {"uid": metadata["uid"]}, "propagationPolicy": "Background"}
        path = kind_of(manifest).path(metadata["namespace"], metadata["name"])
        left = self._or_none(lambda: self._request("DELETE", path, body=body))
        ends = left is not None and (left.get("metadata") or {}).get("deletionTimestamp")
        return left if ends and left is not None and left["metadata"].get("finalizers") else None

    def create(self, manifest: Manifest) -> None:
        """Make an object; 409 where it exists."""
        self._request("POST", kind_of(manifest).path(manifest["metadata"]["namespace"]), body=manifest)

    def replace(self, manifest: Manifest) -> None:
        """Write an object as it is; 409 where its resourceVersion is not the newest."""
        metadata = manifest["metadata"]
        self._request("PUT", kind_of(manifest).path(metadata["namespace"], metadata["name"]), body=manifest)

    def create_event(self, event: Manifest) -> None:
        """Post an event."""
        self._request("POST", EVENT.path(event["metadata"]["namespace"]), body=event)

    def _apply(self, path: str, body: Manifest, manager: str) -> Manifest:
        return self._request(
            "PATCH",
            path,
            body=body,
            content_type="application/apply-patch+yaml",
            field_manager=manager,
            force_conflicts=True,
        )

    def _or_none(self, request: Callable[[], Manifest]) -> Manifest | None:
        try:
            return request()
        except ApiFailure as error:
            if error.status == 404:
                return None
            raise

    def _request(self, method: str, path: str, *, body: Manifest | None = None, **options: Any) -> Manifest:
        try:
            answer: Manifest = json.loads(self._send(method, path, body=body, **options).data)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiFailure(0, "Unreachable", f"{method} {path}: {error}") from error
        return answer

    def _send(self, method: str, path: str, *, body: Manifest | None = None, **options: Any) -> urllib3.HTTPResponse:
        """The response, whose body has not been read yet."""
        try:
            response: urllib3.HTTPResponse = self._client.request(
                method,
                path,
                body=body,
                serialize=False,
                query_params=[],
                **{"_request_timeout": self._timeout_s, **options},
            )
        except DynamicApiError as error:
            raise _failure(error) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ApiFailure(0, "Unreachable", f"{method} {path}: {error}") from error
        return response


class Watch:
    """The events of one watch, each with `type` and `object`, until the server ends it or `interrupt` is called."""

    def __init__(self, response: urllib3.HTTPResponse) -> None:
        self._response = response

    def __iter__(self) -> Iterator[Manifest]:
        rest = b""
        try:
            while part := self._response.read1(_READ_BYTES):  # as much as there is, whatever the framing
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    if line:
                        yield json.loads(line)
        except urllib3.exceptions.ReadTimeoutError:
            return  # no bookmark in `WATCH_SILENCE_S`: the connection may be dead, another one goes on from here
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise ApiFailure(0, "Unreachable", f"a watch has broken: {error}") from error

    def interrupt(self) -> None:
        """End it from another thread: its reader finds the end of the stream."""
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            self._response.shutdown()

    def close(self) -> None:
        """Give its connection up. In the reader's thread."""
        self._response.close()


def _failure(error: DynamicApiError) -> ApiFailure:
    try:
        status = json.loads(error.body or "")
        return ApiFailure(int(error.status), str(status.get("reason", "")), str(status.get("message", "")))
    except (TypeError, ValueError, AttributeError):
        return ApiFailure(int(error.status or 0), str(error.reason), f"HTTP {error.status} {error.reason}")
