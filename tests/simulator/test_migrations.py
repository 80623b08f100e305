"""Running decodes move: no token is lost or doubled, whatever happens on the way, and nobody else pauses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.beliefs.kinds import Belief
from ballast_core.directing.settings import DirectorSettings
from ballast_core.model import EndpointId, RequestId, Stage
from ballast_core.model.effects import Migrate
from ballast_core.model.events import Migrated, MigrationFailed
from ballast_core.policies.registry import build_placement
from ballast_core.profiles import SHIPPED_PROFILES
from ballast_sim.engine import Finished, TokensAdvanced
from ballast_sim.simulation.figures.results import summarise
from ballast_sim.simulation.fleet.fleet import Fleet
from ballast_sim.simulation.fleet.migrations import NotMoved
from ballast_sim.simulation.inputs.failures import Failure, FailureKind
from ballast_sim.simulation.inputs.fleet_settings import CopyBy, FleetSettings, MigrationSettings
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.requests.records import Record

PROFILE = "a100-qwen3-32b"


@dataclass(frozen=True, slots=True)
class Job:
    arrival_s: float
    input_tokens: int
    output_tokens: int
    hash_ids: Sequence[int] | None = None
    block_size: int | None = None
    max_tokens: int | None = None
    traffic_class: str = ""


class Watched(Fleet):
    """Keeps every token's time by request, as the client gets them."""

    token_times_s: dict[int, list[float]]

    def token(self, request_id: str, at_s: float) -> None:
        self._note(request_id, [at_s])
        super().token(request_id, at_s)

    def tokens(self, event: TokensAdvanced) -> None:
        self._note(event.request_id, event.times_s)
        super().tokens(event)

    def finished(self, event: Finished) -> None:
        super().finished(event)

    def _note(self, request_id: str, times_s: Sequence[float]) -> None:
        leg = self.book.legs[request_id]
        if leg.kind.name == "DECODE":
            self.token_times_s.setdefault(leg.record.index, []).extend(times_s)


@dataclass(frozen=True, slots=True)
class Plan:
    """Move the `request`th of those that decode at `at_s` to decode endpoint number `target`."""

    at_s: float
    request: int
    target: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    shape: str = f"1P3D@{PROFILE}"
    physics: str = "vllm"
    copy: CopyBy = CopyBy.PULL
    admit_limit_s: float = 2.0
    failures: tuple[Failure, ...] = ()
    stepwise: bool = False
    learn: Belief = Belief.PROGRESS
    heard: list[str] = field(default_factory=list)


def simulate(jobs: Sequence[Job], plans: Sequence[Plan], scene: Scene) -> Watched:
    placement = build_placement("least-requests")
    director = DirectorSettings(prefill=placement, decode=placement, learn=scene.learn, profiles=SHIPPED_PROFILES)
    around = FleetSettings(
        physics=scene.physics,
        failures=scene.failures,
        migration=MigrationSettings(copy=scene.copy, admit_limit_s=scene.admit_limit_s),
    )
    fleet = Watched(parse_shape(scene.shape), director, around, stepwise=scene.stepwise)
    fleet.token_times_s = {}
    report = fleet.report

    def heard(record: Record, event: object) -> None:
        if isinstance(event, Migrated | MigrationFailed):
            scene.heard.append(f"{fleet.kernel.now_s!r} {event}")
        report(record, event)  # type: ignore[arg-type]

    fleet.report = heard  # type: ignore[method-assign]
    fleet.load(jobs)
    decoders = [machine.endpoint for machine in fleet.world.machines if machine.endpoint.role.value != "prefill"]
    by_id = {endpoint.id: endpoint for endpoint in decoders}

    def move(plan: Plan) -> None:
        """Of the requests that have a token and have not ended."""
        moving = [record for record in fleet.records if record.first_token_s and fleet.decode_leg(record)]
        if moving:
            record = moving[plan.request % len(moving)]
            assert record.decode is not None
            source = by_id[record.decode]
            fleet.migrations.begin(record, Migrate(RequestId(str(record.index)), source, decoders[plan.target]))

    for plan in plans:
        fleet.kernel.at(plan.at_s, lambda plan=plan: move(plan), 2)  # type: ignore[misc]
    fleet.run()
    return fleet


def crash(at_s: float, endpoint: str, down_s: float = 1000.0) -> Failure:
    return Failure(at_s=at_s, endpoint=EndpointId(endpoint), kind=FailureKind.CRASH, lasts_s=down_s)


ONE = [Job(0.0, 1000, 400)]


def test_a_request_moves_and_pauses_only_from_the_cut_to_its_next_token() -> None:
    """Times by hand: the source decodes during the copy; the pause is one step with what came after it began."""
    still, moved = (simulate(ONE, plans, Scene()) for plans in ([], [Plan(3.0, 0, 1)]))
    record = moved.records[0]
    assert (record.migrations, record.decode, record.generated_tokens) == (1, "d001", 400)
    assert len(moved.token_times_s[0]) == 400
    profile = moved.world.machines[1].profile
    before = [at_s for at_s in still.token_times_s[0] if at_s <= 3.0]
    copied = 1000 + len(before)
    assert moved.world.copied_bytes == copied * profile.kv_bytes_per_token
    copy_s = profile.link_setup_s + moved.world.copied_bytes / (profile.link_gbps * 1e9 / 8)
    warm_s = profile.step_s(1, copied - 1, 0, 1)
    cut_s = 3.0 + copy_s + warm_s
    kept = [at_s for at_s in still.token_times_s[0] if at_s <= cut_s]
    assert moved.token_times_s[0][: len(kept)] == kept
    (pause_s,) = moved.migrations.figures.pauses_s
    whole_blocks = copied // 16 * 16
    fresh = 1000 + len(kept) - whole_blocks
    assert pause_s == pytest.approx(profile.step_s(fresh, 0, fresh * (whole_blocks + fresh / 2), 0), rel=1e-6)
    assert moved.token_times_s[0][len(kept)] == pytest.approx(cut_s + pause_s)


def test_recomputing_moves_without_a_byte_on_the_link() -> None:
    moved = simulate(ONE, [Plan(3.0, 0, 1)], Scene(copy=CopyBy.RECOMPUTE))
    assert moved.records[0].migrations == 1
    assert moved.records[0].generated_tokens == len(moved.token_times_s[0]) == 400
    assert moved.world.copied_bytes == 0


def test_others_go_on_while_one_moves() -> None:
    """Requests on a third endpoint are not touched at all; those at the source lose a neighbour and are not slower."""
    jobs = [Job(0.01 * n, 500, 300) for n in range(6)]
    still, moved = (simulate(jobs, plans, Scene()) for plans in ([], [Plan(3.0, 0, 1)]))
    source, target = still.records[0].decode, moved.records[0].decode
    assert source != target
    for before, after in zip(still.records[1:], moved.records[1:], strict=True):
        assert before.decode == after.decode
        if before.decode not in (source, target):
            assert still.token_times_s[before.index] == moved.token_times_s[after.index]
        if before.decode == source:
            assert (after.last_token_s or 0) <= (before.last_token_s or 0)


def test_a_request_that_ends_during_the_copy_is_not_moved() -> None:
    end_s = simulate(ONE, [], Scene()).records[0].last_token_s
    assert end_s is not None
    scene = Scene()
    fleet = simulate(ONE, [Plan(end_s - 0.001, 0, 1)], scene)
    assert fleet.records[0].last_token_s == end_s
    assert fleet.records[0].migrations == 0
    assert fleet.migrations.figures.not_moved == {NotMoved.ENDED: 1}
    assert scene.heard == []
    fleet.world.check_blocks()


def test_a_target_that_dies_during_the_copy_changes_nothing_for_the_request() -> None:
    scene = Scene(failures=(crash(3.001, "d001"),))
    fleet = simulate(ONE, [Plan(3.0, 0, 1)], scene)
    assert fleet.token_times_s == simulate(ONE, [], Scene()).token_times_s
    assert fleet.migrations.figures.not_moved == {NotMoved.COPY_FAILED: 1}
    assert len(scene.heard) == 1
    assert "MigrationFailed" in scene.heard[0]


def test_a_stream_goes_on_at_the_target_when_the_source_dies_during_the_copy() -> None:
    scene = Scene(failures=(crash(3.001, "d000"),))
    fleet = simulate(ONE, [Plan(3.0, 0, 1)], scene)
    record = fleet.records[0]
    assert not record.broken
    assert (record.generated_tokens, len(fleet.token_times_s[0]), record.decode) == (400, 400, "d001")
    assert fleet.migrations.figures.replayed == 1
    assert "Migrated" in scene.heard[-1]


def cut_s(scene: Scene) -> float:
    """When a lone request is cut that begins to move at 3 s."""
    fleet = simulate(ONE, [Plan(3.0, 0, 1)], scene)
    decided_s = float(scene.heard.pop().split()[0])
    return decided_s - fleet.migrations.figures.pauses_s[0]


def test_a_target_that_dies_after_the_cut_gives_the_request_back() -> None:
    scene = Scene(failures=(crash(cut_s(Scene()) + 1e-3, "d001"),))
    fleet = simulate(ONE, [Plan(3.0, 0, 1)], scene)
    record = fleet.records[0]
    assert (record.decode, record.migrations, record.broken) == ("d000", 0, False)
    assert record.generated_tokens == len(fleet.token_times_s[0]) == 400
    assert fleet.migrations.figures.not_moved == {NotMoved.TARGET_LOST: 1}
    assert len(fleet.migrations.figures.pauses_s) == 1


def test_a_full_target_is_given_up_in_time() -> None:
    """The target's KV is taken by a request that leaves no room for the copy; the source goes on undisturbed."""
    jobs = [Job(0.1 * place, tokens, 9000) for place, tokens in enumerate((90_000, 100_000, 10, 95_000))]
    scene, still = Scene(shape=f"1P2D@{PROFILE}", admit_limit_s=0.5), Scene(shape=f"1P2D@{PROFILE}")
    records = simulate(jobs, [], still).records
    assert [record.decode for record in records] == ["d000", "d001", "d000", "d001"]
    begins_s = (records[3].first_token_s or 0) + 0.1
    fleet = simulate(jobs, [Plan(begins_s, 0, 1)], scene)
    assert fleet.records == records
    assert fleet.migrations.figures.not_moved == {NotMoved.NOT_ADMITTED: 1}
    assert scene.heard == [f"{begins_s + 0.5!r} MigrationFailed(request_id='0', target='d001')"]


@pytest.mark.parametrize("physics", ["vllm", "ares-linear", "sibyl-held"])
@pytest.mark.parametrize("copy", list(CopyBy))
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), harm=st.booleans())
def test_no_token_is_lost_or_doubled(physics: str, copy: CopyBy, seed: int, harm: bool) -> None:
    """Random workloads, moves and crashes: exact counts, tokens in order, blocks conserved, books empty."""
    jobs, plans, failures = random_run(seed, harm)
    scene = Scene(physics=physics, copy=copy, failures=failures, admit_limit_s=0.05)
    fleet = simulate(jobs, plans, scene)
    for record, job in zip(fleet.records, jobs, strict=True):
        if record.broken or record.rejected:
            assert harm
            continue
        assert record.generated_tokens == job.output_tokens
        if physics == "vllm":
            times_s = fleet.token_times_s[record.index]
            if record.dispatches == 1:
                assert len(times_s) == job.output_tokens
            assert times_s == sorted(times_s)
    fleet.world.check_blocks()
    assert fleet.open_requests == 0
    assert len(fleet.director.ledger) == 0
    assert all(fleet.director.ledger.requests[stage].sum() == 0 for stage in Stage)
    figures = summarise(fleet, Objective())
    assert figures["migrations"] == sum("Migrated(" in line for line in scene.heard)
    told = len(scene.heard) + fleet.migrations.figures.not_moved[NotMoved.ENDED]
    assert told == figures["migrations"] + sum(fleet.migrations.figures.not_moved.values())


def random_run(seed: int, harm: bool) -> tuple[list[Job], list[Plan], tuple[Failure, ...]]:
    rng, now_s, jobs = random.Random(seed), 0.0, []
    for number in range(30):
        now_s += rng.expovariate(10.0)
        ids = [rng.randint(0, 2), 10 + number] if rng.random() < 0.5 else None
        jobs.append(Job(now_s, rng.randint(1, 900), rng.randint(1, 120), ids, 512 if ids else None))
    plans = [Plan(rng.uniform(0, now_s + 4), rng.randrange(30), rng.randrange(3)) for _ in range(60)]
    failures = [crash(rng.uniform(0, now_s + 3), f"d00{n}", rng.uniform(0.01, 1)) for n in range(3)] if harm else []
    return jobs, plans, tuple(failures)


@pytest.mark.rotating(3)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), harm=st.booleans(), copy=st.sampled_from(list(CopyBy)))
def test_leaping_engines_move_requests_as_stepping_ones_do(seed: int, harm: bool, copy: CopyBy) -> None:
    jobs, plans, failures = random_run(seed, harm)
    runs, logs = [], []
    for stepwise in (False, True):
        scene = Scene(copy=copy, failures=failures, stepwise=stepwise, admit_limit_s=0.05)
        runs.append(simulate(jobs, plans, scene))
        logs.append(scene.heard)
    assert logs[0] == logs[1]
    assert runs[0].records == runs[1].records
    assert runs[0].token_times_s == runs[1].token_times_s
    assert runs[0].migrations.figures == runs[1].migrations.figures
