"""Discovery by watching pods: list, then watch from there; list again when a watch fails or has expired.

Before each list but the first there is a pause. It doubles from one to the next until a watch works, as client-go's
reflector does it (`tools/cache/reflector.go`). Meanwhile the last known endpoints stay: scrapes show which of them
still answer.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Any, assert_never
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio import client as kubernetes
from kubernetes.aio import config as kubernetes_config

from ballast_api.errors import InvalidInput, Problem
from ballast_api.gateway_settings import KubernetesDiscovery
from ballast_gateway.observe.fleet import Fleet
from ballast_gateway.observe.pods import Pod, PodDraining, PodGone, PodReady, endpoint_id, read_pod

_log = logging.getLogger(__name__)
_WATCH_S = 60
"""A watch is replaced after this long, in case it broke in silence."""
_SHORTEST_WATCH_S = 1.0
"""A watch that ends sooner, without an event, has failed: the server did not hold it."""
_FIRST_BACKOFF_S = 0.2
_MAX_BACKOFF_S = 15.0


class Expired(Exception):
    """The server no longer has the version to watch from (410 Gone)."""


class WatchFailed(Exception):
    """The server ended the watch with an error, or as soon as it began."""


class PodWatch:
    """Follows the pods of one namespace that a selector finds. `api` is the official client's transport and
    credentials. What a pod means is `listed`, `changed` and `deleted`'s to say.

    The typed `CoreV1Api` is left alone: importing its models takes 2 s and 130 MB, and a raw pod is all we read.
    """

    def __init__(self, namespace: str, selector: str, api: kubernetes.ApiClient) -> None:
        self._namespace = namespace
        self._selector = selector
        self._api = api
        self._backoff_s = _FIRST_BACKOFF_S
        """The next pause before a list."""

    async def run(self) -> None:
        """List and watch forever."""
        while True:
            try:
                version = await self._list()
                while True:
                    version = await self._watch(version)
            except Expired:
                _log.info("the watch of pods expired; listing again", extra={"retry_in_s": self._backoff_s})
            except (
                kubernetes.ApiException,
                aiohttp.ClientError,
                TimeoutError,
                OSError,
                ValueError,
                WatchFailed,
            ) as error:
                problem = f"{type(error).__name__}: {error}"
                _log.warning("cannot watch pods", extra={"problem": problem, "retry_in_s": self._backoff_s})
            pause_s, self._backoff_s = self._backoff_s, min(2 * self._backoff_s, _MAX_BACKOFF_S)
            await asyncio.sleep(pause_s)

    async def _list(self) -> str:
        response = await self._get({})
        try:
            answer = json.loads(await response.read())
        finally:
            response.close()
        self.listed(answer.get("items") or [])
        return str(answer["metadata"]["resourceVersion"])

    async def _watch(self, version: str) -> str:
        """Follow the changes since `version`; returns the version to go on from. Raises `Expired`, `WatchFailed`."""
        loop = asyncio.get_running_loop()
        began_s, events = loop.time(), 0
        response = await self._get(
            {
                "watch": "true",
                "allowWatchBookmarks": "true",
                "resourceVersion": version,
                "timeoutSeconds": str(_WATCH_S),
            }
        )
        try:
            async for line in _lines(response):
                version = self._take(json.loads(line), version)
                events += 1
                self._backoff_s = _FIRST_BACKOFF_S
        finally:
            response.close()
        if not events and loop.time() - began_s < _SHORTEST_WATCH_S:
            raise WatchFailed("the API server ended the watch as soon as it began")
        self._backoff_s = _FIRST_BACKOFF_S
        return version

    async def _get(self, query: dict[str, str]) -> aiohttp.ClientResponse:
        """Ask for the pods. Raises `Expired` and `WatchFailed`."""
        configuration = self._api.configuration
        query = {"labelSelector": self._selector, **query}
        headers = {"Accept": "application/json"}
        if token := await configuration.get_api_key_with_prefix("BearerToken"):
            headers["Authorization"] = token
        answer = await self._api.call_api(
            "GET",
            f"{configuration.host}/api/v1/namespaces/{quote(self._namespace)}/pods?{urlencode(query)}",
            header_params=headers,
            _request_timeout=aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=_WATCH_S + 10),
        )
        response: aiohttp.ClientResponse = answer.response
        if response.status == HTTPStatus.OK:
            return response
        response.close()
        if response.status == HTTPStatus.GONE:
            raise Expired
        raise WatchFailed(f"the API server answered {response.status} {response.reason}")

    def _take(self, event: dict[str, Any], version: str) -> str:
        """Act on one event of the watch; returns the version to go on from."""
        kind, item = event["type"], event["object"]
        if kind == "ERROR":
            if item.get("code") == HTTPStatus.GONE:
                raise Expired
            raise WatchFailed(f"{item.get('reason')}: {item.get('message')}")
        if kind == "DELETED":
            self.deleted(item)
        elif kind in ("ADDED", "MODIFIED"):
            self.changed(item)
        return str(item["metadata"].get("resourceVersion", version))

    def listed(self, pods: list[Pod]) -> None:
        """These are all of them."""
        raise NotImplementedError

    def changed(self, pod: Pod) -> None:
        """One has come, or is another one now."""
        raise NotImplementedError

    def deleted(self, pod: Pod) -> None:
        """One is gone."""
        raise NotImplementedError


class PodDiscovery(PodWatch):
    """Keeps the fleet equal to the pods."""

    def __init__(self, settings: KubernetesDiscovery, fleet: Fleet, api: kubernetes.ApiClient) -> None:
        super().__init__(settings.namespace, settings.selector, api)
        self._settings = settings
        self._fleet = fleet

    def listed(self, pods: list[Pod]) -> None:
        """The fleet is these."""
        self._fleet.keep_only({endpoint_id(pod) for pod in pods})
        for pod in pods:
            self.changed(pod)
        self._fleet.synced = True

    def deleted(self, pod: Pod) -> None:
        """It is gone from the fleet."""
        self._fleet.gone(endpoint_id(pod))

    def changed(self, pod: Pod) -> None:
        """It serves, drains, or does neither."""
        change = read_pod(pod, port=self._settings.port)
        match change:
            case PodReady():
                self._fleet.ready(
                    change.endpoint,
                    incarnation=change.uid,
                    proven=True,
                    pod_api=change.pod_api,
                    draining=change.draining,
                )
                if change.draining:
                    self._fleet.draining(change.endpoint.id)
                else:
                    self._fleet.restored(change.endpoint.id)
            case PodDraining():
                self._fleet.draining(change.endpoint_id)
            case PodGone():
                if change.endpoint_id in self._fleet.members:
                    _log.info("an endpoint is gone", extra={"endpoint": change.endpoint_id, "why": change.why})
                self._fleet.gone(change.endpoint_id)
            case _:
                assert_never(change)


async def connect() -> kubernetes.ApiClient:
    """A client with the pod's ServiceAccount, else with the current kubeconfig. Raises `InvalidInput`."""
    configuration = kubernetes.Configuration()
    configuration.retries = None  # the watch has its own
    try:
        kubernetes_config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    except kubernetes_config.ConfigException:
        try:
            await kubernetes_config.load_kube_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        except kubernetes_config.ConfigException as error:
            problem = f"no service account and no usable kubeconfig: {error}; set KUBECONFIG, or use discovery.file"
            raise InvalidInput("", [Problem("discovery.kubernetes", problem)]) from error
    return kubernetes.ApiClient(configuration)


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Lines of any length: a pod with many managed fields is longer than aiohttp's own line limit."""
    rest = b""
    async for part in response.content.iter_any():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
