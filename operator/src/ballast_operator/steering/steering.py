"""Decides on instances, round after round, in a thread of its own.

Each round asks all gateways of the ServingPools that are steered what their clients ask for, counts pods, and lets the
core's policy decide. What is decided is stored first, in a ConfigMap that looks go by; a look then sets the counts.
So nothing is done that is not stored, and an operator that dies between two writes goes on from there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final, Protocol

from ballast_api import names
from ballast_api.conditions import Reason
from ballast_api.demand_report import DemandReport, Load, together
from ballast_api.rehearsal_job import RehearsalJob
from ballast_core.model import Role
from ballast_core.policies.scaling.ballast import BallastScaling
from ballast_core.policies.scaling.protocol import Counts, Decision, Inputs, Memory, Proposal, Recommended, Refusal
from ballast_core.policies.scaling.rehearsing import carried_over, unrehearsed, worth_rehearsing
from ballast_core.policies.scaling.steadying import still_right
from ballast_core.policies.scaling.telling import refuse
from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.gateways.asking import NoAnswer, asker
from ballast_operator.gateways.board import Board, Name
from ballast_operator.gateways.gateway_pods import GatewayPod, gateway_pods
from ballast_operator.gateways.listing import OURS, Lists, listed
from ballast_operator.gateways.rounds import Rounds
from ballast_operator.kinds import CONFIG_MAP, POD, Kind, Manifest
from ballast_operator.planning.ownership import is_labelled
from ballast_operator.planning.scaling import REFUSALS
from ballast_operator.profiles.learned import corrected
from ballast_operator.profiles.lessons import Lessons
from ballast_operator.scaling.flipping import Flip, flips
from ballast_operator.scaling.helm import Helm, Unstored
from ballast_operator.scaling.inputs import inputs_of, instances_of
from ballast_operator.scaling.records import NOTHING, Stored, read, resumed, written
from ballast_operator.scaling.steered import Instance, Steered
from ballast_operator.specs.meta import Owner, child
from ballast_operator.status.events import scaling_event
from ballast_operator.steering.deciding import Told, settled
from ballast_operator.steering.rehearsing import Outcome, Rehearsals

logger = logging.getLogger(__name__)

ROUND_S: Final = 15.0
"""Seconds from the beginning of one round to that of the next: one window of arrivals."""
WAKE_S: Final = 2.0
"""The same for those that are scaled to zero: somebody may wait."""
REHEARSED_S: Final = 1.0
"""The same, to see whether a rehearsal is over."""
PATIENCE: Final = 3
"""Rounds in which a gateway may be silent, or have counted for no whole window, before that is said: until then
nothing is decided or written."""


class Cluster(Lists, Protocol):
    """What is needed of the API server. Each method raises `ApiFailure`."""

    def get(self, kind: Kind, namespace: str | None, name: str) -> Manifest | None:
        """One object, None if none of that name exists."""
        ...

    def apply(self, manifest: Manifest, manager: str) -> Manifest:
        """Server-side apply."""
        ...

    def relabel(self, kind: Kind, metadata: Manifest, manager: str) -> object:
        """Set labels of this very object."""
        ...

    def create_event(self, event: Manifest) -> None:
        """Post an Event."""
        ...


@dataclass(slots=True)
class _Course:
    """What is remembered of one ServingPool between rounds."""

    uid: str
    stored: Stored
    memory: Memory
    silent: int = 0
    """Rounds in a row in which not all gateways answered, or one had counted for too short a time."""
    startups_s: Mapping[str, float] = field(default_factory=dict)
    """Of the pods that are there, by their uid, as first seen: one that is ready again after a fault seems to have
    taken until then."""

    def as_first_seen(self, instances: Sequence[Instance]) -> list[Instance]:
        """The instances with the start-up times that they had when they were first ready."""
        found = [replace(each, startup_s=self.startups_s.get(each.uid, each.startup_s)) for each in instances]
        self.startups_s = {each.uid: each.startup_s for each in found if each.startup_s is not None}
        return found


@dataclass(frozen=True, slots=True)
class _Heard:
    """What the gateways of one ServingPool said."""

    reports: tuple[DemandReport, ...] = ()
    problems: tuple[str, ...] = ()
    gateways: tuple[GatewayPod, ...] = ()


def demands(asked: Sequence[tuple[GatewayPod, bytes]]) -> list[DemandReport | BaseException]:
    """What each gateway answers, or why it does not. Calls are signed with its fleet's token."""

    async def all_of_them() -> list[DemandReport | BaseException]:
        async with asker() as ask:
            asking = [ask.demand(pod.address, token) for pod, token in asked]
            return await asyncio.gather(*asking, return_exceptions=True)

    return asyncio.run(all_of_them())


@dataclass(slots=True)
class Scaler:
    """`start` it, and `stop` it at the end. In its thread `changed` is called with each ServingPool for which something
    new was stored, or cannot be, and `told` with each decision, and without one for a ServingPool that is steered no
    more."""

    cluster: Cluster
    board: Board
    helm: Helm
    changed: Callable[[Name], None]
    told: Callable[[Name, Steered | None, Decision | None], None] = lambda *_: None
    rehearsed: Callable[[Name, str, float | None], None] = lambda *_: None
    """Is told of each rehearsal: what came of it, and its seconds; None of one that was not begun."""
    namespaces: tuple[str, ...] = ()
    round_s: float = ROUND_S
    admin_port: int = names.PORT_ADMIN
    unix_s: Callable[[], float] = time.time
    """The clock on the wall, which may be set: for pods' ages, and for what people read."""
    steady_s: Callable[[], float] = time.monotonic
    """For windows, and for what came of a decision."""
    ask: Callable[[Sequence[tuple[GatewayPod, bytes]]], list[DemandReport | BaseException]] = demands
    policy: BallastScaling = field(default_factory=lambda: BallastScaling(rehearse=False))
    lessons: Lessons = field(default_factory=Lessons)
    rehearsals: Rehearsals = field(default_factory=Rehearsals)
    _ahead_s: float = field(init=False)
    """Of the clock on the wall before the steady one, when this operator began: it goes on by the latter."""
    _courses: dict[Name, _Course] = field(default_factory=dict, init=False)
    _asleep: set[Name] = field(default_factory=set, init=False)
    _full_s: float = field(default=0.0, init=False)
    """When the next round of all is due, on the monotonic clock."""
    _rounds: Rounds = field(init=False)

    def __post_init__(self) -> None:
        """Nothing runs yet."""
        self._rounds = Rounds("scale", self._make_round, due_s=self._due_s, without="nothing is scaled")
        self._ahead_s = self.unix_s() - self.steady_s()

    def start(self) -> None:
        """Begin."""
        self._rounds.start()

    def stop(self) -> None:
        """End, when those that are asked have answered or had their time."""
        self._rounds.no_more()
        self.rehearsals.stop()
        self._rounds.stop()

    def alive(self) -> bool:
        """Whether it still runs."""
        return self._rounds.alive()

    def steer(self, *, soon: bool = False) -> None:
        """One round; with `soon` of those alone that cannot wait: scaled to zero, or their rehearsal is over. Raises
        `ApiFailure` where pods cannot be listed."""
        steered = self.helm.steered()
        for name in self._courses.keys() - steered.keys():
            del self._courses[name]
            self.rehearsals.forget(name)
            self.told(name, None, None)
        self._asleep &= steered.keys()
        if soon:
            steered = {name: of for name, of in steered.items() if name in self._asleep | self.rehearsals.over()}
        unasked = self.lessons.unasked()  # by declared numbers alone a fleet may grow or shrink for nothing
        steered = {name: of for name, of in steered.items() if name not in unasked}
        if not steered:
            return
        pods: defaultdict[Name, list[Manifest]] = defaultdict(list)
        for pod in listed(self.cluster, steered, self.namespaces, OURS):
            owner = (pod["metadata"].get("labels") or {}).get(names.LABEL_SERVING_POOL, "")
            pods[pod["metadata"]["namespace"], owner].append(pod)
        heard = self._heard(steered, pods)
        for name, of in steered.items():
            if self._rounds.stopping:
                return
            try:
                learned = corrected(of, self.lessons.of(name))
                self._steer_one(name, learned, instances_of(pods[name], self.unix_s()).get(name, []), heard[name])
                self._tell(name, None)
            except ApiFailure as error:
                logger.warning("ServingPool %s/%s is not scaled: %s; trying again", *name, error)
                self._tell(name, error)
            except Exception:
                # One unforeseen ServingPool must not stop all others.
                logger.exception("ServingPool %s/%s is not scaled: unexpected error; trying again", *name)

    def _tell(self, name: Name, error: ApiFailure | None) -> None:
        """Let a look say that decisions cannot be stored, or that they can be again."""
        if error is not None and error.transient:
            return
        why = None
        if error is not None:
            taken = error.reason == Reason.NAME_CONFLICT
            why = Unstored("exists and was not made by Ballast" if taken else str(error), taken)
        if self.helm.stored(name, why):
            self.changed(name)

    def _make_round(self) -> None:
        now_s = time.monotonic()
        soon = now_s < self._full_s
        if not soon:
            self._full_s = now_s + self.round_s
        if not soon or self._asleep or self.rehearsals.over():
            self.steer(soon=soon)

    def _due_s(self, began_s: float) -> float:
        next_s = min(self._full_s, began_s + WAKE_S) if self._asleep else self._full_s
        return min(next_s, began_s + REHEARSED_S) if self.rehearsals.running() else next_s

    def _now_s(self) -> float:
        """Seconds since 1970 by the clock with which this operator began, whoever has set it since."""
        return self.steady_s() + self._ahead_s

    # --- what is there --------------------------------------------------------------------------------------------

    def _heard(self, steered: Mapping[Name, Steered], pods: Mapping[Name, Sequence[Manifest]]) -> dict[Name, _Heard]:
        asked: list[tuple[Name, GatewayPod, bytes]] = []
        for name, of in steered.items():
            if of.token:
                gateways = [each for each in pods.get(name, ()) if _is_gateway(each)]
                asked += [(name, pod, of.token) for pod in gateway_pods(gateways, self.admin_port).get(name, ())]
        reports: defaultdict[Name, list[DemandReport]] = defaultdict(list)
        problems: defaultdict[Name, list[str]] = defaultdict(list)
        answers = self.ask([(pod, token) for _, pod, token in asked])
        for (name, pod, _), answer in zip(asked, answers, strict=True):
            if isinstance(answer, DemandReport):
                reports[name].append(answer)
            elif not isinstance(answer, NoAnswer):
                raise answer
            elif pod.ready:
                problems[name].append(f"{pod.name}: {answer}")
        may_answer: defaultdict[Name, list[GatewayPod]] = defaultdict(list)
        for name, pod, _ in asked:
            may_answer[name].append(pod)
        return {name: _Heard(tuple(reports[name]), tuple(problems[name]), tuple(may_answer[name])) for name in steered}

    def _course(self, name: Name, of: Steered) -> _Course:
        course = self._courses.get(name)
        if course is None or course.uid != of.uid:
            stored = NOTHING
            namespace, serving_pool = name
            found = self.cluster.get(CONFIG_MAP, namespace, names.scaling_name(serving_pool))
            pool = {"metadata": {"namespace": namespace, "name": serving_pool, "uid": of.uid}}
            if found is not None and not is_labelled(found, pool):  # what is decided has no place until it goes
                taken = f"ConfigMap {names.scaling_name(serving_pool)} exists and was not made by Ballast"
                raise ApiFailure(409, Reason.NAME_CONFLICT, f"{taken}; delete or rename it")
            if found is not None and _is_of(found, of.uid):
                stored = read(found)
            course = self._courses[name] = _Course(of.uid, stored, resumed(stored.memory, self._now_s()))
        return course

    # --- what is decided ------------------------------------------------------------------------------------------

    def _steer_one(self, name: Name, of: Steered, instances: Sequence[Instance], heard: _Heard) -> None:
        course = self._course(name, of)
        instances = course.as_first_seen(instances)
        decision = self._decided(name, of, course, instances, heard)
        if decision is not None:
            course.memory = decision.memory
            (self._asleep.add if _is_asleep(of, decision) else self._asleep.discard)(name)
            told = settled(of, course.stored, decision, now_s=self._now_s(), time=_rfc3339(self.unix_s()))
            if told.stored is not None or not of.kept:
                self._store(name, of, course, told)
            if of.acts and decision.reason not in REFUSALS:
                self._flip(name, of, course.stored, instances, heard)
        self.told(name, of, decision)

    def _decided(
        self, name: Name, of: Steered, course: _Course, instances: Sequence[Instance], heard: _Heard
    ) -> Decision | None:
        """None: not now, a gateway is silent or has just begun to count, or a rehearsal runs."""

        def inputs(report: DemandReport | None) -> Inputs:
            measured = self.board.newest(*name)
            return inputs_of(
                of, instances, report, measured, stored=course.stored, memory=course.memory, now_s=self._now_s()
            )

        if heard.reports and not heard.problems:
            decision = self._round(name, of, course, inputs(together(heard.reports)), heard)
            blind = decision is not None and decision.reason == Reason.NO_TRAFFIC and not _arrivals(decision)
            course.silent = course.silent + 1 if blind else 0
            return None if 0 < course.silent < PATIENCE else decision
        course.silent += 1
        if course.silent < PATIENCE:
            return None
        silent = "; ".join(heard.problems) or ("no gateway runs" if of.token else "there is no token to ask with")
        refusal = Refusal("GatewaysSilent", f"what clients ask for is not known: {silent}")
        proposal = Proposal(inputs=inputs(None), refusal=refusal)
        return refuse(proposal, still_right(proposal.inputs))

    def _round(self, name: Name, of: Steered, course: _Course, inputs: Inputs, heard: _Heard) -> Decision | None:
        """None: a rehearsal runs."""
        policy = self.policy if of.down_s is None else replace(self.policy, down_s=of.down_s)
        if of.rehearse is None:
            self.rehearsals.forget(name)
            return policy.decide(policy.propose(inputs))
        policy = replace(policy, rehearse=True)
        proposal = policy.propose(inputs)
        if self.rehearsals.runs(name):
            return None
        rehearsed = self.rehearsals.take(name)
        if rehearsed is not None and rehearsed.outcome is not None:
            self.rehearsed(name, rehearsed.outcome, rehearsed.seconds)
        if rehearsed is not None and rehearsed.outcome is None:
            found = carried_over(rehearsed.proposal, rehearsed.answer.rehearsals, proposal)
            self.rehearsed(name, Outcome.CHOSEN if found else Outcome.OUTDATED, rehearsed.seconds)
            if found:
                return policy.decide(proposal, found)
            problem = "the traffic or the spec asks for something else by now than what was tried"
        elif not worth_rehearsing(policy, proposal):
            return policy.decide(proposal)
        elif rehearsed is not None:
            problem = rehearsed.answer.problem
        else:
            job = RehearsalJob(
                proposal=proposal,
                in_force=_in_force(of, course.stored, inputs),
                policy=of.rehearse.policy,
                cpu_s=of.rehearse.cpu_s,
            )
            problem = self.rehearsals.begin(name, of.rehearse, job, heard.gateways, of.token)
            if not problem:
                return None
            self.rehearsed(name, Outcome.PUT_OFF, None)
        return unrehearsed(policy.decide(proposal), problem)

    def _store(self, name: Name, of: Steered, course: _Course, told: Told) -> None:
        stored = course.stored if told.stored is None else told.stored
        namespace, serving_pool = name
        owner = Owner(name=serving_pool, namespace=namespace, uid=of.uid)
        manifest = child(CONFIG_MAP, owner, names.scaling_name(serving_pool), "engine", data=written(stored))
        self.cluster.apply(manifest, names.SCALING_MANAGER)
        course.stored = stored
        if told.event is not None:
            logger.info("ServingPool %s/%s: %s: %s", *name, told.event.reason, told.event.message)
            self._post(owner, told)
        self.changed(name)

    def _flip(
        self,
        name: Name,
        of: Steered,
        stored: Stored,
        instances: Sequence[Instance],
        heard: _Heard,
    ) -> None:
        """Give pods of flexible pools their roles."""
        for pool in of.pools:
            wanted = stored.wanted.get(pool.name)
            if pool.role is not Role.FLEXIBLE or wanted is None:
                continue
            own = [one for one in instances if one.pool == pool.name]
            for each in flips(own, wanted, _loads(heard)):
                self._relabel(name, each)

    def _relabel(self, name: Name, flip: Flip) -> None:
        namespace, serving_pool = name
        pod = flip.instance
        labels = {names.LABEL_ROLE: flip.role.value, names.LABEL_LLMD_ROLE: names.llmd_role(flip.role)}
        metadata = {"name": pod.name, "namespace": namespace, "uid": pod.uid, "labels": labels}
        try:
            self.cluster.relabel(POD, metadata, names.SCALING_MANAGER)
        except ApiFailure as error:
            if error.transient:
                raise
            logger.warning("ServingPool %s/%s: pod %s keeps its role: %s", namespace, serving_pool, pod.name, error)
            return
        logger.info("ServingPool %s/%s: pod %s has the role %s now", namespace, serving_pool, pod.name, flip.role)

    def _post(self, owner: Owner, told: Told) -> None:
        assert told.event is not None
        try:
            self.cluster.create_event(scaling_event(owner, told.event))
        except ApiFailure as error:
            logger.warning("ServingPool %s/%s: event not posted: %s", owner.namespace, owner.name, error)


def _arrivals(decision: Decision) -> Sequence[int]:
    return decision.proposal.inputs.traffic.arrivals


def _is_asleep(of: Steered, decision: Decision) -> bool:
    """Whether the next request is to start it, now or once GPUs are free."""
    stopped = not any(counts.replicas for counts in decision.target)
    return stopped and of.zero_after_s is not None and decision.reason not in REFUSALS


def _in_force(of: Steered, stored: Stored, inputs: Inputs) -> tuple[Recommended, ...]:
    """The layouts that were asked for, by the records of changes that were carried out: the oldest first."""
    found: list[Recommended] = []
    for record in stored.records:
        try:
            if not record.get("applied"):
                continue
            before, after = (
                tuple(Counts(record[key][pool.name]["prefill"], record[key][pool.name]["decode"]) for pool in of.pools)
                for key in ("from", "to")
            )
        except (KeyError, TypeError, AttributeError):
            continue  # of other pools, or spoilt
        if not found:
            found.append(Recommended(0.0, before))
        found.append(Recommended(float(record["at_s"]), after))
    return tuple(found) or (Recommended(0.0, inputs.wanted),)


def _loads(heard: _Heard) -> Mapping[str, Load]:
    return together(heard.reports).endpoints if heard.reports else {}


def _is_gateway(pod: Manifest) -> bool:
    return bool((pod["metadata"].get("labels") or {}).get(names.APP_COMPONENT) == "gateway")


def _is_of(manifest: Manifest, uid: str) -> bool:
    return any(each.get("uid") == uid for each in manifest["metadata"].get("ownerReferences") or ())


def _rfc3339(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
