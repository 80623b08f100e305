"""The cells: complete, near balance, and each seed with requests of its own."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_core.profiles import SHIPPED_PROFILES
from ballast_core.profiles.capacity import LengthStatistics, decode_rps, prefill_rps
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.workloads import GENERATORS, WorkloadRequest
from bench.common.seeding import jittered, part_of
from bench.matrix.cells import CELLS, DECODE, LOADS, PREFILL, SEEDS, TRACES, Cell, setup_of
from bench.matrix.measure import RunJob, arithmetic_scale

BALANCED = [cell for cell in CELLS if cell.fleet.kind == "balanced" and cell.load == LOADS[0]]
CACHED_RATIO = {"agent": 0.8, "multi-turn": 0.3, "hotspot-prefix": 0.7}
"""Share of the prompts that caches hold, about: a fleet's caches hold less than the ideal one."""


def test_names_are_unique() -> None:
    assert len({cell.name for cell in CELLS}) == len(CELLS)


def test_descriptions_are_the_same_when_read_again() -> None:
    for cell in CELLS:
        if cell.workload.available:
            description = RunJob(cell, "ballast", SEEDS[0], 1.25).description
            assert json.loads(json.dumps(description)) == description


def test_every_built_in_workload_but_none_twice_is_there() -> None:
    """All but ARES's lengths up to 32K: the reproduction report runs them, three decode cards at a time."""
    generators = [cell.workload.source for cell in BALANCED if cell.workload.trace is None]
    assert sorted(generators) == sorted(GENERATORS.keys() - {"sharegpt-32k"})


@pytest.mark.shared
def test_every_trace_is_there() -> None:
    if not TRACES.exists():
        pytest.skip("needs ../shared/traces")
    files = {cell.workload.source for cell in CELLS if cell.workload.trace is not None}
    assert files == {file.name for file in TRACES.glob("*.gz")}


@pytest.mark.parametrize("cell", BALANCED, ids=lambda cell: cell.workload.name)
def test_fleets_near_balance_are_as_near_as_24_endpoints_allow(cell: Cell) -> None:
    if not cell.workload.available:
        pytest.skip("needs ../shared/traces")
    setup = setup_of(cell.workload, cell.fleet)
    lengths = LengthStatistics.of(setup.source.load(0, 1.0).requests)
    uncached = 1 - CACHED_RATIO.get(cell.workload.name, 0)
    wanted = decode_rps(SHIPPED_PROFILES[DECODE], lengths) / prefill_rps(SHIPPED_PROFILES[PREFILL], lengths) * uncached
    roles = [machine.endpoint.role.value for machine in setup.machines]
    prefill, decode = roles.count("prefill"), roles.count("decode")
    assert prefill + decode <= 24
    assert decode >= 4
    if prefill not in (1, 20):  # the fewest and the most that there can be
        assert 2 / 3 <= prefill / (wanted * decode) <= 1.8


def test_colocated_fleets_have_equal_endpoints_that_do_both_and_workloads_of_the_others() -> None:
    colocated = [cell for cell in CELLS if cell.fleet.colocated]
    assert {cell.workload for cell in colocated} < {cell.workload for cell in BALANCED}
    assert {cell.load for cell in colocated} == set(LOADS)
    for cell in colocated:
        machines = parse_shape(cell.fleet.shape)
        assert len(machines) == 8
        kinds = {(machine.endpoint.role.value, machine.profile.name) for machine in machines}
        assert kinds == {("flexible", DECODE)}


@pytest.mark.rotating(2)
@pytest.mark.parametrize("cell", BALANCED, ids=lambda cell: cell.workload.name)
def test_seeds_differ_and_are_the_same_load(cell: Cell) -> None:
    if not cell.workload.available:
        pytest.skip("needs ../shared/traces")
    source = cell.setup.source
    loads = [source.load(seed, 1.0) for seed in SEEDS]
    assert len({load.requests for load in loads}) == len(SEEDS)
    assert {len(load.requests) for load in loads} == {cell.workload.limit}
    for seed, load in zip(SEEDS, loads, strict=True):
        assert load.requests[0].arrival_s >= 0
        assert load.requests == tuple(sorted(load.requests, key=lambda request: request.arrival_s))
        assert 0 < arithmetic_scale(cell.setup, seed) < math.inf


@given(st.integers(2, 10_000), st.integers(1, 3000), st.integers(2, 6))
def test_parts_of_a_trace_are_whole_and_overlap_only_where_they_must(rows: int, limit: int, turns: int) -> None:
    if rows < limit:
        return
    parts = [range(rows)[part_of(rows, limit, turn, turns)] for turn in range(turns)]
    assert all(len(part) == limit for part in parts)
    if rows >= turns * limit:
        assert len(set().union(*parts)) == turns * limit


def test_sessions_move_as_a_whole() -> None:
    requests = [
        WorkloadRequest(arrival_s=session + turn / 4, input_tokens=1, output_tokens=1, session=session, turn=turn)
        for session in range(20)
        for turn in range(3)
    ]
    moved = jittered(requests, seed=1)
    assert moved[0].arrival_s == 0
    starts = {request.session: request.arrival_s for request in moved if request.turn == 0}
    assert starts != {session: float(session) for session in range(20)}
    for request in moved:
        assert request.session is not None
        assert request.turn is not None
        assert request.arrival_s - starts[request.session] == pytest.approx(request.turn / 4)
