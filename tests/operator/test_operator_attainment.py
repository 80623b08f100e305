"""SLOMet and the figures of attainment: from what gateways counted to the status, and how often that is written."""

from __future__ import annotations

from typing import Any

import pytest

from ballast_api.attainment_report import AttainmentReport, ObjectiveReport
from ballast_api.loading import parse_settings
from ballast_core.attainment import WINDOWS_S, Counts, Objective, Threshold
from ballast_operator.gateways.board import SHOW_S, Board
from ballast_operator.gateways.measured import Answer, Followed, Measured, measured
from ballast_operator.kinds import Manifest
from ballast_operator.observed import Observed
from ballast_operator.planning.plan import plan
from ballast_operator.status.attainment import following
from tests.support.object_store import ObjectStore
from tests.support.operator_builders import (
    NAMESPACE,
    all_ready,
    objective,
    objectives,
    observed,
    profile,
    reconciler,
    serving_pool,
    status_of,
)

GOLD = Objective("gold", ttft_s=1.0, tpot_s=0.1)
REST = Objective("rest", e2e_s=60.0, target=0.9)
MANIFESTS = objectives(
    objective("gold", ttftS=1.0, tpotS=0.1, match={"headers": [{"name": "x-tier", "value": "gold"}]}, priority=-3),
    objective("rest", e2eS=60.0, attainment=0.9),
)
REFS = [{"name": "gold"}, {"name": "rest"}]


def answer(name: str = "gateway-a", **joint: Counts) -> Answer:
    """One gateway's counts of gold and rest, the same in each window; those of each threshold are the joint ones."""
    reports = []
    for each in (GOLD, REST):
        counts = joint.get(each.name, Counts())
        reports.append(ObjectiveReport.of(each, {w: dict.fromkeys(Threshold, counts) for w in WINDOWS_S}))
    return Answer(name, AttainmentReport(unix_s=1.0, since_unix_s=0.0, objectives=tuple(reports)))


SILENT = Answer("gateway-b", problem="no answer (ConnectTimeoutError)")


def situation(*answers: Answer, status: Manifest | None = None, **more: Any) -> Observed:
    found = measured((GOLD, REST), answers) if answers else None
    pool = serving_pool(sloRefs=REFS, status=status)
    return observed(pool, children=all_ready(), **{"objectives": MANIFESTS, "measured": found, **more})


def slo_met(status: Manifest) -> tuple[str, str, str]:
    item = next(item for item in status["conditions"] if item["type"] == "SLOMet")
    return item["status"], item["reason"], item["message"]


def test_objectives_reach_the_gateways_settings_in_the_order_of_the_spec() -> None:
    """As they were written; the file reads back."""
    found = plan(situation())
    config = next(item for item in found.apply if item["kind"] == "ConfigMap")
    settings = parse_settings(config["data"]["gateway.yaml"])
    assert [each.to_core(each.name) for each in settings.objectives] == [
        Objective("gold", ttft_s=1.0, tpot_s=0.1, priority=-3),
        REST,
    ]
    assert settings.objectives[0].match.headers[0].value == "gold"


def test_one_objective_by_its_own_field_is_as_a_list_of_one() -> None:
    """`sloRef` goes on to work."""
    several, one = ({"sloRefs": [{"name": "rest"}]}, {"sloRef": {"name": "rest"}})
    texts = [
        next(
            item["data"]
            for item in plan(observed(serving_pool(**spec), objectives=MANIFESTS)).apply
            if item["kind"] == "ConfigMap"
        )
        for spec in (several, one)
    ]
    assert texts[0] == texts[1]


def test_gateways_stay_as_they_are_while_an_objective_is_missing() -> None:
    """One that was deleted changes no running gateway; the problem names its place in the list."""
    found = plan(situation(objectives={"gold": MANIFESTS["gold"]}))
    assert not {("ConfigMap", "chat-gateway"), ("Deployment", "chat-gateway")} & {
        (item["kind"], item["metadata"]["name"]) for item in found.apply
    }
    assert found.prune == ()
    assert [problem.field for problem in found.problems] == ["spec.sloRefs[1]"]
    assert slo_met(status_of(situation(objectives={})))[:2] == ("Unknown", "SLONotFound")


CASES: list[tuple[str, tuple[Answer, ...], tuple[str, str], list[str]]] = [
    (
        "met by both classes",
        (answer(gold=Counts(2000, 2), rest=Counts(500, 10)),),
        ("True", "SLOMet"),
        ["gold: 99.9 %", "of 2002 requests in 5 min", "target 99 %", "rest: 98.0 %"],
    ),
    (
        "missed by one: it is named with its thresholds",
        (answer(gold=Counts(900, 100), rest=Counts(500, 10)),),
        ("False", "SLOMissed"),
        ["gold: 90.0 % (87.9 to 91.8)", "each alone: TTFT 90.0 %, TPOT 90.0 %"],
    ),
    (
        "two gateways sum up",
        (answer(gold=Counts(1000)), answer("gateway-b", gold=Counts(800, 200), rest=Counts(300))),
        ("False", "SLOMissed"),
        ["of 2000 requests"],
    ),
    (
        "one gateway is silent",
        (answer(gold=Counts(1000), rest=Counts(300)), SILENT),
        ("True", "SLOMet"),
        ["partial", "gateway-b: no answer"],
    ),
    ("none answers", (SILENT,), ("Unknown", "NotMeasured"), ["none of 1 gateways", "gateway-b: no answer"]),
    ("no traffic", (answer(),), ("Unknown", "NoTraffic"), ["gold: no request ended in 60 min"]),
    ("a quiet class is no miss", (answer(gold=Counts(1000)),), ("True", "SLOMet"), ["rest: no request ended"]),
    ("too few", (answer(gold=Counts(3), rest=Counts(2)),), ("Unknown", "TooFewRequests"), ["100.0 % (31.0 to 100.0)"]),
    (
        "outputs are not seen",
        (answer(gold=Counts(0, 0, 900), rest=Counts(300)),),
        ("Unknown", "OutputsUnseen"),
        ["900 of them unseen"],
    ),
]


@pytest.mark.parametrize(
    ("answers", "expected", "words"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_the_condition_says_what_was_counted(
    answers: tuple[Answer, ...], expected: tuple[str, str], words: list[str]
) -> None:
    """Status and reason, and the figures for people."""
    found = slo_met(status_of(situation(*answers)))
    assert found[:2] == expected
    assert [word for word in words if word not in found[2]] == []


def test_the_status_has_each_class_and_the_column_the_worst() -> None:
    """By the distance from its target: 95 % of 90 % is better than 98 % of 99 %."""
    status = status_of(situation(answer(gold=Counts(980, 20), rest=Counts(950, 50))))
    gold, rest = status["objectives"]
    assert (gold["name"], gold["met"], gold["attainment"], gold["requests"]) == ("gold", "False", 0.98, 1000)
    assert gold["lower"] < 0.98 < gold["upper"] < 0.99
    assert (rest["met"], rest["target"], rest["windowS"]) == ("True", 0.9, 300)
    assert (status["attainment"], status["display"]["sloPercent"]) == (0.98, "98.0")


def test_what_was_decided_stays_until_evidence_speaks_against_it() -> None:
    """By the status that an earlier look has written, also that of an earlier operator; noise changes nothing."""
    first = status_of(situation(answer(gold=Counts(2000), rest=Counts(2000))))
    near = status_of(situation(answer(gold=Counts(198, 2), rest=Counts(2000)), status=first))
    assert slo_met(near)[:2] == ("True", "SLOMet")
    fresh = status_of(situation(answer(gold=Counts(198, 2), rest=Counts(2000))))
    assert slo_met(fresh)[:2] == ("Unknown", "TooFewRequests")
    worse = status_of(situation(answer(gold=Counts(196, 4), rest=Counts(2000)), status=near))
    assert slo_met(worse)[:2] == ("Unknown", "TooFewRequests")


def test_an_operator_that_starts_anew_leaves_the_figures_until_it_has_asked() -> None:
    """Nothing flips to Unknown for a restart."""
    before = status_of(situation(answer(gold=Counts(900, 100), rest=Counts(2000))))
    after = status_of(situation(status=before))
    assert slo_met(after) == slo_met(before)
    assert (after["objectives"], after["attainment"]) == (before["objectives"], before["attainment"])
    assert slo_met(status_of(situation()))[:2] == ("Unknown", "NotMeasured")


@pytest.mark.parametrize(
    "answers",
    [
        pytest.param((), id="no-gateway"),
        pytest.param((SILENT,), id="silent"),
        pytest.param((answer(),), id="no-counts"),
        pytest.param((answer(gold=Counts(500)),), id="one-class"),
        pytest.param((answer(gold=Counts(2000), rest=Counts(2000)),), id="met"),
        pytest.param((answer(gold=Counts(900, 100), rest=Counts(2000)),), id="missed"),
    ],
)
def test_a_restart_of_a_settled_serving_pool_writes_nothing(answers: tuple[Answer, ...]) -> None:
    """Neither before its first answer nor after it: what is known stays, and the answer is the same."""
    store = ObjectStore(profile("a100"), profile("h20"), *MANIFESTS.values(), serving_pool(sloRefs=REFS))
    name = (NAMESPACE, "chat")
    for restart in range(3):
        board = Board()
        looks = reconciler(store, board=board)
        before = len(store.writes)
        for _ in range(2):
            looks.serving_pool(*name)
            store.run_deployments()
        assert board.answered(name, board.followed()[name], of(*answers), 0.0)
        for _ in range(2):
            looks.serving_pool(*name)
        assert store.writes[before:] == [] or restart == 0


def test_what_another_spec_was_measured_by_is_not_kept() -> None:
    """Another generation without a count, or a reason that no gateway gave."""
    quiet = status_of(situation(measured=of()))
    assert slo_met(quiet) == ("Unknown", "NotMeasured", "no gateway runs")
    edited = serving_pool(sloRefs=REFS, generation=2, status=quiet)
    again = status_of(observed(edited, children=all_ready(), objectives=MANIFESTS))
    assert slo_met(again)[2] == "no gateway has been asked yet"
    lost = status_of(observed(serving_pool(sloRefs=REFS), children=all_ready()))
    assert slo_met(lost)[1] == "SLONotFound"
    assert slo_met(status_of(situation(status=lost)))[2] == "no gateway has been asked yet"


def test_a_gateway_that_goes_by_older_thresholds_does_not_count() -> None:
    """Its counts answer another question."""
    newer = Objective("gold", ttft_s=0.5, tpot_s=0.1)
    found = measured((newer,), [answer(gold=Counts(1000))])
    assert (found.classes, found.problems) == ((), ("gold: 1 of 1 gateways do not go by it yet",))


def of(*answers: Answer) -> Measured:
    return measured((GOLD, REST), answers)


def test_a_status_is_due_for_news_at_once_and_for_figures_now_and_then() -> None:
    """At most one a half minute while nothing but figures changes, and none while they read the same."""
    board, name, followed = Board(), (NAMESPACE, "chat"), Followed("uid", (GOLD, REST), b"t" * 32)
    board.follow(*name, followed)
    steady = answer(gold=Counts(10_000, 10), rest=Counts(1000))
    assert board.answered(name, followed, of(steady), 100.0)
    assert not board.answered(name, followed, of(steady), 100.0 + 2 * SHOW_S)
    slightly = answer(gold=Counts(10_001, 10), rest=Counts(1003))
    assert not board.answered(name, followed, of(slightly), 100.0 + 3 * SHOW_S)
    other = answer(gold=Counts(10_000, 40), rest=Counts(1000))
    board.answered(name, followed, of(other), 300.0)
    again = answer(gold=Counts(10_000, 60), rest=Counts(1000))
    assert not board.answered(name, followed, of(again), 300.0 + SHOW_S - 1)
    assert board.shown(*name) == of(other)
    missed = answer(gold=Counts(9_000, 1000), rest=Counts(1000))
    assert board.answered(name, followed, of(missed), 300.0 + SHOW_S - 1)
    assert board.answered(name, followed, of(missed, SILENT), 300.0 + SHOW_S)
    assert board.answered(name, followed, of(answer(), SILENT), 300.0 + SHOW_S)
    board.follow(*name, None)
    assert (board.shown(*name), board.followed()) == (None, {})
    assert not board.answered(name, followed, of(steady), 900.0)


def test_a_look_asks_for_what_the_spec_names_and_settles() -> None:
    """The reconciler follows the pool; new counts on the board are one status more, and the next look writes none."""
    board = Board()
    store = ObjectStore(profile("a100"), profile("h20"), *MANIFESTS.values(), serving_pool(sloRefs=REFS))
    looks = reconciler(store, board=board)
    looks.serving_pool(NAMESPACE, "chat")
    store.run_deployments()
    looks.serving_pool(NAMESPACE, "chat")
    followed = board.followed()[NAMESPACE, "chat"]
    assert [each.name for each in followed.objectives] == ["gold", "rest"]
    found = of(answer(gold=Counts(900, 100), rest=Counts(1000)))
    assert board.answered((NAMESPACE, "chat"), followed, found, 0.0)
    before = len(store.writes)
    for _ in range(3):
        looks.serving_pool(NAMESPACE, "chat")
    written = [line.partition(" ")[0] for line in store.writes[before:]]
    assert written == ["status", "event"]
    assert store.events[-1]["reason"] == "SLOMissed"
    del store.objects["ServingPool", NAMESPACE, "chat"]
    looks.serving_pool(NAMESPACE, "chat")
    assert board.followed() == {}


def test_without_an_objective_no_gateway_is_asked() -> None:
    """Nor while the token is unknown."""
    bare = observed(serving_pool(), children=all_ready())
    assert following(bare, plan(bare)) is None
    assert slo_met(status_of(bare))[:2] == ("Unknown", "NoSLO")
