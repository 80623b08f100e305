"""Settings of one engine, named as vLLM names them."""

from dataclasses import dataclass, replace
from typing import Literal, Protocol

from ballast_core.profiles import HardwareProfile
from ballast_sim.engine.ordering import Ordering

DEFAULT_MAX_MODEL_LEN = 131_072


class StepTimer(Protocol):
    """How long one step lasts; `HardwareProfile` is one."""

    def step_s(self, tokens: int, decode_context_tokens: float, prefill_pairs: float, decodes: int) -> float:
        """Seconds of a step: see `HardwareProfile.step_s`."""
        ...


@dataclass(frozen=True, slots=True)
class _SlowedTimer:
    timer: StepTimer
    factor: float

    def step_s(self, tokens: int, decode_context_tokens: float, prefill_pairs: float, decodes: int) -> float:
        return self.factor * self.timer.step_s(tokens, decode_context_tokens, prefill_pairs, decodes)


def slowed(timer: StepTimer, factor: float) -> StepTimer:
    """The same engine, each step `factor` times as long."""
    if factor == 1:
        return timer
    if not isinstance(timer, HardwareProfile):
        return _SlowedTimer(timer, factor)
    return replace(
        timer,
        overhead_ms=timer.overhead_ms * factor,
        a_ms=timer.a_ms * factor,
        d_ms_per_token=timer.d_ms_per_token * factor,
        k_ms_per_kv_token=timer.k_ms_per_kv_token * factor,
        s_ms_per_pair=timer.s_ms_per_pair * factor,
        b_ms_per_seq=timer.b_ms_per_seq * factor,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of the scheduler and the KV cache manager.

    `kv_blocks` counts as vLLM does, the null block included: one less can be used. `pulls_kv` is a configured pull
    connector on the consuming side (kv_role kv_consumer or kv_both): blocks are freed only after the steps in flight,
    and the one token that a finished pull leaves to compute counts as a decode in the step-time law. `hands_over_kv` is
    the producing side (kv_producer or kv_both): output in flight of a preempted request is dropped and computed again,
    because its hand-over must not end with blocks that are gone. A pull lasts `pull_setup_s` + tokens *
    `pull_s_per_token`; with `pull_setup_s` None the driver reports its end (`Engine.pull_ended`). `jump_idle_steps`
    repeats an artefact of some recorded runs: their clock jumps in a step that schedules nothing, also while the report
    of an ended pull waits in the batch queue (real vLLM sleeps 1 ms there). With `tbt_slo_s` a step has no more prompt
    tokens than this time between tokens leaves room for (see `papers.libra`); the timer must be a profile then. An
    `ordering` replaces `policy`: the scheduler follows a queue order, which vLLM itself cannot.
    """

    timer: StepTimer
    kv_blocks: int
    block_size: int = 16
    max_model_len: int = DEFAULT_MAX_MODEL_LEN
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256
    prefix_caching: bool = True
    async_scheduling: bool = True
    policy: Literal["fcfs", "priority"] = "fcfs"
    ordering: Ordering | None = None
    watermark_blocks: int = 0
    long_prefill_token_threshold: int = 0
    long_prefill_token_threshold_adaptive: bool = False
    pulls_kv: bool = False
    pull_setup_s: float | None = None
    pull_s_per_token: float = 0.0
    recompute_failed_pulls: bool = False
    hands_over_kv: bool = False
    lease_s: float = 30.0
    jump_idle_steps: bool = False
    tbt_slo_s: float | None = None
    max_loras: int = 0
    """LoRA adapters in a step; 0 for an engine without LoRA."""
    lora_load_s: float = 0.0
    """Seconds to load an adapter that is not on the accelerator."""

    def __post_init__(self) -> None:
        """Raises ValueError naming the setting that cannot work."""
        for name in ("block_size", "max_model_len", "max_num_batched_tokens", "max_num_seqs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be 1 or more, not {getattr(self, name)!r}")
        if self.max_model_len > self.usable_tokens:
            raise ValueError(
                f"max_model_len: {self.max_model_len} tokens do not fit the KV cache of {self.usable_tokens} tokens; "
                "lower max_model_len or give the engine more KV blocks"
            )
        if self.tbt_slo_s is not None and not (self.tbt_slo_s > 0 and isinstance(self.timer, HardwareProfile)):
            raise ValueError(f"tbt_slo_s: must be above 0, with a profile as timer, not {self.tbt_slo_s!r}")
        if self.ordering is not None and self.tbt_slo_s is not None:
            raise ValueError("ordering: cannot be had with tbt_slo_s; both decide what a step holds")
        if self.lease_s <= 0:
            raise ValueError(f"lease_s: must be above 0, not {self.lease_s!r}")

    @property
    def by_key(self) -> bool:
        """Whether requests are served by `RequestState.key` instead of by arrival."""
        return self.ordering is not None or self.policy == "priority"

    @property
    def usable_tokens(self) -> int:
        """KV tokens that one request could hold at most."""
        return (self.kv_blocks - 1) * self.block_size

    @classmethod
    def from_profile(
        cls,
        profile: HardwareProfile,
        *,
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
        block_size: int | None = None,
        policy: Literal["fcfs", "priority"] = "fcfs",
        ordering: Ordering | None = None,
        prefix_caching: bool = True,
        async_scheduling: bool = True,
        pulls_kv: bool = False,
        recompute_failed_pulls: bool = False,
        hands_over_kv: bool = False,
        lease_s: float = 30.0,
        external_pulls: bool = False,
        tbt_slo_s: float | None = None,
        max_loras: int = 0,
        lora_load_s: float = 0.0,
    ) -> "EngineConfig":
        """The engine that a hardware profile describes; None takes the profile's own value.

        Without `max_model_len` it is 131,072 tokens or what the KV cache holds, whichever is less.
        `external_pulls` leaves the end of a pull to the driver.
        """
        size = block_size or profile.block_size
        blocks = profile.kv_tokens // size
        return cls(
            timer=profile,
            kv_blocks=blocks,
            block_size=size,
            max_model_len=max_model_len or max(1, min(DEFAULT_MAX_MODEL_LEN, (blocks - 1) * size)),
            max_num_batched_tokens=max_num_batched_tokens or profile.max_num_batched_tokens,
            max_num_seqs=max_num_seqs or profile.max_num_seqs,
            prefix_caching=prefix_caching,
            async_scheduling=async_scheduling,
            policy=policy,
            ordering=ordering,
            pulls_kv=pulls_kv,
            pull_setup_s=None if external_pulls else profile.link_setup_s,
            pull_s_per_token=profile.kv_bytes_per_token / (profile.link_gbps * 1e9 / 8),
            recompute_failed_pulls=recompute_failed_pulls,
            hands_over_kv=hands_over_kv,
            lease_s=lease_s,
            tbt_slo_s=tbt_slo_s,
            max_loras=max_loras,
            lora_load_s=lora_load_s,
        )
