"""The engine model: what one vLLM engine decides and how long its steps take.

A pure state machine on a clock that is passed in: no I/O, no randomness, no time of its own. The simulator drives it
from a heap and `engine-sim` from a wall clock; both see the same steps. It knows no gateways, policies or HTTP.

`vllm` has vLLM 0.32's scheduling rules, `papers` what papers replace in them; `assembly` makes a scheduler from an
`EngineConfig`. `loop` runs it step by step, `coarse` from change to change. `ballast_sim.validation` replays
recorded runs of vLLM's own scheduler and compares step by step.
"""

from ballast_sim.engine.coarse.engine import CoarseEngine
from ballast_sim.engine.config import EngineConfig, StepTimer
from ballast_sim.engine.content import BlockHashes, TokenContent, TraceContent, UniqueContent
from ballast_sim.engine.engine import Engine
from ballast_sim.engine.events import (
    EngineEvent,
    Finished,
    FinishReason,
    HandOff,
    PullStarted,
    RequestStats,
    StepEnded,
    TokensAdvanced,
)
from ballast_sim.engine.gauges import EngineLoad
from ballast_sim.engine.requests import EngineRequest
from ballast_sim.engine.vllm.batch import Batch

__all__ = [
    "Batch",
    "BlockHashes",
    "CoarseEngine",
    "Engine",
    "EngineConfig",
    "EngineEvent",
    "EngineLoad",
    "EngineRequest",
    "FinishReason",
    "Finished",
    "HandOff",
    "PullStarted",
    "RequestStats",
    "StepEnded",
    "StepTimer",
    "TokenContent",
    "TokensAdvanced",
    "TraceContent",
    "UniqueContent",
]
