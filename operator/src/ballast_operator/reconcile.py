"""One look at one object: gather, plan, apply, verdict, then status and Events.

Blocking; level-based; safe to repeat, and to kill between any two writes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from ballast_api import names
from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.conditions import transitions
from ballast_operator.gateways.board import Board
from ballast_operator.gateways.loads import Loads
from ballast_operator.kinds import CONFIG_MAP, ENGINE_POOL, HARDWARE_PROFILE, SERVING_POOL, Kind, Manifest
from ballast_operator.log_fields import log_fields, reference
from ballast_operator.observed import Observed
from ballast_operator.outcome import Outcome, Refusal
from ballast_operator.planning.plan import plan
from ballast_operator.planning.planned import Plan
from ballast_operator.planning.references import named_objects
from ballast_operator.planning.scaling import steered
from ballast_operator.profiles.lessons import Lessons
from ballast_operator.reading.gather import OptionalKinds, Reader, gather
from ballast_operator.reading.users import Referred, Users
from ballast_operator.scaling.helm import Helm
from ballast_operator.settings import OperatorSettings
from ballast_operator.status.accepted import accepted_status, profile_status, used_by_of
from ballast_operator.status.attainment import following, taught
from ballast_operator.status.drain_notices import drain_notices
from ballast_operator.status.edit_notices import EditNotices
from ballast_operator.status.events import event_for, notice_event
from ballast_operator.status.scale import scale_statuses
from ballast_operator.status.verdict import unplannable, unreadable, verdict
from ballast_operator.writing.apply import Writer, apply, refusal
from ballast_operator.writing.in_place import InPlace

logger = logging.getLogger(__name__)

_GONE: Final = (404, 409)
"""HTTP statuses of a write to an object that was deleted, or that is another one by now."""
_REFUSED: Final = (401, 403)
"""Of a read for which a right is missing."""


class Api(Reader, Writer, Protocol):
    """What the reconciler needs of the API server. Each method raises `ApiFailure`."""

    def apply_status(self, kind: Kind, of: Manifest, status: Manifest, manager: str) -> Manifest:
        """Server-side apply of the status of this very object."""
        ...

    def create_event(self, event: Manifest) -> None:
        """Post an Event."""
        ...


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one look."""

    requeue_s: float | None = None
    """Seconds until the next look; None if only events and the resync bring one."""
    failed: bool = False
    """Whether something was refused: the next look comes with growing delay."""


@dataclass(frozen=True, slots=True)
class _Healing:
    """What is remembered of a ServingPool to tell of foreign edits. One look at a time uses it."""

    in_place: InPlace
    notices: EditNotices


class Reconciler:
    """Holds the connection to the cluster. `now` gives RFC 3339 in UTC, `token` a new secret text at each call."""

    def __init__(
        self,
        api: Api,
        optional: OptionalKinds,
        settings: OperatorSettings,
        now: Callable[[], str],
        token: Callable[[], str],
        *,
        board: Board | None = None,
        users: Users | None = None,
        helm: Helm | None = None,
        lessons: Lessons | None = None,
        said: Callable[[str, str, Manifest | None], None] = lambda *_: None,
        ask: Callable[[Sequence[Manifest], bytes], Loads] | None = None,
        set_back: Callable[[str, str, str], None] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`board`: what gateways have counted, where they are asked. `users`: which ServingPools name an object, where
        that is known. `helm`: for who decides on instances. `lessons`: what gateways
        have learned of engines. `said`: is told of each ServingPool that was looked at, by
        namespace and name, with its status; None when it is gone. `ask`: asks gateways what it takes to empty pods,
        given the pods of a ServingPool and a token that signs; None: nobody is asked. `set_back`: is told of each
        foreign edit that was set back, by namespace and name of the ServingPool and the kind of the object. `clock`:
        seconds."""
        self._api = api
        self._optional = optional
        self._settings = settings
        self._now = now
        self._token = token
        self._board = Board() if board is None else board
        self._users = users
        self._helm = Helm() if helm is None else helm
        self._lessons = Lessons() if lessons is None else lessons
        self._said = said
        self._ask = ask
        self._set_back = set_back
        self._clock = clock
        self._healing: dict[tuple[str, str], _Healing] = {}

    def serving_pool(self, namespace: str, name: str) -> Result:
        """Bring one ServingPool's objects and status in line.

        Raises `ApiFailure` when a request may succeed later unchanged; the status is then as it was.
        """
        try:
            observed = self._gathered(namespace, name)
        except ApiFailure as error:
            if error.status not in _REFUSED:
                raise
            return self._unreadable(namespace, name, error)
        if self._users is not None:
            self._users.put(namespace, name, () if observed is None else named_objects(observed.pool))
        if observed is None:
            self._board.follow(namespace, name, None)
            self._helm.steer(namespace, name, None)
            self._lessons.follow(namespace, name, None)
            self._healing.pop((namespace, name), None)
            self._said(namespace, name, None)
            return Result()
        try:
            planned = plan(observed)
        except Exception as error:  # unforeseen: people must learn of it where they look
            logger.exception("%s: cannot be planned", reference(observed.pool), extra=log_fields(observed.pool))
            status = unplannable(observed, f"{type(error).__name__}: {error}"[:200])
            self._write_status(SERVING_POOL, observed.pool, status)
            self._said(namespace, name, status)
            return Result(failed=True)
        followed = following(observed, planned)
        self._board.follow(namespace, name, followed)
        lessons = taught(observed, planned)
        self._lessons.follow(namespace, name, lessons)  # first: it is not steered before it is asked
        self._helm.steer(namespace, name, steered(observed, planned, b"" if lessons is None else lessons.token))
        for notice in drain_notices(planned):
            self._post(observed.pool, notice_event(observed.pool, notice, observed.now))
        outcome = self._applied(observed, planned)
        more = (*self._untold_scalers(observed), *self._unstored_decisions(namespace, name))
        outcome = replace(outcome, refusals=(*outcome.refusals, *more))
        found = verdict(observed, planned, outcome)
        if found.status is not None:
            self._write_status(SERVING_POOL, observed.pool, found.status)
            self._said(namespace, name, found.status)
        return Result(requeue_s=found.requeue_s, failed=bool(outcome.refusals))

    def _gathered(self, namespace: str, name: str) -> Observed | None:
        return gather(
            self._api,
            self._optional,
            namespace,
            name,
            now=self._now(),
            fresh_token=self._token(),
            settings=self._settings,
            measured=self._board.shown(namespace, name),
            ask=self._ask,
        )

    def _applied(self, observed: Observed, planned: Plan) -> Outcome:
        name = (observed.pool["metadata"]["namespace"], observed.name)
        healing = self._healing.get(name)
        if healing is None or healing.in_place.uid != observed.uid:
            healing = self._healing[name] = _Healing(InPlace(observed.uid), EditNotices())
        try:
            return apply(self._api, observed, planned, healing.in_place)
        finally:
            edits = healing.in_place.taken()
            for edit in edits:
                self._set_back(*name, edit.key.kind)
            for notice in healing.notices.of(edits, self._clock()):
                self._post(observed.pool, notice_event(observed.pool, notice, observed.now))

    def _untold_scalers(self, observed: Observed) -> Iterator[Refusal]:
        """Write what EnginePools say; those whose status is refused: the ServingPool's own names them."""
        for handle, status in scale_statuses(observed):
            try:
                self._write_status(ENGINE_POOL, handle, status)
            except ApiFailure as error:
                yield refusal(handle, error)

    def _unstored_decisions(self, namespace: str, name: str) -> Iterator[Refusal]:
        """Why decisions on instances cannot be stored."""
        found = self._helm.unstored(namespace, name)
        if found is not None:
            yield Refusal(CONFIG_MAP.key(names.scaling_name(name)), found.message, found.taken)

    def _unreadable(self, namespace: str, name: str, error: ApiFailure) -> Result:
        """Says so, where ServingPools may be read."""
        pool = self._api.get(SERVING_POOL, namespace, name)
        if pool is not None:
            logger.warning("%s: %s", reference(pool), error, extra=log_fields(pool))
            status = unreadable(pool, str(error), self._now())
            self._write_status(SERVING_POOL, pool, status)
            self._said(namespace, name, status)
        return Result(failed=True)

    def referred(self, kind: Kind, namespace: str | None, name: str) -> Result:
        """Write into a SchedulingPolicy, ServiceLevelObjective or HardwareProfile whether it is accepted."""
        manifest = self._api.get(kind, namespace, name)
        if manifest is not None and not manifest["metadata"].get("deletionTimestamp"):
            self._write_status(kind, manifest, self._referred_status(kind, manifest))
        return Result()

    def _referred_status(self, kind: Kind, manifest: Manifest) -> Manifest:
        used_by = self._used_by(kind, manifest)
        if kind is not HARDWARE_PROFILE:
            return accepted_status(manifest, self._now(), used_by)
        lessons = self._lessons.shown(manifest["metadata"]["name"]) if self._lessons.asked() else None
        users = used_by_of(manifest) if used_by is None else used_by

        def ours(user: str) -> bool:
            namespace, _, name = user.partition("/")
            return self._is_ours(user) and (user not in users or self._lessons.has_asked((namespace, name)))

        return profile_status(manifest, self._now(), used_by, lessons, ours)

    def _is_ours(self, user: str) -> bool:
        """Whether this operator serves the namespace of a ServingPool `NAMESPACE/NAME`."""
        served = self._settings.namespaces
        return not served or user.split("/", maxsplit=1)[0] in served

    def _used_by(self, kind: Kind, manifest: Manifest) -> list[str] | None:
        """The ServingPools that name it; those of namespaces that another operator serves stay as it has written."""
        if self._users is None:
            return None
        referred = Referred(kind, manifest["metadata"].get("namespace"), manifest["metadata"]["name"])
        ours = {f"{namespace}/{name}" for namespace, name in self._users.of(referred)}
        return sorted(ours.union(each for each in used_by_of(manifest) if not self._is_ours(each)))

    def _write_status(self, kind: Kind, manifest: Manifest, status: Manifest) -> None:
        before = manifest.get("status")
        if before == status:
            return
        try:
            self._api.apply_status(kind, manifest, status, names.MANAGER)
        except ApiFailure as error:
            if error.status in _GONE:
                return
            raise
        for condition in transitions(before, status):
            self._report(manifest, condition)

    def _report(self, manifest: Manifest, condition: Manifest) -> None:
        logger.info(
            "%s: %s is %s (%s) %s",
            reference(manifest),
            *(condition[field] for field in ("type", "status", "reason", "message")),
            extra=log_fields(manifest, condition=condition["type"], status=condition["status"]),
        )
        event = event_for(manifest, condition, self._now())
        if event is not None:
            self._post(manifest, event)

    def _post(self, manifest: Manifest, event: Manifest) -> None:
        try:
            self._api.create_event(event)
        except ApiFailure as error:
            # An operator of single namespaces has no right to post Events about cluster-scoped objects.
            level = logging.DEBUG if error.status == 403 else logging.WARNING
            logger.log(level, "%s: event not posted: %s", reference(manifest), error, extra=log_fields(manifest))
