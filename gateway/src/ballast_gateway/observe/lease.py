"""Leadership by a Lease (coordination.k8s.io/v1), by client-go's rules (`tools/leaderelection`).

Whoever holds the Lease renews it; when it has not changed for `LEASE_S`, as seen by this process's own clock, another
one takes it. A holder that could not renew for `RENEW_DEADLINE_S` stops to lead, before others may begin. At the end
it is released, so that a successor need not wait. Conflicting writes fail by resourceVersion, so one of two wins.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import aiohttp
from kubernetes.aio import client as kubernetes

_log = logging.getLogger(__name__)

LEASE_S: Final = 15
RENEW_DEADLINE_S: Final = 10.0
RETRY_S: Final = 2.0
_CALL_S: Final = 5.0


class LeaseElection:
    """One candidate. `on_change` is told whether it leads, each time that this changes."""

    def __init__(
        self,
        api: kubernetes.ApiClient,
        namespace: str,
        name: str,
        me: str,
        on_change: Callable[[bool], None],
        *,
        retry_s: float = RETRY_S,
    ) -> None:
        self._api = api
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace)}/leases"
        self._name = name
        self._me = me
        self._on_change = on_change
        self._retry_s = retry_s
        self._leads = self._released = False
        self._deadline: asyncio.TimerHandle | None = None
        """When it leads no more, unless the Lease is renewed before."""
        self._seen: tuple[object, object] = (None, None)
        """Holder and renewal of the Lease as last seen, and since when it has been so."""
        self._seen_s = 0.0

    async def run(self) -> None:
        """Try until it is released."""
        loop = asyncio.get_running_loop()
        while not self._released:
            began_s = loop.time()
            try:
                async with asyncio.timeout(_CALL_S):
                    held = await self._try(began_s)
            except (aiohttp.ClientError, kubernetes.ApiException, TimeoutError, OSError, ValueError) as error:
                _log.warning("the Lease cannot be had", extra={"lease": self._name, "problem": str(error)})
            else:
                self._set(held and not self._released)
                if self._leads:
                    self._deadline = loop.call_at(began_s + RENEW_DEADLINE_S, self._set, False)
            await asyncio.sleep(self._retry_s)

    async def release(self) -> None:
        """Give it up, if it is held, for good."""
        self._released = True
        if not self._leads:
            return
        self._set(False)
        try:
            async with asyncio.timeout(_CALL_S):
                status, lease = await call(self._api, "GET", f"{self._leases}/{quote(self._name)}")
                if status == HTTPStatus.OK and lease["spec"].get("holderIdentity") == self._me:
                    lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
                    await call(self._api, "PUT", f"{self._leases}/{quote(self._name)}", lease)
        except (aiohttp.ClientError, kubernetes.ApiException, TimeoutError, OSError, ValueError) as error:
            _log.info("the Lease was not released", extra={"lease": self._name, "problem": str(error)})

    def _set(self, leads: bool) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if leads is not self._leads:
            self._leads = leads
            self._on_change(leads)

    async def _try(self, now_s: float) -> bool:
        """One round: whether this candidate holds the Lease now."""
        status, lease = await call(self._api, "GET", f"{self._leases}/{quote(self._name)}")
        if status == HTTPStatus.NOT_FOUND:
            return await self._create()
        if status != HTTPStatus.OK:
            raise ValueError(f"the API server answered {status} to the Lease {self._name}")
        spec: dict[str, Any] = lease.setdefault("spec", {})
        holder = spec.get("holderIdentity") or ""
        seen = (holder, spec.get("renewTime"))
        if seen != self._seen:
            self._seen, self._seen_s = seen, now_s
        lasts_s = float(spec.get("leaseDurationSeconds") or LEASE_S)
        if holder not in ("", self._me) and now_s - self._seen_s < lasts_s:
            return False
        if holder != self._me:
            spec["acquireTime"] = _now()
            spec["leaseTransitions"] = int(spec.get("leaseTransitions") or 0) + 1
        spec |= {"holderIdentity": self._me, "leaseDurationSeconds": LEASE_S, "renewTime": _now()}
        status, _ = await call(self._api, "PUT", f"{self._leases}/{quote(self._name)}", lease)
        if status == HTTPStatus.CONFLICT and holder == self._me:  # somebody wrote an annotation meanwhile
            raise ValueError("the Lease has changed while it was renewed")
        return status == HTTPStatus.OK  # 409: another one was quicker

    async def _create(self) -> bool:
        spec = {
            "holderIdentity": self._me,
            "leaseDurationSeconds": LEASE_S,
            "acquireTime": _now(),
            "renewTime": _now(),
            "leaseTransitions": 0,
        }
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name},
            "spec": spec,
        }
        status, _ = await call(self._api, "POST", self._leases, lease)
        return status in (HTTPStatus.OK, HTTPStatus.CREATED)


async def call(
    api: kubernetes.ApiClient, method: str, path: str, body: object = None, *, kind: str = "application/json"
) -> tuple[int, dict[str, Any]]:
    """One request to the API server: its status, and its answer as far as that is an object. `kind`: of the body."""
    configuration = api.configuration
    headers = {"Accept": "application/json", "Content-Type": kind}
    if token := await configuration.get_api_key_with_prefix("BearerToken"):
        headers["Authorization"] = token
    answer = await api.call_api(
        method,
        f"{configuration.host}{path}",
        header_params=headers,
        body=body,
        _request_timeout=aiohttp.ClientTimeout(total=_CALL_S),
    )
    response: aiohttp.ClientResponse = answer.response
    try:
        text = await response.read()
    finally:
        response.close()
    found = json.loads(text) if text else {}
    return response.status, found if isinstance(found, dict) else {}


def _now() -> str:
    """MicroTime, as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
