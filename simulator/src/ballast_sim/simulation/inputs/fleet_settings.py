"""What surrounds the engines of a simulated fleet: gateways, scrapes, failures, how KV travels, what is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias, get_args

from ballast_sim.engine.batching import PROFILES_OWN, LocalBatching
from ballast_sim.engine.scheduling import VLLM_OWN, Scheduling
from ballast_sim.naming import known_names
from ballast_sim.physics import PHYSICS, Physics, VllmPhysics
from ballast_sim.settings import SettingError
from ballast_sim.simulation.inputs.failures import Failure
from ballast_sim.simulation.inputs.length_hints import NO_HINTS, LengthHints

KvTransfer: TypeAlias = Literal["whole", "chunked"]
KV_TRANSFERS: tuple[KvTransfer, ...] = get_args(KvTransfer)
CutTokens: TypeAlias = Literal["streams", "at-cut"]
CUT_TOKENS: tuple[CutTokens, ...] = get_args(CutTokens)
ENGINE_POLICIES = ("fcfs", "priority")
SHORTEST_SCRAPE_INTERVAL_S = 1e-3
MOST_GATEWAYS = 1000


class CopyBy(StrEnum):
    """How the target gets the KV."""

    PULL = "pull"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationSettings:
    """How requests migrate."""

    copy: CopyBy = CopyBy.PULL
    admit_limit_s: float = 2.0
    """Seconds that the target may take to admit the warm leg, and later the request; then the migration is given up."""

    def __post_init__(self) -> None:
        """Raises ValueError naming the setting that cannot work."""
        if not 0 < self.admit_limit_s < float("inf"):
            raise SettingError("admit_limit_s", f"must be above 0, not {self.admit_limit_s!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """What surrounds the engines."""

    scrape_interval_s: float = 0.2
    scrape_delay_s: float = 0.005
    """Age of an observation when the Director gets it."""
    scrape_loss_ratio: float = 0.0
    """Share of the scrapes (of one endpoint by one gateway) that never arrive; these do not count as failed."""
    scrape_timeout_s: float = 1.0
    """Seconds after which a scrape without an answer counts as failed; until then the endpoint is not scraped again."""
    failures_until_lost: int = 5
    """Failed scrapes in a row after which a gateway sends an endpoint nothing, until one succeeds."""
    gateways: int = 1
    """Replicas of the gateway; each request comes to one of them at random."""
    known_limits: bool = True
    """Whether requests carry max_tokens (equal to their output, as with forced lengths in benchmarks)."""
    max_tokens: int | None = None
    """The max_tokens of every request where `known_limits` is off (never below its output); None: see the next."""
    recorded_limits: bool = True
    """Whether requests carry the max_tokens that a trace has of them, where neither of the two above gives one."""
    seed: int = 0
    """Of losses, and of which gateway gets a request."""
    physics: str = "vllm"
    """How engines work: a name in `ballast_sim.physics.PHYSICS`."""
    engine_policy: Literal["fcfs", "priority"] = "fcfs"
    """vLLM's --scheduling-policy; with `priority` engines follow the priorities that a queue order sets."""
    failures: tuple[Failure, ...] = ()
    """What befalls endpoints."""
    length_hints: LengthHints = NO_HINTS
    """The predictor of output lengths; its errors follow `seed`."""
    cut_tokens: CutTokens = "streams"
    """When the client gets the tokens of a decode that ends at a planned cut: as they come (`streams`: a small
    connector plug-in that publishes the KV handle out of band), or all at the cut (`at-cut`: stock vLLM gives a
    handle in non-streaming answers only)."""
    kv_transfer: KvTransfer = "whole"
    """Whether KV moves once its source is done, or chunk by chunk while that still computes (Libra section 4.3)."""
    kv_chunk_tokens: int = 256
    """Tokens of one such chunk."""
    migration: MigrationSettings = field(default_factory=MigrationSettings)
    """How running requests migrate, where a policy orders it."""
    local_batching: LocalBatching = PROFILES_OWN
    """How many prompt tokens engines let into a step."""
    engine_scheduler: Scheduling = VLLM_OWN
    """How engines order their requests."""

    def __post_init__(self) -> None:
        """Raises ValueError naming the setting that cannot work."""
        if not SHORTEST_SCRAPE_INTERVAL_S <= self.scrape_interval_s < float("inf"):
            raise SettingError(
                "scrape_interval_s", f"must be {SHORTEST_SCRAPE_INTERVAL_S:g} s or more, not {self.scrape_interval_s!r}"
            )
        if not 0 <= self.scrape_delay_s < float("inf"):
            raise SettingError("scrape_delay_s", f"must be 0 or more, not {self.scrape_delay_s!r}")
        if not 0 <= self.scrape_loss_ratio <= 1:
            raise SettingError("scrape_loss_ratio", f"must lie in 0..1, not {self.scrape_loss_ratio!r}")
        if self.physics not in PHYSICS:
            raise SettingError("physics", f"unknown physics {self.physics!r}; {known_names(self.physics, PHYSICS)}")
        for name, default in (("local_batching", PROFILES_OWN), ("engine_policy", "fcfs")):
            value = getattr(self, name)
            if self.physics != "vllm" and value != default:
                raise SettingError(name, f"{value} is for engines with a scheduler, not for physics {self.physics}")
        for name, choices in (
            ("engine_policy", ENGINE_POLICIES),
            ("cut_tokens", CUT_TOKENS),
            ("kv_transfer", KV_TRANSFERS),
        ):
            if getattr(self, name) not in choices:
                raise SettingError(name, f"must be {' or '.join(choices)}, not {getattr(self, name)!r}")
        self._check_engines()
        if not 0 < self.scrape_timeout_s < float("inf"):
            raise SettingError("scrape_timeout_s", f"must be above 0, not {self.scrape_timeout_s!r}")
        for name in ("kv_chunk_tokens", "failures_until_lost", "gateways", "max_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(name, f"must be 1 or more, not {value!r}")
        if self.gateways > MOST_GATEWAYS:
            raise SettingError("gateways", f"must be {MOST_GATEWAYS:,} or fewer, not {self.gateways!r}")

    def _check_engines(self) -> None:
        if self.physics != "vllm" and not self.engine_scheduler.is_plain:
            raise SettingError(
                "engine_scheduler",
                f"{self.engine_scheduler.name} is for engines with a scheduler, not for physics "
                f"{self.physics}; leave one of the two out",
            )
        if self.local_batching != PROFILES_OWN and not self.engine_scheduler.is_plain:
            raise SettingError(
                "engine_scheduler",
                f"{self.engine_scheduler.name} and local_batching both decide what a step holds; give one of them",
            )
        if self.engine_policy != "fcfs" and self.engine_scheduler.order is not None:
            raise SettingError(
                "engine_scheduler",
                f"{self.engine_scheduler.name} replaces engine_policy {self.engine_policy}; give one of them",
            )
        if self.engine_scheduler.needs_lengths and not self.length_hints.known:
            raise SettingError(
                "engine_scheduler",
                f"{self.engine_scheduler.name} goes by predicted output lengths; "
                "give them with lengths, such as oracle or noisy:60%",
            )

    @property
    def engines(self) -> Physics:
        """What makes the engines."""
        plain = self.engine_policy == "fcfs" and self.engine_scheduler.is_plain
        if self.local_batching == PROFILES_OWN and plain:
            return PHYSICS[self.physics]
        return VllmPhysics(self.local_batching, self.engine_policy, self.engine_scheduler)
