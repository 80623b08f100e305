"""Gateways of a simulated fleet: each a Director of its own, with its own stale view of the endpoints.

Nothing but scrapes tells a gateway what the others do. A scrape takes `scrape_delay_s` to arrive and is lost with
`scrape_loss_ratio`; the gateways scrape in turn, evenly spread over the interval. An endpoint that is down refuses a
scrape, one whose scrapes get lost lets it run into its timeout: so gateways notice failures (`watch`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias, get_args

from ballast_core.directing.director import Director
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Endpoint, EndpointId, Observation, RequestId
from ballast_core.model.effects import Effect
from ballast_core.model.events import EndpointObserved, EndpointsScraped, Event, ProgressBatch
from ballast_sim.engine.batching import PROFILES_OWN, LocalBatching
from ballast_sim.engine.scheduling import VLLM_OWN, Scheduling
from ballast_sim.physics import PHYSICS, Physics, VllmPhysics
from ballast_sim.simulation.failures import Failure
from ballast_sim.simulation.kernel import Kernel
from ballast_sim.simulation.length_hints import NO_HINTS, LengthHints
from ballast_sim.simulation.links import KV_TRANSFERS, KvTransfer
from ballast_sim.simulation.migrations import MigrationSettings
from ballast_sim.simulation.naming import known_names
from ballast_sim.simulation.watch import Watch
from ballast_sim.simulation.world import World

CutTokens: TypeAlias = Literal["streams", "at-cut"]
CUT_TOKENS: tuple[CutTokens, ...] = get_args(CutTokens)
ENGINE_POLICIES = ("fcfs", "priority")
SHORTEST_SCRAPE_INTERVAL_S = 1e-3
OBSERVE = 0  # order at one time: what is known first, then what runs, then what is new


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """What surrounds the engines."""

    scrape_interval_s: float = 0.2
    scrape_delay_s: float = 0.005
    """Age of an observation when the Director gets it."""
    scrape_loss_ratio: float = 0.0
    """Share of the scrapes (of one endpoint by one gateway) that never arrive; these do not count as failed."""
    scrape_timeout_s: float = 1.0
    """After how long a scrape without an answer counts as failed; until then the endpoint is not scraped again."""
    failures_until_lost: int = 5
    """Failed scrapes in a row after which a gateway sends an endpoint nothing, until one succeeds."""
    gateways: int = 1
    """Replicas of the gateway; each request comes to one of them at random."""
    known_limits: bool = True
    """Whether requests carry max_tokens (equal to their output, as with forced lengths in benchmarks)."""
    max_tokens: int | None = None
    """The max_tokens of every request where `known_limits` is off (never below its output); None: they carry none."""
    seed: int = 0
    """Of losses, and of which gateway gets a request."""
    physics: str = "vllm"
    """How engines work: a name in `ballast_sim.physics.PHYSICS`."""
    engine_policy: Literal["fcfs", "priority"] = "fcfs"
    """vLLM's --scheduling-policy; with `priority` engines follow what a queue order tells them."""
    failures: tuple[Failure, ...] = ()
    """What befalls endpoints."""
    length_hints: LengthHints = NO_HINTS
    """What a predictor tells of output lengths; its errors follow `seed`."""
    cut_tokens: CutTokens = "streams"
    """When the client gets the tokens of a decode that ends at a planned cut: as they come (`streams`: a small
    connector plug-in that publishes the KV handle out of band), or all at the cut (`at-cut`: stock vLLM gives a
    handle in non-streaming answers only)."""
    kv_transfer: KvTransfer = "whole"
    """Whether KV moves once its source is done, or chunk by chunk while that still computes (Libra section 4.3)."""
    kv_chunk_tokens: int = 256
    """Tokens of one such chunk."""
    migration: MigrationSettings = field(default_factory=MigrationSettings)
    """How running requests are moved, where a policy asks for it."""
    local_batching: LocalBatching = PROFILES_OWN
    """How many prompt tokens engines let into a step."""
    engine_scheduler: Scheduling = VLLM_OWN
    """How engines order their requests."""

    def __post_init__(self) -> None:
        """Raises ValueError naming the setting that cannot work."""
        if not SHORTEST_SCRAPE_INTERVAL_S <= self.scrape_interval_s < float("inf"):
            raise ValueError(
                f"scrape_interval_s: must be {SHORTEST_SCRAPE_INTERVAL_S:g} s or more, not {self.scrape_interval_s!r}"
            )
        if not 0 <= self.scrape_delay_s < float("inf"):
            raise ValueError(f"scrape_delay_s: must be 0 or more, not {self.scrape_delay_s!r}")
        if not 0 <= self.scrape_loss_ratio <= 1:
            raise ValueError(f"scrape_loss_ratio: must lie in 0..1, not {self.scrape_loss_ratio!r}")
        if self.physics not in PHYSICS:
            raise ValueError(f"physics: unknown physics {self.physics!r}; {known_names(self.physics, PHYSICS)}")
        for name, default in (("local_batching", PROFILES_OWN), ("engine_policy", "fcfs")):
            value = getattr(self, name)
            if self.physics != "vllm" and value != default:
                raise ValueError(f"{name}: {value} is for engines with a scheduler, not for physics {self.physics}")
        for name, choices in (
            ("engine_policy", ENGINE_POLICIES),
            ("cut_tokens", CUT_TOKENS),
            ("kv_transfer", KV_TRANSFERS),
        ):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name}: must be {' or '.join(choices)}, not {getattr(self, name)!r}")
        self._check_engines()
        if not 0 < self.scrape_timeout_s < float("inf"):
            raise ValueError(f"scrape_timeout_s: must be above 0, not {self.scrape_timeout_s!r}")
        for name in ("kv_chunk_tokens", "failures_until_lost", "gateways"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be 1 or more, not {getattr(self, name)!r}")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ValueError(f"max_tokens: must be 1 or more, not {self.max_tokens!r}")

    def _check_engines(self) -> None:
        if self.physics != "vllm" and not self.engine_scheduler.is_plain:
            raise ValueError(
                f"engine_scheduler: {self.engine_scheduler.name} is for engines with a scheduler, not for physics "
                f"{self.physics}; leave one of the two out"
            )
        if self.local_batching != PROFILES_OWN and not self.engine_scheduler.is_plain:
            raise ValueError(
                f"engine_scheduler: {self.engine_scheduler.name} and local_batching both decide what a step holds; "
                "give one of them"
            )
        if self.engine_policy != "fcfs" and self.engine_scheduler.order is not None:
            raise ValueError(
                f"engine_scheduler: {self.engine_scheduler.name} takes the place of engine_policy "
                f"{self.engine_policy}; give one of them"
            )
        if self.engine_scheduler.needs_lengths and not self.length_hints.known:
            raise ValueError(
                f"engine_scheduler: {self.engine_scheduler.name} goes by predicted output lengths; "
                "say what they are with lengths, such as oracle or noisy:60%"
            )

    @property
    def engines(self) -> Physics:
        """What makes the engines."""
        plain = self.engine_policy == "fcfs" and self.engine_scheduler.is_plain
        if self.local_batching == PROFILES_OWN and plain:
            return PHYSICS[self.physics]
        return VllmPhysics(self.local_batching, self.engine_policy, self.engine_scheduler)


class Gateways:
    """The Directors, and who gets which request."""

    def __init__(
        self,
        settings: FleetSettings,
        director_settings: DirectorSettings,
        kernel: Kernel,
        world: World,
        *,
        carry_out: Callable[[int, Sequence[Effect]], None],
        catch_up: Callable[[], None],
    ) -> None:
        """`carry_out(gateway, effects)` does what a Director wants done.

        `catch_up()` is called before anything is fed here, to `tell` what happened before now.
        """
        self.directors = [Director(director_settings) for _ in range(settings.gateways)]
        self._settings = settings
        self._kernel = kernel
        self._world = world
        self._carry_out = carry_out
        self._catch_up = catch_up
        self._losses = random.Random(f"losses {settings.seed}")
        self._routes = random.Random(f"routes {settings.seed}")
        self._watches = [Watch(settings.failures_until_lost) for _ in self.directors]
        self._mute: set[EndpointId] = set()
        self._awaited_until_s: dict[tuple[int, EndpointId], float] = {}

    def start(self) -> None:
        """Every gateway learns of every endpoint, then begins to scrape."""
        interval_s = self._settings.scrape_interval_s
        for gateway in range(len(self.directors)):
            for machine in self._world.machines:
                self.feed(gateway, EndpointObserved(machine.endpoint))
            phase_s = interval_s * gateway / len(self.directors)
            self._kernel.at(interval_s + phase_s, lambda gateway=gateway: self._scrape(gateway), OBSERVE)  # type: ignore[misc]

    def route(self) -> int:
        """The gateway that the next request comes to."""
        return self._routes.randrange(len(self.directors)) if len(self.directors) > 1 else 0

    def feed(self, gateway: int, event: Event) -> None:
        """Tell a Director what happened, and do what it wants."""
        self._catch_up()
        self.tell(gateway, event, self._kernel.now_s)

    def progress(self, gateway: int, reports: Iterable[tuple[float, RequestId, int]]) -> None:
        """Tell a Director how far requests had come at times that may lie in the past; see `ProgressBatch`."""
        self.directors[gateway].on_event(ProgressBatch(reports), self._kernel.now_s)

    def tell(self, gateway: int, event: Event, at_s: float) -> None:
        """Tell a Director what happened at a time that may lie in the past."""
        self._carry_out(gateway, self.directors[gateway].on_event(event, at_s))

    def _scrape(self, gateway: int) -> None:
        now_s, loss = self._kernel.now_s, self._settings.scrape_loss_ratio
        answers: list[tuple[Endpoint, Observation]] = []
        for machine, observation in self._world.observe():
            if loss and self._losses.random() < loss:
                continue
            if observation is None or machine.endpoint.id in self._mute:
                self._scrape_fails(gateway, machine.endpoint.id)
            else:
                answers.append((machine.endpoint, observation))
        if answers:
            self._kernel.at(now_s + self._settings.scrape_delay_s, partial(self._answered, gateway, answers), OBSERVE)
        self._kernel.at(now_s + self._settings.scrape_interval_s, lambda: self._scrape(gateway), OBSERVE)

    def _answered(self, gateway: int, answers: Sequence[tuple[Endpoint, Observation]]) -> None:
        takes = self._watches[gateway].takes
        taken = [answer for answer in answers if takes(answer[0].id)]
        self._catch_up()
        self._carry_out(gateway, self.directors[gateway].on_event(EndpointsScraped(taken), self._kernel.now_s))

    def _scrape_fails(self, gateway: int, endpoint_id: EndpointId) -> None:
        """A refused connection is known at once, silence after the timeout."""
        now_s = self._kernel.now_s
        if now_s < self._awaited_until_s.get((gateway, endpoint_id), now_s):
            return
        known_s = now_s + self._settings.scrape_delay_s
        if endpoint_id in self._mute:
            known_s = now_s + self._settings.scrape_timeout_s
            self._awaited_until_s[gateway, endpoint_id] = known_s
        failed = self._watches[gateway].failed
        self._kernel.at(known_s, lambda: self._noticed(gateway, failed(endpoint_id)), OBSERVE)

    def _noticed(self, gateway: int, event: Event | None) -> None:
        if event is not None:
            self.feed(gateway, event)

    # --- what befalls endpoints -----------------------------------------------------------------------------------

    def mute(self, endpoint_id: EndpointId) -> None:
        """From now on no scrape of this endpoint gets an answer."""
        self._mute.add(endpoint_id)

    def unmute(self, endpoint_id: EndpointId) -> None:
        """Scrapes of this endpoint get answers again."""
        self._mute.discard(endpoint_id)

    def drain(self, endpoint_id: EndpointId) -> None:
        """Discovery tells every gateway that this endpoint is to get nothing new."""
        for gateway, watch in enumerate(self._watches):
            self._noticed(gateway, watch.drains(endpoint_id))
