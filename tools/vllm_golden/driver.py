"""One run: vLLM's engine core between a script of requests and the virtual executor.

The loop is that of v1/engine/core.py (run_busy_loop): take in what has come, step. Where vLLM would sleep a
millisecond because a step did nothing while transfers are open, the clock goes to the next thing that happens: an
engine that looks all the time.
"""

import json
import math
import random
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vllm import SamplingParams
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core import EngineCore

from vllm_golden.cases import Ask, Case
from vllm_golden.clock import Clock
from vllm_golden.executor import STOP, Run, VirtualExecutor
from vllm_golden.transfers import PEER, News, TimedNixlConnector, TransferWorker, use_clock

VOCABULARY = 30_000
FIRST_WORD = 100  # below lie the tokens that the "model" says
STOP_MARGIN_TOKENS = 50  # max_tokens beyond the stop token
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": VOCABULARY + FIRST_WORD,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
EMPTY_STEPS_BEFORE_JUMP = 4  # after so many nothing can be left in the batch queue


@dataclass(slots=True)
class Life:
    """What became of a request."""

    ask: Ask
    output_tokens: int
    times_s: list[float] = field(default_factory=list)
    cached: int | None = None
    preempted: int = 0
    finished_s: float | None = None
    reason: str | None = None
    hand_off: dict[str, Any] | None = None


@dataclass(slots=True)
class Recording:
    """A whole run."""

    case: Case
    config: Any
    kv_blocks: int
    lives: list[Life]
    run: Run
    end_s: float


def _draw(seed: str, tokens: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(FIRST_WORD, VOCABULARY) for _ in range(tokens)]


def _prompt(number: int, ask: Ask) -> list[int]:
    """Token ids: equal hash ids are equal blocks, what lies beyond is the request's own."""
    tokens: list[int] = []
    for hash_id in ask.hash_ids or ():
        tokens += _draw(f"block {hash_id}", ask.hash_block or 0)
    return (tokens + _draw(f"own {number}", max(0, ask.input_tokens - len(tokens))))[: ask.input_tokens]


def _engine(case: Case, folder: str) -> tuple[EngineCore, Any]:
    Path(folder, "config.json").write_text(json.dumps(MODEL))
    transfer = None
    if case.kv_role:
        transfer = KVTransferConfig(
            kv_connector=TimedNixlConnector.__name__,
            kv_connector_module_path=TimedNixlConnector.__module__,
            kv_role=case.kv_role,  # type: ignore[arg-type]
            engine_id="golden",
            kv_connector_extra_config={"kv_lease_duration": case.lease_s},
        )
    arguments = EngineArgs(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        dtype="bfloat16",
        seed=1,
        max_model_len=case.max_model_len,
        max_num_batched_tokens=case.max_num_batched_tokens,
        max_num_seqs=case.max_num_seqs,
        block_size=case.profile.block_size,
        num_gpu_blocks_override=case.kv_blocks,
        enable_prefix_caching=case.prefix_caching,
        async_scheduling=case.async_scheduling,
        scheduling_policy=case.policy,  # type: ignore[arg-type]
        distributed_executor_backend=VirtualExecutor,
        kv_transfer_config=transfer,
    )
    config = arguments.create_engine_config()
    config.scheduler_config.async_scheduling = case.async_scheduling  # the CPU platform turns it off; GPUs have it on
    return EngineCore(config, VirtualExecutor, log_stats=True), config


class _Driver:
    """Feeds the engine core and takes its outputs."""

    def __init__(self, case: Case, core: EngineCore, run: Run) -> None:
        self.case, self.core, self.run = case, core, run
        self.lives: list[Life] = []
        asks = list(enumerate(case.asks()))
        self._arrivals = asks[::-1]
        aborts = [(ask.abort_s, number) for number, ask in asks if ask.abort_s is not None]
        self._aborts = sorted(aborts, reverse=True)
        self._announced = len(self._aborts)  # aborts that the busy engine has not seen yet
        run.on_wait = self._announce_aborts

    def play(self) -> None:
        """Until all is over, leases included."""
        scheduler, clock, empty = self.core.scheduler, self.run.clock, 0
        while True:
            self._take_in()
            if not (scheduler.has_requests() or self.core.batch_queue):
                next_s = min(self._next_inputs_s(), default=math.inf)
                if next_s == math.inf:
                    return
                clock.wait_until(next_s)
                continue
            outputs, executed = self.core.step_fn()
            self.core.post_step(executed)
            for batch in (outputs or {}).values():
                for output in batch.outputs:
                    self._note(output)
            empty = 0 if executed or clock.busy_until_s > clock.now_s else empty + 1
            if empty >= EMPTY_STEPS_BEFORE_JUMP:
                clock.wait_until(min([*self._next_inputs_s(), *self.run.worker.next_event_s()]))
                empty = 0

    def _next_inputs_s(self) -> Iterator[float]:
        if self._arrivals:
            yield self._arrivals[-1][1].arrival_s
        if self._aborts:
            yield self._aborts[-1][0]

    def _take_in(self) -> None:
        """The input queue, in order of time; of two at the same time the arrival is first."""
        now_s = self.run.clock.now_s
        while True:
            arrival_s = self._arrivals[-1][1].arrival_s if self._arrivals else math.inf
            abort_s = self._aborts[-1][0] if self._aborts else math.inf
            if min(arrival_s, abort_s) > now_s:
                return
            if arrival_s <= abort_s:
                self._add(*self._arrivals.pop())
            else:
                self.core.abort_requests([str(self._aborts.pop()[1])])

    def _announce_aborts(self) -> None:
        """Aborts overtake: what came during a step is seen before the step's output (core.aborts_queue)."""
        for abort_s, number in reversed(self._aborts[: self._announced]):
            if abort_s > self.run.clock.now_s:
                break
            self.core.aborts_queue.put_nowait([str(number)])

    def _add(self, number: int, ask: Ask) -> None:
        case, request_id = self.case, str(number)
        output_tokens = min(ask.output_tokens, case.max_model_len - ask.input_tokens)
        room = case.max_model_len - ask.input_tokens
        most = min(output_tokens + STOP_MARGIN_TOKENS, room) if case.early_stop else output_tokens
        params: dict[str, Any] = {}
        if ask.hold:
            params["do_remote_decode"] = True
        if ask.pull:
            params |= {**PEER, "do_remote_prefill": True, "remote_request_id": request_id}
        sampling = SamplingParams(
            max_tokens=most,
            stop_token_ids=[STOP] if case.early_stop else None,
            ignore_eos=True,
            temperature=0.0,
            detokenize=False,
            extra_args={"kv_transfer_params": params} if params else None,
        )
        request, wave = self.core.preprocess_add_request(
            EngineCoreRequest(
                request_id=request_id,
                prompt_token_ids=_prompt(number, ask),
                mm_features=None,
                sampling_params=sampling,
                pooling_params=None,
                arrival_time=ask.arrival_s,
                lora_request=None,
                cache_salt=None,
                data_parallel_rank=None,
                priority=ask.priority,
            )
        )
        if case.early_stop:
            self.run.stops_at[request_id] = output_tokens
        self.run.live[request_id] = request
        self.lives.append(Life(ask, output_tokens))
        self.core.add_request(request, wave)

    def _note(self, output: Any) -> None:
        request_id, now_s = output.request_id, self.run.clock.now_s
        life = self.lives[int(request_id)]
        life.times_s += [now_s] * len(output.new_token_ids)
        if life.cached is None and output.prefill_stats is not None:
            life.cached = output.prefill_stats.num_cached_tokens
        if output.finish_reason is not None:
            life.finished_s, life.reason = now_s, str(output.finish_reason)
            life.hand_off = output.kv_transfer_params
            if life.hand_off:
                self._script_the_pull(request_id, life.ask)

    def _script_the_pull(self, request_id: str, ask: Ask) -> None:
        """What the other engine will say, now that it has the handle."""
        now_s, worker = self.run.clock.now_s, self.run.worker
        pulled_after_s = math.inf if ask.pulled_after_s is None else ask.pulled_after_s
        for after_s in ask.heartbeats_after_s:
            if after_s < pulled_after_s:
                worker.tell(News(now_s + after_s, request_id, pulled=False))
        if ask.pulled_after_s is not None:
            worker.tell(News(now_s + ask.pulled_after_s, request_id, pulled=True))


def record(case: Case) -> Recording:
    """Run one case."""
    clock, profile = Clock(), case.profile
    use_clock(clock)
    bytes_per_s = case.link_gbps * 1e9 / 8
    worker = TransferWorker(clock, profile.link_setup_s, profile.kv_bytes_per_token / bytes_per_s, case.lease_s)
    run = Run(clock, profile, worker, consumes_kv=case.kv_role in ("kv_consumer", "kv_both"))
    VirtualExecutor.run = run
    with tempfile.TemporaryDirectory() as folder:
        core, config = _engine(case, folder)
        worker.connector = core.scheduler.get_kv_connector()
        driver = _Driver(case, core, run)
        driver.play()
    for request_id, request in run.live.items():
        driver.lives[int(request_id)].preempted = request.num_preemptions
    blocks = core.scheduler.kv_cache_manager.block_pool
    if blocks.get_num_free_blocks() != blocks.num_gpu_blocks - 1:
        raise AssertionError(f"{case.name}: blocks are still held at the end")
    core.shutdown()
    return Recording(case, config, blocks.num_gpu_blocks, driver.lives, run, clock.now_s)
