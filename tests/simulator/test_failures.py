"""Failures by script: every request ends once, gateways notice as the real one does, bad scripts are refused."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import Binding, EndpointId, Stage
from ballast_core.model.effects import Dispatch, Effect, Handoff
from ballast_core.policies.registry import build_placement
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_sim.simulation.figures.results import summarise
from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.inputs.failures import (
    Failure,
    FailureKind,
    FailureScriptError,
    parse_failures,
    read_failures,
)
from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.workloads import WorkloadRequest

SHAPES = ("2P2D@a100-qwen3-32b", "1P3D@h20-qwen3-32b", "3F@a100-qwen3-32b", "2C@h20-qwen3-32b")


def jobs(count: int, rate: float, seed: int, outputs: int = 120) -> list[WorkloadRequest]:
    rng, now_s, drawn = random.Random(seed), 0.0, []
    for _ in range(count):
        now_s += rng.expovariate(rate)
        drawn.append(
            WorkloadRequest(arrival_s=now_s, input_tokens=rng.randint(1, 4000), output_tokens=rng.randint(1, outputs))
        )
    return drawn


def simulate(
    shape: str,
    workload: list[WorkloadRequest],
    script: list[dict[str, object]],
    *,
    policy: str = "least-requests",
    binding: Binding = Binding.LATE,
    gateways: int = 1,
    physics: str = "vllm",
    stepwise: bool = False,
    log: list[tuple[float, Effect]] | None = None,
) -> Fleet:
    machines, placement = parse_shape(shape), build_placement(policy)
    fleet = Fleet(
        machines,
        DirectorSettings(prefill=placement, decode=placement, binding=binding, profiles=SHIPPED_PROFILES),
        FleetSettings(
            gateways=gateways,
            physics=physics,
            failures=parse_failures(script, [machine.endpoint.id for machine in machines]),
        ),
        on_effect=lambda effect, now_s: log.append((now_s, effect)) if log is not None else None,
        stepwise=stepwise,
    )
    fleet.load(workload)
    fleet.run()
    return fleet


@st.composite
def scripts(draw: st.DrawFn) -> list[dict[str, object]]:
    """Some failures on the first three endpoints in the first ten seconds, those of one kind and place apart."""
    script: list[dict[str, object]] = []
    for endpoint in draw(st.lists(st.integers(0, 1), max_size=2, unique=True)):
        for kind in draw(st.lists(st.sampled_from(list(FailureKind)), min_size=1, unique=True)):
            at_s, lasts_s = draw(st.floats(0, 10)), draw(st.floats(0.01, 8))
            entry: dict[str, object] = {"at_s": at_s, "endpoint": endpoint, "kind": kind.value}
            match kind:
                case FailureKind.CRASH:
                    entry["down_s"] = lasts_s
                    again: dict[str, object] = {"at_s": at_s + lasts_s + draw(st.floats(0, 3)), "endpoint": endpoint}
                    script += [again | {"kind": "crash", "down_s": draw(st.floats(0.01, 2))}]
                case FailureKind.SLOW:
                    entry |= {"for_s": lasts_s, "factor": draw(st.floats(0.5, 20))}
                case FailureKind.LOST_SCRAPES:
                    entry["for_s"] = lasts_s
            script.append(entry)
    return script


@pytest.mark.rotating(3)
@settings(max_examples=40, deadline=None)
@given(
    script=scripts(),
    seed=st.integers(0, 2**32),
    shape=st.sampled_from(SHAPES),
    policy=st.sampled_from(["least-requests", "sibyl", "ballast"]),
    binding=st.sampled_from(list(Binding)),
    gateways=st.integers(1, 2),
)
def test_every_request_ends_once_whatever_fails(
    *, script: list[dict[str, object]], seed: int, shape: str, policy: str, binding: Binding, gateways: int
) -> None:
    """Completed with all its tokens, rejected, or broken; no KV block is lost, and the gateways' books are empty."""
    fleet = simulate(shape, jobs(60, 8.0, seed), script, policy=policy, binding=binding, gateways=gateways)
    assert fleet.open_requests == 0
    for record in fleet.records:
        assert [record.completed, record.rejected is not None, record.broken].count(True) == 1
        assert record.generated_tokens == record.output_tokens or not record.completed
        assert (record.first_token_s is None) == (record.rejected is not None)
        assert record.dispatches >= (record.rejected is None)
    figures = summarise(fleet, Objective())
    assert figures["requests"] == sum(int(str(figures[end])) for end in ("completed", "rejected", "broken"))
    fleet.world.check_blocks()
    for director in fleet._gateways.directors:
        ledger = director.ledger
        assert len(ledger) == 0
        assert not any(ledger.requests[stage].any() or ledger.tokens[stage].any() for stage in Stage)
        assert not ledger.decoding_tokens.any()
        assert not ledger.uncached_tokens.any()
        assert not ledger.uncached_pairs.any()


@pytest.mark.rotating(3)
@settings(max_examples=15, deadline=None)
@given(script=scripts(), seed=st.integers(0, 2**32), shape=st.sampled_from(SHAPES))
def test_leaping_over_steps_changes_nothing_when_engines_fail(
    script: list[dict[str, object]], seed: int, shape: str
) -> None:
    """The same decisions at the same times, and the same records to the last bit, as step by step."""
    logs: list[list[tuple[float, Effect]]] = [[], []]
    runs = [
        simulate(shape, jobs(40, 6.0, seed), script, stepwise=stepwise, log=log)
        for stepwise, log in zip((False, True), logs, strict=True)
    ]
    assert runs[0].records == runs[1].records
    assert _placed(logs[0]) == _placed(logs[1])


def _placed(log: list[tuple[float, Effect]]) -> list[tuple[float, str, str]]:
    return [(at_s, e.request_id, e.decode.id) for at_s, e in log if isinstance(e, (Dispatch, Handoff))]


def test_without_a_script_nothing_breaks() -> None:
    """The two counts are always in the rows."""
    figures = summarise(simulate(SHAPES[0], jobs(30, 5.0, 1), []), Objective())
    assert (figures["completed"], figures["broken"], figures["retried"]) == (30, 0, 0)


@pytest.mark.parametrize("policy", ["least-requests", "ballast"])
@pytest.mark.parametrize("physics", ["vllm", "sibyl-printed"])
def test_tokens_of_broken_streams_count_over_the_time_that_they_took(physics: str, policy: str) -> None:
    """No engine of this kind generates more than a hundred tokens a second for one request."""
    short = WorkloadRequest(arrival_s=0.0, input_tokens=100, output_tokens=10)
    long = WorkloadRequest(arrival_s=0.1, input_tokens=100, output_tokens=5000)
    script: list[dict[str, object]] = [{"at_s": 40.0, "endpoint": "d000", "kind": "crash", "down_s": 5}]
    for workload in ([short, long], [long]):
        fleet = simulate("1P1D@h20-qwen3-32b", workload, script, policy=policy, physics=physics)
        figures = summarise(fleet, Objective())
        assert figures["broken"] == 1
        assert figures["duration_s"] == pytest.approx(40 - workload[0].arrival_s, abs=0.1)
        tokens = sum(record.generated_tokens for record in fleet.records)
        assert figures["throughput_tok_s"] == pytest.approx(tokens / 40, rel=0.01)
        assert figures["goodput_rps"] == pytest.approx((len(workload) - 1) / 40, rel=0.01)


def test_a_prefill_that_dies_is_tried_elsewhere() -> None:
    """One request, on the first prefill endpoint, which dies while it computes: the second one does it all again."""
    one = [WorkloadRequest(arrival_s=0.0, input_tokens=8000, output_tokens=20)]
    whole = simulate("2P1D@a100-qwen3-32b", one, [])
    fleet = simulate("2P1D@a100-qwen3-32b", one, [{"at_s": 0.5, "endpoint": "p000", "kind": "crash", "down_s": 5}])
    (record,) = fleet.records
    assert (record.prefill, record.dispatches, record.completed) == ("p001", 2, True)
    assert record.ttft_s == pytest.approx((whole.records[0].ttft_s or 0.0) + 0.5, abs=1e-9)


def test_a_decode_endpoint_that_dies_breaks_its_streams_and_nothing_else() -> None:
    """After the first token there is no second try; before it there is; the endpoint comes back empty."""
    workload = jobs(80, 10.0, 3, outputs=900)
    fleet = simulate(SHAPES[0], workload, [{"at_s": 6.0, "endpoint": 2, "kind": "crash", "down_s": 1000}])
    broken = [record for record in fleet.records if record.broken]
    assert {record.decode for record in broken} == {"d000"}
    assert all((record.first_token_s or 0.0) <= 6.0 for record in broken)
    retried = [record for record in fleet.records if record.dispatches > 1]
    assert len(broken) > 3
    assert retried
    assert all(record.decode == "d001" and record.completed for record in retried)


def test_kv_that_died_with_its_prefill_endpoint_is_computed_anew() -> None:
    """The pull fails, the decode leg with it, and the whole request starts again elsewhere."""
    one = [WorkloadRequest(arrival_s=0.0, input_tokens=8000, output_tokens=20)]
    log: list[tuple[float, Effect]] = []
    whole = simulate("2P2D@a100-qwen3-32b", one, [], log=log)
    (handed_off_s,) = [at_s for at_s, effect in log if isinstance(effect, Handoff)]
    script: list[dict[str, object]] = [
        {"at_s": handed_off_s + 0.01, "endpoint": "p000", "kind": "crash", "down_s": 0.001}
    ]
    (record,) = simulate("2P2D@a100-qwen3-32b", one, script).records
    assert (record.prefill, record.decode, record.dispatches, record.completed) == ("p001", "d001", 2, True)
    assert (record.ttft_s or 0.0) > 1.9 * (whole.records[0].ttft_s or 0.0)


def test_a_crash_that_breaks_five_legs_is_noticed_by_them() -> None:
    """The endpoint is ejected at once, before scrapes fail; at its return it gets requests again."""
    log: list[tuple[float, Effect]] = []
    script: list[dict[str, object]] = [{"at_s": 4.0, "endpoint": "p000", "kind": "crash", "down_s": 10}]
    simulate(SHAPES[0], jobs(300, 15.0, 5, outputs=30), script, policy="round-robin", log=log)
    sent_s = [at_s for at_s, e in log if isinstance(e, Dispatch) and e.prefill is not None and e.prefill.id == "p000"]
    assert not [at_s for at_s in sent_s if 4.0 < at_s < 14.0]
    assert [at_s for at_s in sent_s if at_s >= 14.0 + 0.2 + 0.005]


def test_a_crash_is_noticed_after_five_refused_scrapes_and_so_is_the_return() -> None:
    """Until then requests are sent there, refused, and tried elsewhere; at its return it gets requests again."""
    log: list[tuple[float, Effect]] = []
    script: list[dict[str, object]] = [{"at_s": 4.0, "endpoint": "p000", "kind": "crash", "down_s": 10}]
    fleet = simulate(SHAPES[0], jobs(120, 6.0, 5, outputs=30), script, policy="round-robin", log=log)
    sent_s = [at_s for at_s, e in log if isinstance(e, Dispatch) and e.prefill is not None and e.prefill.id == "p000"]
    noticed_s, back_s = 4.0 + 5 * 0.2 + 0.005, 14.0 + 0.2 + 0.005
    assert [at_s for at_s in sent_s if 4.0 < at_s <= noticed_s]
    assert not [at_s for at_s in sent_s if noticed_s < at_s < 14.0]
    assert [at_s for at_s in sent_s if back_s <= at_s]
    assert all(record.completed for record in fleet.records)


def test_lost_scrapes_take_an_endpoint_out_after_five_timeouts_and_break_nothing() -> None:
    """Each scrape waits for its timeout of a second; what runs there goes on."""
    log: list[tuple[float, Effect]] = []
    script: list[dict[str, object]] = [{"at_s": 2.0, "endpoint": "d000", "kind": "lost-scrapes", "for_s": 9}]
    fleet = simulate("2P2D@a100-qwen3-32b", jobs(250, 15.0, 7, outputs=30), script, policy="round-robin", log=log)
    sent_s = [at_s for at_s, e in log if isinstance(e, Handoff) and e.decode.id == "d000"]
    assert [at_s for at_s in sent_s if 2.0 < at_s < 7.0]
    assert not [at_s for at_s in sent_s if 7.2 < at_s < 11.0]
    assert [at_s for at_s in sent_s if at_s > 12.3]
    assert all(record.completed and record.dispatches == 1 for record in fleet.records)


def test_a_draining_endpoint_finishes_what_it_has_and_gets_nothing_new() -> None:
    """For the rest of the run; a crash in between does not end the drain."""
    log: list[tuple[float, Effect]] = []
    script: list[dict[str, object]] = [
        {"at_s": 3.0, "endpoint": "d001", "kind": "drain"},
        {"at_s": 8.0, "endpoint": "d001", "kind": "crash", "down_s": 2},
    ]
    fleet = simulate(SHAPES[0], jobs(80, 5.0, 9, outputs=30), script, policy="round-robin", log=log)
    last_s = max(at_s for at_s, e in log if isinstance(e, Handoff) and e.decode.id == "d001")
    assert 1.5 < last_s <= 3.0
    assert fleet.kernel.now_s > 13.0
    assert all(record.completed for record in fleet.records)


def test_a_slow_engine_takes_its_factor_longer() -> None:
    """Steps of a steady decode are three times as long from the first to the last one within the time."""
    one = [WorkloadRequest(arrival_s=0.0, input_tokens=100, output_tokens=200)]
    fast = simulate("1F@h20-qwen3-32b", one, []).records[0]
    slow = simulate("1F@h20-qwen3-32b", one, [{"at_s": 0, "endpoint": 0, "kind": "slow", "factor": 3, "for_s": 99}])
    assert slow.records[0].tpot_s == pytest.approx(3 * (fast.tpot_s or 0.0), rel=1e-9)
    half = simulate("1F@h20-qwen3-32b", one, [{"at_s": 0, "endpoint": 0, "kind": "slow", "factor": 3, "for_s": 2}])
    assert (fast.e2e_s or 0.0) + 1.3 < (half.records[0].e2e_s or 0.0) < (fast.e2e_s or 0.0) + 1.4


@pytest.mark.parametrize("kind", [{"kind": "slow", "factor": 5}, {"kind": "crash"}])
def test_the_order_of_a_script_does_not_matter(kind: dict[str, object]) -> None:
    """The second failure begins when the first one ends; written first, it was over as soon as it had begun."""
    lasts = "down_s" if kind["kind"] == "crash" else "for_s"
    script = [{"at_s": at_s, "endpoint": "d000", lasts: 5, **kind} for at_s in (2, 7)]
    one, other = (
        [record.last_token_s for record in simulate("1P2D@h20-qwen3-32b", jobs(60, 4.0, seed=1), entries).records]
        for entries in (script, script[::-1])
    )
    assert one == other


def test_when_every_endpoint_is_gone_requests_are_rejected() -> None:
    """With the reason that a client would get."""
    script: list[dict[str, object]] = [
        {"at_s": 1.0, "endpoint": place, "kind": "crash", "down_s": 1000} for place in range(4)
    ]
    fleet = simulate(SHAPES[0], jobs(60, 8.0, 11), script)
    late = Counter(record.rejected for record in fleet.records if record.arrival_s > 3.0)
    assert set(late) == {"no-endpoints"}


ENTRY = {"at_s": 1, "endpoint": "d000", "kind": "crash", "down_s": 2}


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ({"at_s": 1}, "must hold a list of failures"),
        (["crash"], r"entry 1: must be an object with at_s, endpoint, kind, not 'crash'"),
        ([ENTRY, {"at_s": 1, "endpoint": 0}], "entry 2: kind: is missing; write one of crash, drain, slow"),
        ([ENTRY | {"kind": "crush"}], r"entry 1: kind: unknown kind 'crush'; .*did you mean crash\?"),
        ([ENTRY | {"for_s": 3}], "entry 1: for_s: no field of crash; its fields are at_s, endpoint, kind, down_s"),
        ([ENTRY | {"down_s": None}], "entry 1: down_s: is missing"),
        ([ENTRY | {"down_s": "2"}], "entry 1: down_s: must be a finite number, not '2'"),
        ([ENTRY | {"down_s": True}], "entry 1: down_s: must be a finite number, not True"),
        ([ENTRY | {"down_s": 0}], "entry 1: down_s: must be above 0, not 0"),
        ([ENTRY | {"at_s": -1}], "entry 1: at_s: must be 0 or more, not -1"),
        ([ENTRY | {"at_s": float("nan")}], "entry 1: at_s: must be a finite number, not nan"),
        ([ENTRY | {"endpoint": "d9"}], "entry 1: endpoint: unknown endpoint 'd9'; known: d000, d001, p000"),
        ([ENTRY | {"endpoint": 3}], r"entry 1: endpoint: 3 is not in 0\.\.2"),
        ([ENTRY | {"endpoint": None}], "entry 1: endpoint: is missing"),
        (
            [ENTRY, ENTRY | {"at_s": 2.5, "endpoint": 1}],
            "entry 2: at_s: d000 is still under the crash of entry 1, until 3",
        ),
    ],
)
def test_a_script_that_cannot_be_carried_out_is_refused(tmp_path: Path, script: object, message: str) -> None:
    """The message names file, entry, field and reason."""
    path = tmp_path / "script.json"
    path.write_text(json.dumps(script).replace("NaN", ".nan"))
    with pytest.raises(FailureScriptError, match=f"^{path}: {message}"):
        read_failures(path, [EndpointId(name) for name in ("p000", "d000", "d001")])


def test_scripts_are_read_from_json_and_yaml(tmp_path: Path) -> None:
    """Ids and places name the same endpoint."""
    path = tmp_path / "script"
    path.write_text(json.dumps([ENTRY]))
    names = [EndpointId(name) for name in ("p000", "d000")]
    (failure,) = read_failures(path, names)
    assert failure == Failure(at_s=1.0, endpoint=EndpointId("d000"), kind=FailureKind.CRASH, lasts_s=2.0)
    path.write_text("- {at_s: 1, endpoint: 1, kind: crash, down_s: 2}\n")
    assert read_failures(path, names) == (failure,)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"- {at_s: 1\n- x", "line 2: neither JSON nor YAML"), (b"\xff\xfe\x00", "cannot be read|neither JSON nor YAML")],
)
def test_an_unreadable_script_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """With the line where there is one."""
    path = tmp_path / "script.yaml"
    path.write_bytes(content)
    with pytest.raises(FailureScriptError, match=message):
        read_failures(path, [])


@pytest.mark.parametrize(
    ("lost", "served_by"), [(("p000", "p001"), {"d000", "d001"}), (("d000", "d001"), {"p000", "p001"})]
)
def test_when_one_role_is_lost_the_other_one_serves_whole_requests(lost: tuple[str, ...], served_by: set[str]) -> None:
    """No request is rejected, and after the return they are split again."""
    log: list[tuple[float, Effect]] = []
    script = [{"at_s": 2.0, "endpoint": name, "kind": "crash", "down_s": 6.0} for name in lost]
    arrivals_s = [*range(2), *(5.0 + 0.1 * k for k in range(20)), *range(30, 33)]
    workload = [WorkloadRequest(arrival_s=at_s, input_tokens=500, output_tokens=20) for at_s in arrivals_s]
    fleet = simulate("2P2D@a100-qwen3-32b", workload, script, log=log)
    assert all(record.completed for record in fleet.records)
    dispatches = {at_s: effect for at_s, effect in log if isinstance(effect, Dispatch)}
    meanwhile = [effect for at_s, effect in dispatches.items() if 5.0 <= at_s < 7.5]
    assert {(effect.prefill, effect.decode.id in served_by) for effect in meanwhile} == {(None, True)}
    assert all(effect.prefill is not None for at_s, effect in dispatches.items() if not 2.0 <= at_s < 20.0)
