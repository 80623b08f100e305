"""The cells: a workload, a fleet, a load. docs/matrix.md describes what all of them share.

Near balance means: as many prefill endpoints for the decode endpoints as `ballast_sim.capacity` says, for the mean
lengths of the workload and without cache hits, up to 24 endpoints in all. Workloads that share prefixes get fewer: most
of their prompts are cached. Long outputs leave one prefill endpoint idle most of the time whatever the shape.
Colocated fleets are eight equal endpoints that prefill and decode.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.inputs.source import WorkloadSource
from ballast_sim.simulation.runs.experiment import Setup
from bench.common.seeding import SeededTrace

TRACES = Path(__file__).parents[3] / "shared" / "traces"
PREFILL, DECODE = "a100-qwen3-32b", "h20-qwen3-32b"
COLOCATED = "colocated"
LOADS = (0.7, 0.95)
SELECTION_SEEDS = (10, 11)
"""The best baseline is chosen on these."""
COMPARISON_SEEDS = (0, 1, 2)
"""And compared on these. The first is also that of the capacity."""
SEEDS = COMPARISON_SEEDS + SELECTION_SEEDS


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests, how many of them a run takes, and their thresholds."""

    name: str
    source: str
    """A trace file, a file of lengths, or a generator."""
    limit: int
    cost_s: float
    """Processor seconds of a run with a simple placement, about: only for the first guess of how long it all takes."""
    ttft_s: float = 5.0
    tpot_s: float = 0.05

    @property
    def trace(self) -> Path | None:
        """The file, where it is one."""
        return TRACES / self.source if self.source.endswith(".gz") else None

    @property
    def available(self) -> bool:
        """Whether this machine has what it needs."""
        return self.trace is None or self.trace.exists()


@dataclass(frozen=True, slots=True)
class Fleet:
    """A shape and what it is an example of."""

    kind: str
    shape: str

    @property
    def colocated(self) -> bool:
        """Whether its endpoints prefill and decode."""
        return self.kind == COLOCATED


@dataclass(frozen=True, slots=True)
class Cell:
    """One comparison of all placements."""

    workload: Workload
    fleet: Fleet
    load: float

    @property
    def name(self) -> str:
        """Unique, and what `--only` is matched with."""
        return f"{self.workload.name}/{self.fleet.kind}/{self.load:g}"

    @property
    def setup(self) -> Setup:
        """What all its runs have in common."""
        return setup_of(self.workload, self.fleet)


def setup_of(workload: Workload, fleet: Fleet) -> Setup:
    """The set-up of a workload on a fleet."""
    source: WorkloadSource
    if workload.trace is None:
        source = WorkloadSource(workload=workload.source, limit=workload.limit)
    elif workload.source.startswith("lengths_"):
        source = WorkloadSource(trace=workload.trace, limit=workload.limit)
    else:
        source = SeededTrace(trace=workload.trace, limit=workload.limit, seeds=SEEDS)
    return Setup(
        machines=parse_shape(fleet.shape),
        shape=fleet.shape,
        source=source,
        objective=Objective(ttft_s=workload.ttft_s, tpot_s=workload.tpot_s),
    )


def shape(prefill: int, decode: int, other: int = 0) -> str:
    """A shape with `decode` H20 endpoints, and `other` A100 endpoints that decode, too."""
    mixed = f",{other}D@{PREFILL}" if other else ""
    return f"{prefill}P@{PREFILL},{decode}D@{DECODE}{mixed}"


_BALANCED = (
    (Workload("azure", "azure23_conv_w1.csv.gz", 2000, 3.0), shape(5, 4)),
    (Workload("sharegpt-reasoning", "sharegpt-reasoning", 700, 4.5), shape(1, 12)),
    (Workload("mooncake", "mooncake_conversation_w1.jsonl.gz", 1000, 3.0, ttft_s=30.0), shape(20, 4)),
    (Workload("chat", "chat", 2000, 2.5), shape(5, 4)),
    (Workload("servegen-r1", "servegen_r1_w1.csv.gz", 1500, 4.0), shape(3, 8)),
    (Workload("hotspot-prefix", "hotspot-prefix", 4000, 5.0), shape(4, 4)),
    (Workload("servegen-large", "servegen_large_w1.csv.gz", 2500, 3.0), shape(2, 4)),
    (Workload("mix-1", "mix-1", 1500, 4.5), shape(2, 8)),
    (Workload("arxiv-lengths", "lengths_arxiv_summarization_llama2.csv.gz", 1500, 3.0), shape(8, 4)),
    (Workload("multi-turn", "multi-turn", 2000, 2.3), shape(4, 4)),
    (Workload("agent", "agent_miniswe.jsonl.gz", 402, 1.0, ttft_s=10.0), shape(8, 4)),
    (Workload("libra-reasoning", "libra-reasoning", 1500, 4.5), shape(1, 12)),
    (Workload("sharegpt-lengths", "lengths_sharegpt10k_llama2.csv.gz", 2500, 3.0), shape(2, 8)),
    (Workload("libra-code", "libra-code", 2500, 3.0), shape(20, 4)),
    (Workload("sharegpt-multiturn", "sharegpt_multiturn_qwen3.jsonl.gz", 300, 0.5), shape(2, 4)),
    (Workload("mix-2", "mix-2", 900, 5.0), shape(1, 12)),
    (Workload("zeta", "zeta", 800, 4.5), shape(1, 12)),
    (Workload("random", "random", 2000, 2.5), shape(4, 4)),
    (Workload("libra-summary", "libra-summary", 1500, 3.0), shape(7, 4)),
    (Workload("alpaca-reasoning", "alpaca-reasoning", 600, 3.0), shape(1, 12)),
    (Workload("libra-chat", "libra-chat", 2500, 2.5), shape(5, 4)),
    (Workload("sibyl-random", "sibyl-random", 800, 4.5), shape(1, 12)),
)

_OTHER_FLEETS = {
    "azure": (
        Fleet("mixed decode", shape(8, 2, 2)),
        Fleet("prefill-bound", shape(3, 4)),
        Fleet("decode-bound", shape(10, 4)),
    ),
    "sharegpt-reasoning": (Fleet("mixed decode", shape(1, 6, 6)),),
    "mooncake": (Fleet("mixed decode", shape(20, 2, 2)), Fleet("prefill-bound", shape(10, 4))),
    "chat": (Fleet("prefill-bound", shape(3, 4)), Fleet("decode-bound", shape(10, 4))),
    "servegen-r1": (Fleet("decode-bound", shape(6, 8)),),
    "mix-1": (Fleet("mixed decode", shape(2, 4, 4)),),
}

_ON_COLOCATED = (
    "azure",
    "chat",
    "multi-turn",
    "agent",
    "mix-1",
    "servegen-r1",
    "sharegpt-multiturn",
    "libra-summary",
)
"""Of each kind one or two: short and long prompts, short and long outputs, sessions, traces."""

SHAPES: tuple[tuple[Workload, Fleet], ...] = (
    *((workload, Fleet("balanced", text)) for workload, text in _BALANCED),
    *((workload, fleet) for workload, _ in _BALANCED for fleet in _OTHER_FLEETS.get(workload.name, ())),
    *((workload, Fleet(COLOCATED, f"8C@{DECODE}")) for workload, _ in _BALANCED if workload.name in _ON_COLOCATED),
)
"""Workloads on fleets, in the order in which runs take turns."""

CELLS = tuple(Cell(workload, fleet, load) for workload, fleet in SHAPES for load in LOADS)
"""The matrix without its placements and seeds."""
