"""The other gateways, by watching pods: those that say where they serve the pod API, until they are gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kubernetes.aio import client as kubernetes

from ballast_gateway.observe.pods import Pod, endpoint_id, pod_api
from ballast_gateway.observe.watch import PodWatch


class PeerPods(PodWatch):
    """Passes the addresses of all gateways to `follow` whenever they change. A pod need not be ready: one that starts
    already knows requests, and one that drains still does."""

    def __init__(
        self,
        namespace: str,
        selector: str,
        api: kubernetes.ApiClient,
        follow: Callable[[Iterable[str]], None],
    ) -> None:
        super().__init__(namespace, selector, api)
        self._follow = follow
        self._addresses: dict[str, str] = {}

    def listed(self, pods: list[Pod]) -> None:
        """These are all of them."""
        self._addresses = {endpoint_id(pod): address for pod in pods if (address := pod_api(pod))}
        self._follow(sorted(self._addresses.values()))

    def changed(self, pod: Pod) -> None:
        """One has come, or is elsewhere now."""
        address, name = pod_api(pod), endpoint_id(pod)
        if address and self._addresses.get(name) != address:
            self._addresses[name] = address
            self._follow(sorted(self._addresses.values()))

    def deleted(self, pod: Pod) -> None:
        """One is gone."""
        if self._addresses.pop(endpoint_id(pod), None) is not None:
            self._follow(sorted(self._addresses.values()))
