"""One operator at a time, by a Lease (coordination.k8s.io/v1) and client-go's rules (`tools/leaderelection`).

Who holds the Lease renews it. When it has not changed for as long as it lasts, by this process's own clock, another one
takes it. A holder that could not renew for `RENEW_DEADLINE_S` ends, before another one may begin. Writes that meet fail
by resourceVersion, so one of two wins.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.kinds import LEASE, Kind, Manifest

logger = logging.getLogger(__name__)

LEASE_S: Final = 15
RENEW_DEADLINE_S: Final = 10.0
RETRY_S: Final = 2.0
_LOST_RACE: Final = 409


class Leases(Protocol):
    """What an election needs of the API server. Each method raises `ApiFailure`."""

    def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        """The object, None if none of that name exists."""
        ...

    def create(self, manifest: Manifest) -> None:
        """Make it; 409 where it exists."""
        ...

    def replace(self, manifest: Manifest) -> None:
        """Write it as it is; 409 where it is another version by now."""
        ...


class Election:
    """One candidate. Blocking; `clock` gives seconds, `now` the time as Kubernetes writes it (MicroTime)."""

    def __init__(
        self,
        api: Leases,
        namespace: str,
        name: str,
        me: str,
        *,
        clock: Callable[[], float],
        now: Callable[[], str],
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = name
        self._me = me
        self._clock = clock
        self._now = now
        self._seen: tuple[object, object] = (None, None)
        """Holder and renewal as last seen."""
        self._seen_s = 0.0
        self._renewed_s: float | None = None

    def leads(self) -> bool:
        """Try to get or to keep the Lease, once: whether this candidate leads now."""
        began_s = self._clock()
        try:
            held = self._try(began_s)
        except ApiFailure as error:
            # A lost race, too: our own answer may have been lost, or somebody edited the Lease. The next try reads it.
            if error.status != _LOST_RACE:
                logger.warning("the Lease %s/%s cannot be had: %s", self._namespace, self._name, error)
            return self.left_s() > 0
        self._renewed_s = began_s if held else None
        return held

    def left_s(self) -> float:
        """Seconds for which this candidate may still take itself for the leader; 0 or less where it may not."""
        return 0.0 if self._renewed_s is None else self._renewed_s + RENEW_DEADLINE_S - self._clock()

    def release(self) -> None:
        """Give it up, so that a successor need not wait."""
        if self._renewed_s is None:
            return
        self._renewed_s = None
        try:
            lease = self._api.get(LEASE, self._namespace, self._name)
            if lease is not None and lease["spec"].get("holderIdentity") == self._me:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": self._now()}
                self._api.replace(lease)
        except ApiFailure as error:
            logger.info("the Lease %s/%s was not released: %s", self._namespace, self._name, error)

    def _try(self, now_s: float) -> bool:
        lease = self._api.get(LEASE, self._namespace, self._name)
        if lease is None:
            metadata = {"name": self._name, "namespace": self._namespace}
            api = {"apiVersion": LEASE.api_version, "kind": LEASE.kind}
            spec = {**self._held(), "acquireTime": self._now(), "leaseTransitions": 0}
            self._api.create({**api, "metadata": metadata, "spec": spec})
            return True
        spec = lease.setdefault("spec", {})
        holder = spec.get("holderIdentity") or ""
        seen = (holder, spec.get("renewTime"))
        if seen != self._seen:
            self._seen, self._seen_s = seen, now_s
        lasts_s = float(spec.get("leaseDurationSeconds") or LEASE_S)
        if holder not in ("", self._me):
            if now_s - self._seen_s < lasts_s:
                return False
            logger.info("%s has not renewed the Lease for %g s", holder, lasts_s)
        if holder != self._me:
            spec |= {"acquireTime": self._now(), "leaseTransitions": int(spec.get("leaseTransitions") or 0) + 1}
        spec |= self._held()
        self._api.replace(lease)
        return True

    def _held(self) -> Manifest:
        return {"holderIdentity": self._me, "leaseDurationSeconds": LEASE_S, "renewTime": self._now()}


async def lead(
    election: Election, begin: Callable[[], None], lost: Callable[[], Awaitable[None]], *, retry_s: float = RETRY_S
) -> None:
    """Wait for leadership, `begin`, and keep it; `lost` once it is gone, and no further try."""
    leading = False
    while True:
        try:  # an API server that hangs must not let us lead beyond the Lease
            async with asyncio.timeout(max(election.left_s(), 0.0) if leading else None):
                leads = await asyncio.to_thread(election.leads)
        except TimeoutError:
            leads = False
        if leads and not leading:
            logger.info("this operator leads")
            begin()
        elif leading and not leads:
            logger.error("this operator leads no more")
            await lost()
            return
        leading = leads
        await asyncio.sleep(retry_s)
