"""What a scaling policy is asked and what it answers: plain values that an operator and a simulator can both make.

A round has two halves, so that whoever runs it may try candidates in between:

    proposal = policy.propose(inputs)
    rehearsals = [try(candidate) for candidate in proposal.candidates]     # or none
    decision = policy.decide(proposal, rehearsals)

Both halves are pure. What a policy remembers from round to round is `Decision.memory`, which the caller keeps and
passes to the next round. Seconds are those of one clock; rates are by second; GPUs and instances are whole numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeAlias

from ballast_core.attainment import Counts as RequestCounts
from ballast_core.attainment import Objective
from ballast_core.model import Role
from ballast_core.profiles import HardwareProfile
from ballast_core.profiles.capacity import LengthStatistics


@dataclass(frozen=True, slots=True)
class Counts:
    """Instances of one pool, by what they do."""

    prefill: int = 0
    decode: int = 0

    @property
    def replicas(self) -> int:
        """All of them."""
        return self.prefill + self.decode


Layout: TypeAlias = tuple[Counts, ...]
"""The counts of every pool, in the order of `Inputs.pools`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A pool of like instances: what may be asked of it, what was asked, and what is there."""

    name: str
    role: Role
    """FLEXIBLE: each instance has one of the two stages, and changes it at once, without a restart."""
    profile: HardwareProfile
    least: int = 1
    """Instances at least."""
    most: int = 1
    """Instances at most."""
    gpus: int = 1
    """GPUs of one instance."""
    cost_per_hour: float = 0.0
    """Price of one instance and hour in any currency, the same for all pools; 0: not known, its GPUs count instead."""
    by_others: bool = False
    """Whether another scaler sets its number within its bounds, and decisions advise."""
    wanted: Counts = Counts()
    """What was asked for last."""
    ready: Counts = Counts()
    """What takes requests."""
    starting: int = 0
    """Instances that are wanted and do not take requests yet."""
    draining: int = 0
    """Instances that are not wanted any more and still finish requests. They hold their GPUs."""
    returning: int = 0
    """Those of them that the pool takes back where more are wanted: it needs no GPUs for so many."""
    running: int = 0
    """Requests in the batches of the ready instances, at the last scrape."""
    waiting: int = 0
    """Requests that wait in the engines of the ready instances, at the last scrape."""
    kv_usage_ratio: float = 0.0
    """KV in use, mean of the ready instances, at the last scrape."""

    @property
    def price(self) -> float:
        """What an instance costs, for comparisons."""
        return self.cost_per_hour or float(self.gpus)


@dataclass(frozen=True, slots=True)
class Attained:
    """The requests of one class that ended in the last window, by whether they met its objective jointly."""

    name: str
    counts: RequestCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """What was measured of the requests, over the last windows."""

    bin_s: float
    """Length of one of the successive windows of `arrivals`."""
    arrivals: tuple[int, ...] = ()
    """Requests that arrived in each window, the newest last. Windows before the first request are left out."""
    lengths: LengthStatistics | None = None
    """Moments of prompts and outputs, of `measuring.lengths_of`; None where no request told its lengths."""
    prefix_hit_ratio: float = 0.0
    """Share of the prompt tokens that caches held."""
    backlog_tokens: float = 0.0
    """Prompt tokens that wait for their prefill, in the gateway and in engines."""
    oldest_wait_s: float = 0.0
    """How long the oldest request waits for its first token."""
    decoding: int = 0
    """Requests that decode, or wait for it with their prompt computed."""
    decoding_tokens: float = 0.0
    """KV tokens that these hold: their prompts, and what they have generated."""
    idle_s: float = 0.0
    """How long no request has been in flight, as far as that was watched; 0 while there is one."""
    attained: tuple[Attained, ...] = ()
    """By class."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clamps:
    """What no decision may go beyond; None: no such bound. A pool's own bounds are `Pool.least` and `Pool.most`."""

    min_ratio: float | None = None
    """Prefill instances for each decode instance, at least."""
    max_ratio: float | None = None
    """Prefill instances for each decode instance, at most."""
    gpu_budget: int | None = None
    """GPUs of all instances, draining ones included."""


@dataclass(frozen=True, slots=True)
class Recommended:
    """What a round found right before it was held back by windows."""

    at_s: float
    layout: Layout


@dataclass(frozen=True, slots=True)
class Memory:
    """What a policy remembers. It depends on the names of the pools: another set of pools begins with an empty one."""

    pools: tuple[str, ...] = ()
    recommended: tuple[Recommended, ...] = ()
    """Of the longest window, the oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """All that a round goes by."""

    now_s: float
    pools: tuple[Pool, ...]
    traffic: Traffic
    objectives: tuple[Objective, ...] = ()
    clamps: Clamps = Clamps()
    startup_s: float = 60.0
    """From asking for an instance to its first request, as measured."""
    zero_after_s: float | None = None
    """Seconds without a request after which both stages stop, where every pool may have no instance; None: never."""
    memory: Memory = field(default_factory=Memory)

    @property
    def wanted(self) -> Layout:
        """What was asked for last."""
        return tuple(pool.wanted for pool in self.pools)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What the traffic needs, by arithmetic."""

    rate_rps: float
    """Arrivals in the last windows."""
    forecast_rps: float
    """Arrivals once an instance that is asked for now takes requests."""
    lengths: LengthStatistics
    """Of prompts without what caches hold, and of outputs."""
    prefill_rps: float
    """What prefill instances must carry together, room for peaks and for the backlog included."""
    decode_rps: float
    """What decode instances must carry together."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A layout that may be right."""

    layout: Layout
    origin: str
    """Why it is looked at, such as `equilibrium` or `one decode less`."""
    price: float
    """Of all its instances together (`Pool.price`)."""
    cover_ratio: float
    """What its narrower stage carries over what is needed, by arithmetic."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a round changes nothing whatever the traffic."""

    reason: str
    message: str
    """What is measured in it is said as `some 0.31`: another such figure is no other message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """The first half of a round. With a `refusal` there is no candidate, and nothing is worth trying."""

    inputs: Inputs
    demand: Demand | None = None
    candidates: tuple[Candidate, ...] = ()
    """The first one is what arithmetic, or the policy's own rule, takes for right."""
    remark: str = ""
    """What limits the first candidate, for people."""
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What a candidate came to when it was tried on recorded traffic, from the state that the fleet is in."""

    candidate: int
    """Its index in `Proposal.candidates`."""
    requests: int
    """Those in flight when it took over and those that came then, of which it shows how they fare."""
    met: int

    @property
    def attainment(self) -> float:
        """The share of requests that met the objective."""
        return self.met / self.requests if self.requests else 0.0

    @property
    def surely(self) -> float:
        """The lower end of its interval."""
        return RequestCounts(within=self.met, outside=self.requests - self.met).interval()[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The outcome of a round. `target` is what to ask for from now on; where nothing changes, what is asked for."""

    proposal: Proposal
    target: Layout
    reason: str
    """One CamelCase word, of `REASONS`."""
    message: str
    """The same for people, with the figures that decided, or why nothing changes."""
    chosen: int | None = None
    """Index of the candidate that was found right; `target` may be held back from it."""
    rehearsals: tuple[Rehearsal, ...] = ()
    predicted_attainment: float | None = None
    """By rehearsal; None where the equilibrium decided."""
    memory: Memory = field(default_factory=Memory)

    @property
    def changes(self) -> bool:
        """Whether another layout is asked for."""
        return self.target != self.proposal.inputs.wanted


REASONS = {
    "ScaledUp": "more instances are asked for",
    "ScaledDown": "fewer instances are asked for",
    "RolesFlipped": "instances of a flexible pool change their role",
    "Rebalanced": "one pool grows while another one shrinks",
    "Steady": "what is asked for is right",
    "Stabilising": "another layout is right, and a window, a missed objective or a clamp holds it back",
    "ChangeUnderWay": "another layout is right, and the last change is not done",
    "BudgetReached": "more would be needed than clamps and budget allow; the most balanced layout within them is kept",
    "ScaledToZero": "no request has come for long, and both stages have no instance until one does",
    "Woken": "a request came while both stages had no instance",
    "NoTraffic": "no request arrived in the windows",
    "NoLengths": "requests arrived, but none told its lengths",
    "SpeedUnknown": "a pool's engines declare no speed, and too little has been learned of it",
    "NoObjective": "no threshold is set",
    "NoPools": "there is no pool for a stage",
    "ClampsContradict": "no layout satisfies all clamps",
    "BudgetTooSmall": "the least that the pools must have exceeds the GPU budget",
    "ObjectiveOutOfReach": "not even an idle instance meets the objective with this traffic",
}
"""Every reason, and when it is given."""


class Scaling(Protocol):
    """Decides how many instances each pool has, and what flexible ones do."""

    type: ClassVar[str]

    @property
    def rehearses(self) -> bool:
        """Whether the candidates of a proposal are worth trying."""
        ...

    def propose(self, inputs: Inputs) -> Proposal:
        """What may be right now. Pure."""
        ...

    def decide(self, proposal: Proposal, rehearsals: Sequence[Rehearsal] = ()) -> Decision:
        """What to ask for. Pure."""
        ...
