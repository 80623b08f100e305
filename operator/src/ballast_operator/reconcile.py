"""One look at one object: gather, plan, apply, status, events. Blocking; level-based; safe to repeat and to kill."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from ballast_api import names
from ballast_operator.accepted import accepted_status
from ballast_operator.apply import carry_out
from ballast_operator.cluster import ApiFailure, Catalogue, Cluster
from ballast_operator.events import event_for
from ballast_operator.gather import gather
from ballast_operator.kinds import SERVING_POOL, Kind, Manifest
from ballast_operator.log_fields import log_fields, reference
from ballast_operator.plan import plan, with_failures
from ballast_operator.settings import OperatorSettings
from ballast_operator.status import transitions

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one look."""

    requeue_s: float | None = None
    """Seconds until the next look; None if only events and the resync bring one."""
    failed: bool = False
    """Whether something was refused: the next look comes with growing delay."""


class Reconciler:
    """Holds the connection to the cluster. `now` gives RFC 3339 in UTC."""

    def __init__(
        self, cluster: Cluster, catalogue: Catalogue, settings: OperatorSettings, now: Callable[[], str]
    ) -> None:
        self._cluster = cluster
        self._catalogue = catalogue
        self._settings = settings
        self._now = now

    def serving_pool(self, namespace: str, name: str) -> Result:
        """Bring one ServingPool's objects and status in line. Raises `ApiFailure` when the API server is not there."""
        observed = gather(
            self._cluster, self._catalogue, namespace, name, now=self._now(), defaults=self._settings.gateway
        )
        if observed is None:
            return Result()
        wanted = plan(observed)
        outcome = carry_out(self._cluster, observed, wanted)
        if outcome.failures:
            wanted = with_failures(replace(observed, failures=outcome.failures), wanted)
        if wanted.status is not None:
            self._write_status(SERVING_POOL, observed.pool, wanted.status)
        return Result(requeue_s=wanted.requeue_s, failed=bool(outcome.failures))

    def referred(self, kind: Kind, namespace: str | None, name: str) -> Result:
        """Say of a SchedulingPolicy, ServiceLevelObjective or HardwareProfile whether it is accepted."""
        manifest = self._cluster.get(kind, namespace, name)
        if manifest is not None and not manifest["metadata"].get("deletionTimestamp"):
            self._write_status(kind, manifest, accepted_status(manifest, self._now()))
        return Result()

    def _write_status(self, kind: Kind, manifest: Manifest, status: Manifest) -> None:
        before = manifest.get("status")
        if before == status:
            return
        try:
            self._cluster.apply_status(kind, manifest, status, names.MANAGER)
        except ApiFailure as error:
            if error.status in (404, 409):  # deleted, or another object by now: nothing to tell
                return
            raise
        for condition in transitions(before, status):
            self._tell(manifest, condition)

    def _tell(self, manifest: Manifest, condition: Manifest) -> None:
        logger.info(
            "%s: %s is %s (%s) %s",
            reference(manifest),
            *(condition[field] for field in ("type", "status", "reason", "message")),
            extra=log_fields(manifest, condition=condition["type"], status=condition["status"]),
        )
        event = event_for(manifest, condition, self._now())
        if event is None:
            return
        try:
            self._cluster.create_event(event)
        except ApiFailure as error:
            # An operator of single namespaces has no right to tell of cluster-scoped objects.
            level = logging.DEBUG if error.status == 403 else logging.WARNING
            logger.log(level, "%s: event not posted: %s", reference(manifest), error, extra=log_fields(manifest))
