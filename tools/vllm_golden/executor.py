"""In place of the accelerator: one token for every sampled position, after the time that the law says."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.worker_base import CompilationTimes

from ballast_core.profiles import HardwareProfile
from vllm_golden.clock import Clock
from vllm_golden.transfers import TransferWorker

WORD, STOP = 7, 8  # the tokens that the "model" says


@dataclass(slots=True)
class Run:
    """What executor and driver share; vLLM creates the executor itself, so it finds it in `VirtualExecutor.run`."""

    clock: Clock
    profile: HardwareProfile
    worker: TransferWorker
    consumes_kv: bool
    steps: list[list[Any]] = field(default_factory=list)
    live: dict[str, Any] = field(default_factory=dict)
    stops_at: dict[str, int] = field(default_factory=dict)
    on_wait: Any = None


class _Result(Future[Any]):
    """A step's output: whoever asks for it waits, on the run's clock, until the step has ended."""

    def __init__(self, run: Run, output: Any, ends_s: float) -> None:
        super().__init__()
        self._run, self._output, self._ends_s = run, output, ends_s

    def done(self) -> bool:
        """Whether the step has ended by now."""
        return self._run.clock.now_s >= self._ends_s

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the step's end."""
        self._run.clock.wait_until(self._ends_s)
        self._run.on_wait()
        return self._output


class VirtualExecutor(Executor):
    """One worker that computes nothing."""

    run: Run

    def _init_executor(self) -> None:
        self._scheduled: Any = None
        self._transfers: Any = None

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        """As the GPU executors do."""
        return True

    def collective_rpc(
        self, method: Any, timeout: float | None = None, args: Any = (), kwargs: Any = None, non_block: bool = False
    ) -> Any:
        """What vLLM asks of its workers while it starts."""
        answers: dict[Any, Any] = {
            "get_supported_tasks": ("generate",),
            "compile_or_warm_up_model": CompilationTimes(language_model=0.0, encoder=0.0),
        }
        return [answers.get(method)]

    def determine_available_memory(self) -> list[int]:
        """Plenty; the number of blocks is set by option."""
        return [1 << 40]

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        """The one that NIXL wants."""
        return [["LBNHC"]]

    def set_kv_cache_layout(self, layout_name: str) -> None:
        """There is no cache to lay out."""

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        """One layer of full attention."""
        block_size = self.cache_config.block_size
        return [
            {"attention": FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=64, dtype=torch.bfloat16)}
        ]

    def initialize_from_config(self, kv_cache_configs: Any) -> None:
        """There is no cache to allocate."""

    def check_health(self) -> None:
        """Always well."""

    def shutdown(self) -> None:
        """Nothing to stop."""

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Take a composed step. An empty one is over at once."""
        transfers = self.run.worker.dispatched(scheduler_output.kv_connector_metadata)
        done: Future[Any] = Future()
        if not scheduler_output.total_num_scheduled_tokens:
            done.set_result(ModelRunnerOutput(req_ids=[], req_id_to_index={}, kv_connector_output=transfers))
            return done if non_block else done.result()
        self._scheduled, self._transfers = scheduler_output, transfers
        done.set_result(None)
        return done if non_block else None

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """Time the step, note it, and give its tokens."""
        run, scheduled = self.run, self._scheduled
        before = {new.req_id: new.num_computed_tokens for new in scheduled.scheduled_new_reqs}
        cached = scheduled.scheduled_cached_reqs
        before.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        tokens = decodes = context = 0
        pairs, prefills, sampled = 0.0, [], []
        for request_id, chunk in scheduled.num_scheduled_tokens.items():
            request, computed = run.live[request_id], before[request_id]
            reach = computed + chunk
            samples = reach >= request.num_tokens
            tokens += chunk
            if samples and chunk == 1 and (run.consumes_kv or reach > request.num_prompt_tokens):
                decodes += 1
                context += computed
            else:
                pairs += chunk * (computed + chunk / 2)
                prefills.append([chunk, computed, int(request_id)])
            said = STOP if reach - request.num_prompt_tokens + 1 == run.stops_at.get(request_id) else WORD
            sampled.append([said] if samples else [])
        starts_s = max(run.clock.now_s, run.clock.busy_until_s)
        lasts_s = run.profile.step_s(tokens, context, pairs, decodes)
        run.clock.busy_until_s = starts_s + lasts_s
        resumed, preempted = len(cached.resumed_req_ids), len(scheduled.preempted_req_ids or ())
        times = [round(run.clock.now_s, 6), round(starts_s, 6), round(lasts_s * 1e3, 4)]
        run.steps.append([*times, decodes, context, prefills, resumed, preempted])
        ids = list(scheduled.num_scheduled_tokens)
        output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(ids)},
            sampled_token_ids=sampled,
            kv_connector_output=self._transfers,
        )
        result = _Result(run, output, run.clock.busy_until_s)
        return result if non_block else result.result()
