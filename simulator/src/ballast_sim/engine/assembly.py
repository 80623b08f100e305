"""Puts an engine's scheduler together from its settings: vLLM's rules, with what a paper replaces."""

from ballast_core.profiles import HardwareProfile
from ballast_sim.engine.config import EngineConfig
from ballast_sim.engine.papers.libra import PullsFirst, SloPromptBudget
from ballast_sim.engine.papers.progress import Progress, RequestProgress
from ballast_sim.engine.papers.ranked import RankedPolicy
from ballast_sim.engine.vllm.policy import Fcfs, Priority, SchedulingPolicy
from ballast_sim.engine.vllm.prompt_budget import PromptBudget
from ballast_sim.engine.vllm.queues import FcfsQueue, PriorityQueue
from ballast_sim.engine.vllm.scheduler import Scheduler
from ballast_sim.engine.vllm.state import SchedulerState


def new_state(config: EngineConfig) -> SchedulerState:
    """An idle scheduler's state, with the queues that the settings ask for."""
    queue = PriorityQueue if config.by_key else FcfsQueue
    waiting = queue() if config.tbt_slo_s is None else PullsFirst(queue(), queue())
    return SchedulerState(config, waiting, queue())


def new_scheduler(state: SchedulerState, progress: Progress | None = None) -> Scheduler:
    """The scheduler of this state. `progress`: the cohort that decodes are booked in, None where there is none."""
    progress = progress or RequestProgress()
    return Scheduler(state, _policy(state, progress), _prompt_budget(state, progress))


def _policy(state: SchedulerState, progress: Progress) -> SchedulingPolicy:
    config = state.config
    if config.ordering is not None:
        return RankedPolicy(config.ordering, state, progress)
    return Priority(state) if config.policy == "priority" else Fcfs(state)


def _prompt_budget(state: SchedulerState, progress: Progress) -> PromptBudget | None:
    slo_s, profile = state.config.tbt_slo_s, state.config.timer
    if slo_s is None or not isinstance(profile, HardwareProfile):
        return None
    return SloPromptBudget(slo_s, profile, state, progress)
