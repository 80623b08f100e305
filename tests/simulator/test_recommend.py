"""`ballast_sim.recommend`: budgets, layouts by arithmetic, the rule of choice, manifests."""

import math
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ballast_api.loading import load_manifest
from ballast_api.policy_fit import engine_misfits
from ballast_api.serving_pool import ServingPool
from ballast_core.profiles import SHIPPED_PROFILES, HardwareProfile
from ballast_core.profiles.capacity import LengthStatistics, decode_rps
from ballast_sim.recommend.budget import BudgetError, Hardware, parse_budget
from ballast_sim.recommend.candidates import Candidate, ranked
from ballast_sim.recommend.layouts import MOST_LAYOUTS, Layout, Part, layouts, shortlist
from ballast_sim.recommend.manifests import resources, to_yaml
from ballast_sim.recommend.question import Question
from ballast_sim.recommend.search import Answer, Effort
from ballast_sim.recommend.variants import Variant, default_variant, variants
from ballast_sim.simulation.inputs.objective import Objective
from ballast_sim.simulation.inputs.shapes import parse_shape
from ballast_sim.simulation.inputs.source import WorkloadSource

A100, H20 = SHIPPED_PROFILES["a100-qwen3-32b"], SHIPPED_PROFILES["h20-qwen3-32b"]
CHAT = LengthStatistics(input_tokens=1000, output_tokens=200, input_pairs=1e6, context_tokens=1100)
SLO = Objective(ttft_s=2.0, tpot_s=0.05)


def test_a_budget_counts_gpus_and_an_engine_may_take_several() -> None:
    assert parse_budget("a100=5, h20=8", "qwen3-32b") == (Hardware(A100, 2, 5), Hardware(H20, 8, 8))


def test_hardware_without_a_plain_profile_gets_the_one_of_fewest_gpus() -> None:
    assert parse_budget("h20=4", "llama3-70b")[0].profile.name == "h20-llama3-70b-tp2"


@pytest.mark.parametrize(
    ("text", "model", "words"),
    [
        ("a100", "qwen3-32b", ("budget", "a100=4,h20=8")),
        ("a100=0", "qwen3-32b", ("budget", "1 to")),
        ("a100=x", "qwen3-32b", ("budget", "'a100=x'")),
        ("b200=8", "qwen3-32b", ("budget", "'b200'", "qwen3-32b")),
        ("a100=1", "qwen3-32b", ("takes 2 GPUs", "a100-qwen3-32b")),
        ("h20=1,h20-qwen3-32b=2", "qwen3-32b", ("named twice",)),
    ],
)
def test_a_budget_that_cannot_work_names_option_and_fix(text: str, model: str, words: tuple[str, ...]) -> None:
    with pytest.raises(BudgetError) as error:
        parse_budget(text, model)
    assert all(word in str(error.value) for word in words)


@pytest.mark.rotating(3)
@given(a100=st.integers(1, 40), h20=st.integers(0, 40), tpot_s=st.one_of(st.none(), st.floats(0.001, 1.0)))
def test_layouts_use_every_engine_once_and_come_roomiest_first(a100: int, h20: int, tpot_s: float | None) -> None:
    hardware = [Hardware(profile, count, count) for profile, count in ((A100, a100), (H20, h20)) if count]
    every = layouts(hardware, CHAT, 5.0, tpot_s)
    assert every[-1].colocated
    split = every[:-1]
    assert len(split) <= MOST_LAYOUTS
    assert [layout.headroom for layout in split] == sorted((layout.headroom for layout in split), reverse=True)
    for layout in every:
        assert sum(part.count for part in layout.parts) == a100 + h20
        assert len(parse_shape(layout.shape)) == a100 + h20
    assert len({layout.shape for layout in every}) == len(every)


def test_a_tpot_threshold_bounds_the_batch_that_counts() -> None:
    free = decode_rps(H20, CHAT, None)
    sequences = min(H20.max_num_seqs, int(0.9 * H20.kv_tokens / CHAT.context_tokens))
    step_s = H20.step_s(sequences, sequences * CHAT.context_tokens, 0, sequences)
    assert free == pytest.approx(sequences / step_s / CHAT.output_tokens)
    bounded = [decode_rps(H20, CHAT, tpot_s) for tpot_s in (0.018, 0.02, 0.025, 1.0)]
    assert bounded == sorted(bounded)
    assert bounded[0] < free == bounded[-1]


def rooms(*headrooms: float) -> list[Layout]:
    return [Layout((Part("P", A100, number + 1), Part("D", H20, 9)), room) for number, room in enumerate(headrooms)]


def test_a_layout_far_below_the_traffic_is_not_simulated() -> None:
    """Where another one carries twice as much; the four roomiest splits and the colocated layout are."""
    every = rooms(1.9, 1.8, 0.9, 0.8, 0.7, 1.5)
    assert shortlist(every) == ([every[0], every[1], every[5]], [every[2], every[3]])
    crowded = rooms(0.3, 0.2, 0.14, 0.25)
    assert shortlist(crowded) == ([crowded[0], crowded[1], crowded[3]], [crowded[2]])
    roomy = rooms(9.0, 3.0, 1.1, 5.0)
    assert shortlist(roomy) == (roomy, [])


def candidate(name: str, attainment: float, ttft_s: float, extras: int = 0, shape: int = 1) -> Candidate:
    layout = Layout((Part("P", A100, shape), Part("D", H20, 2)), 1.0)
    variant = Variant(name, default_variant().spec, extras)
    figures = {"attainment": attainment, "ttft_s": {"p99": ttft_s}, "tpot_s": {"p99": 0.02}}
    return Candidate(layout, variant, (figures,))


def test_the_highest_attainment_wins() -> None:
    order = ranked([candidate("a", 0.9, 1.0), candidate("b", 0.99, 1.9)], SLO)
    assert [each.variant.name for each in order] == ["b", "a"]


def test_more_parts_must_show_beyond_noise() -> None:
    plain, fancy = candidate("plain", 0.990, 1.01), candidate("fancy", 0.991, 1.0, extras=1)
    assert ranked([fancy, plain], SLO)[0] is plain
    better = candidate("better", 0.996, 0.8, extras=1)
    assert ranked([plain, better], SLO)[0] is better


def test_no_candidate_that_misses_the_attainment_comes_before_one_that_reaches_it() -> None:
    """However alike the two are; where none reaches it, the fewest parts win."""
    plain, fancy = candidate("plain", 0.9895, 1.0), candidate("fancy", 0.9905, 1.0, extras=1)
    assert ranked([plain, fancy], SLO, 0.99)[0] is fancy
    assert ranked([plain, fancy], SLO, 0.995)[0] is plain
    rounded, exact = candidate("rounded", 0.98999, 0.5), candidate("exact", 0.99, 1.0)
    assert ranked([rounded, exact], SLO, 0.99)[0] is exact


def test_a_candidate_without_a_completed_request_comes_last() -> None:
    """It has no percentiles."""
    figures = {"attainment": 0.0, "ttft_s": {"p99": None}, "tpot_s": {"p99": None}}
    nothing = Candidate(Layout((Part("C", A100, 2),), 1.0), default_variant(), (figures,))
    assert nothing.strain(SLO) == math.inf
    late = candidate("late", 0.0, 90.0)
    assert ranked([nothing, late], SLO) == [late, nothing]
    assert ranked([nothing], SLO) == [nothing]


def test_variants_start_with_the_default_and_differ() -> None:
    for layout in (Layout((Part("C", A100, 2),), 1.0), Layout((Part("P", A100, 1), Part("D", H20, 2)), 1.0)):
        for shared in (False, True):
            tried = variants(layout, shares_prefixes=shared)
            assert tried[0] == default_variant()
            specs = [each.spec.dump() for each in tried]
            assert all(specs.count(spec) == 1 for spec in specs)
            assert len({each.name for each in tried}) == len(tried)


def answer_of(parts: tuple[Part, ...], variant: Variant | None = None) -> Answer:
    question = Question(WorkloadSource(), (Hardware(A100, 2, 4), Hardware(H20, 8, 8)), SLO, 0.99)
    best = Candidate(Layout(parts, 1.0), variant or default_variant(), ({"attainment": 1.0},))
    return Answer(question, 5.0, CHAT, False, 2000, None, (best,), (), (), Effort(1, 2000))


def own(name: str) -> HardwareProfile:
    """A profile of the user's."""
    return replace(H20, name=name)


def test_what_is_tried_together_is_carried_out_or_says_why_not() -> None:
    """Engines, too, are told what a policy needs of them."""
    together = (Part("C", A100, 2), Part("C", H20, 8))
    tried = variants(Layout(together, 1.0), shares_prefixes=True)
    assert [each.name for each in tried if each.obstacle] == ["libra partition"]
    assert any(each.spec.partition is not None and not each.obstacle for each in tried)
    for each in tried:
        made = resources(answer_of(together, each), name="mine", model="Qwen/Qwen3-32B", image="vllm/vllm-openai:v1")
        (pool,) = [item for item in load_manifest(to_yaml(made, [])) if isinstance(item, ServingPool)]
        engine = pool.spec.engine
        assert not engine_misfits(each.spec.build(), engine.args, engine.kv_connector.config)


@pytest.mark.parametrize(
    ("parts", "pools"),
    [
        ((Part("P", A100, 2), Part("D", H20, 8)), {"prefill": ("Prefill", 2), "decode": ("Decode", 8)}),
        (
            (Part("P", A100, 2), Part("P", H20, 3), Part("D", H20, 5)),
            {"prefill-a100": ("Prefill", 2), "prefill-h20": ("Prefill", 3), "decode": ("Decode", 5)},
        ),
        ((Part("C", A100, 2), Part("C", H20, 8)), {"flexible-a100": ("Flexible", 2), "flexible-h20": ("Flexible", 8)}),
        (
            (Part("P", A100, 2), Part("P", SHIPPED_PROFILES["a100-qwen3-32b-tp4"], 1), Part("D", H20, 5)),
            {"prefill-a100": ("Prefill", 2), "prefill-a100-2": ("Prefill", 1), "decode": ("Decode", 5)},
        ),
        (
            (Part("C", own("rack.2-x"), 2), Part("C", own("rack-x"), 3), Part("C", own("rack-y"), 4)),
            {
                "flexible-rack-2": ("Flexible", 2),
                "flexible-rack": ("Flexible", 3),
                "flexible-rack-3": ("Flexible", 4),
            },
        ),
        (
            (Part("C", own("rtxpro6000.server-x"), 2), Part("C", own("rtxpro6000.server-y"), 3)),
            {"flexible-rtxpro6000": ("Flexible", 2), "flexible-rtxpro600-2": ("Flexible", 3)},
        ),
    ],
)
def test_manifests_are_valid_and_say_what_was_simulated(
    parts: tuple[Part, ...], pools: dict[str, tuple[str, int]]
) -> None:
    made = resources(answer_of(parts), name="mine", model="Qwen/Qwen3-32B", image="vllm/vllm-openai:v1")
    text = to_yaml(made, ["a line", "and the trace a\nkind: b\u2028c: d"])
    assert text.startswith("# a line\n# and the trace a\n# kind: b\n# c: d\n")
    assert [item["kind"] for item in yaml.safe_load_all(text)][-2:] == ["SchedulingPolicy", "ServingPool"]
    kinds = {resource.kind_name for resource in load_manifest(text)}
    assert kinds == {"HardwareProfile", "ServiceLevelObjective", "SchedulingPolicy", "ServingPool"}
    spec = made[-1]["spec"]
    assert {pool["name"]: (pool["role"], pool["replicas"]) for pool in spec["pools"]} == pools
    assert spec["gpuBudget"] == 12
    profiles = {item["metadata"]["name"]: item["spec"] for item in made if item["kind"] == "HardwareProfile"}
    assert {part.profile.name for part in parts} == profiles.keys()
