"""What gateways learn of engines reaches the HardwareProfile's status and scaling, and is written seldom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic.alias_generators import to_camel

from ballast_api.hardware_profile import SPEEDS
from ballast_api.profile_report import DecodeStep, LearnedProfile, ProfilesReport, of_gateways
from ballast_core.model import Role
from ballast_core.profiles import SHIPPED_PROFILES, UNINFORMED_PROFILE
from ballast_operator.kinds import HARDWARE_PROFILE, Manifest
from ballast_operator.profiles.learned import Accuracy, Lesson, Taught, corrected, judged
from ballast_operator.profiles.learning import Learner
from ballast_operator.profiles.lessons import SHOW_S, Lessons
from ballast_operator.reconcile import Reconciler
from ballast_operator.scaling.steered import Steered, SteeredPool
from ballast_operator.settings import OperatorSettings
from ballast_operator.status.accepted import profile_status
from tests.operator.test_operator_collecting import CHAT, Pods, gateway_pod, gateways, script
from tests.support.object_store import ObjectStore
from tests.support.operator_builders import DEFAULTS, NAMESPACE, profile
from tests.support.pod_api_calls import TOKEN
from tests.support.scaled_fleet import Fleet, autoscaled, hardware
from tests.support.scripted_engine import scripted_engine

H200 = SHIPPED_PROFILES["h200-qwen3-32b"]
FIELDS = DecodeStep.__struct_fields__
DECLARED = DecodeStep(**{name: getattr(H200, name) for name in FIELDS})
TAUGHT = Taught("uid", "Qwen/Qwen3-32B", frozenset({"h200"}), TOKEN)
NOW, LATER = "2026-11-21T06:00:00Z", "2026-11-21T07:00:00Z"


def learned(
    step: float | None = 1.0, prefill: float | None = None, *, observations: int = 200, **more: Any
) -> LearnedProfile:
    """Engines whose steps, and prefills, take so many times as long as declared."""
    found = LearnedProfile(
        name="h200",
        declared=DECLARED,
        declared_s_ms_per_pair=H200.s_ms_per_pair,
        prefill_ratio=prefill,
        prefills=0 if prefill is None else 100,
    )
    if step is not None:
        slower = DecodeStep(**{name: step * getattr(DECLARED, name) for name in FIELDS})
        found = msgspec.structs.replace(found, learned=slower, step_ratio=step, observations=observations, endpoints=2)
    return msgspec.structs.replace(found, **more)


def lesson(
    step: float | None = 1.0, prefill: float | None = None, before: Accuracy = Accuracy.UNKNOWN, **more: Any
) -> Lesson:
    return judged(Lesson(learned(step, prefill, **more), model="m"), before)


# --- gateways together ----------------------------------------------------------------------------------------------


def test_gateways_count_by_what_they_have_observed() -> None:
    few, many = learned(2.0, 3.0, observations=100), learned(1.0, 1.0, observations=300)
    found = of_gateways([ProfilesReport(unix_s=1.0, profiles=(each,)) for each in (few, many)])["h200"]
    assert found.step_ratio == pytest.approx(1.25)
    assert found.prefill_ratio == pytest.approx(2.0)
    assert (found.observations, found.prefills, found.endpoints) == (400, 200, 2)
    assert found.learned is not None
    assert found.learned.a_ms == pytest.approx(1.25 * DECLARED.a_ms)


def test_a_gateway_that_goes_by_older_numbers_is_left_out() -> None:
    older = learned(4.0, declared=msgspec.structs.replace(DECLARED, a_ms=1.0), observations=100)
    reports = [ProfilesReport(unix_s=1.0, profiles=(each,)) for each in (older, learned(1.0, observations=300))]
    found = of_gateways(reports)["h200"]
    assert (found.step_ratio, found.declared) == (1.0, DECLARED)


# --- judgement ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "prefill", "before", "expected"),
    [
        (1.1, None, Accuracy.UNKNOWN, Accuracy.ACCURATE),
        (1.3, None, Accuracy.UNKNOWN, Accuracy.SLOWER),
        (0.7, None, Accuracy.UNKNOWN, Accuracy.FASTER),
        (1.1, 1.6, Accuracy.UNKNOWN, Accuracy.SLOWER),
        (None, 0.5, Accuracy.ACCURATE, Accuracy.FASTER),
        (1.22, None, Accuracy.ACCURATE, Accuracy.ACCURATE),
        (1.22, None, Accuracy.SLOWER, Accuracy.SLOWER),
        (1.18, None, Accuracy.SLOWER, Accuracy.ACCURATE),
        (None, None, Accuracy.SLOWER, Accuracy.UNKNOWN),
    ],
)
def test_a_profile_is_off_beyond_a_quarter_until_it_is_within_a_fifth(
    step: float | None, prefill: float | None, before: Accuracy, expected: Accuracy
) -> None:
    assert lesson(step, prefill, before).accuracy is expected


def test_few_observations_and_bad_predictions_say_nothing() -> None:
    assert lesson(3.0, observations=59).accuracy is Accuracy.UNKNOWN
    assert lesson(3.0, median_error_ratio=0.6).accuracy is Accuracy.UNKNOWN
    assert lesson(None, 3.0, prefills=59).accuracy is Accuracy.UNKNOWN


# --- status ---------------------------------------------------------------------------------------------------------


def accuracy_of(status: Manifest) -> tuple[str, str]:
    (found,) = [each for each in status["conditions"] if each["type"] == "ProfileAccurate"]
    return found["status"], found["reason"]


def test_a_status_shows_what_was_learned_beside_what_is_declared() -> None:
    lessons = {("team", "chat"): lesson(2.0, 1.5), ("team", "other"): lesson(None, None)}
    status = profile_status(profile("h200"), NOW, ["team/chat", "team/other"], lessons)
    assert accuracy_of(status) == ("False", "SlowerThanDeclared")
    first, second = status["learned"]
    assert (first["servingPool"], first["model"], first["accurate"]) == ("team/chat", "m", False)
    assert (first["stepRatio"], first["prefillRatio"], first["stepObservations"]) == (2.0, 1.5, 200)
    assert first["step"]["aMs"] == pytest.approx(2 * H200.a_ms, rel=0.01)
    assert "accurate" not in second
    assert [each["type"] for each in status["conditions"]] == ["Accepted", "ProfileAccurate"]


def test_prefills_that_are_shown_are_those_that_were_learned_after_an_edit_too() -> None:
    """Until gateways have taken it: whoever copies the coefficients twice would correct twice."""
    lessons = {("team", "chat"): lesson(2.0, 1.5)}
    (told,) = profile_status(profile("h200"), NOW, ["team/chat"], lessons)["learned"]
    edited = profile("h200")
    edited["spec"] |= told["prefill"]
    (after,) = profile_status(edited, LATER, ["team/chat"], lessons)["learned"]
    assert after["prefill"] == told["prefill"]
    assert told["prefill"]["dMsPerToken"] == pytest.approx(1.5 * H200.d_ms_per_token, rel=0.01)


@pytest.mark.parametrize(
    ("lessons", "used_by", "expected"),
    [
        ({("team", "chat"): lesson(1.0)}, ["team/chat"], ("True", "AsDeclared")),
        ({("team", "chat"): lesson(0.5)}, ["team/chat"], ("False", "FasterThanDeclared")),
        ({("team", "chat"): lesson(None)}, ["team/chat"], ("Unknown", "TooFewObservations")),
        ({}, ["team/chat"], ("Unknown", "NotMeasured")),
        ({}, [], ("Unknown", "NotMeasured")),
    ],
)
def test_the_condition_says_whether_engines_are_as_declared(
    lessons: dict[tuple[str, str], Lesson], used_by: list[str], expected: tuple[str, str]
) -> None:
    assert accuracy_of(profile_status(profile("h200"), NOW, used_by, lessons)) == expected


def test_an_operator_that_starts_anew_keeps_what_the_last_one_wrote_until_it_has_asked() -> None:
    first = profile_status(profile("h200"), NOW, ["team/chat"], {("team", "chat"): lesson(2.0)})
    assert profile_status({**profile("h200"), "status": first}, LATER, ["team/chat"], None) == first
    # The API server sets what is left out to its default: a status without it would be written at every look.
    assert profile_status(profile("h200"), NOW, ["team/chat"], None)["learned"] == []


def test_what_an_operator_of_other_namespaces_has_written_stays() -> None:
    """Two operators that take turns come to rest."""

    def of(namespace: str) -> Callable[[str], bool]:
        return lambda user: user.startswith(f"{namespace}/")

    manifest = profile("h200")
    used_by = ["a/chat", "b/chat"]
    for _ in range(2):
        status = profile_status(manifest, NOW, used_by, {("a", "chat"): lesson(1.0)}, of("a"))
        manifest = {**manifest, "status": status}
        other = profile_status(manifest, NOW, used_by, {("b", "chat"): lesson(0.5, observations=300)}, of("b"))
        manifest = {**manifest, "status": other}
    assert profile_status(manifest, LATER, used_by, {("a", "chat"): lesson(1.0)}, of("a")) == other
    assert [each["servingPool"] for each in other["learned"]] == ["b/chat", "a/chat"]
    assert accuracy_of(other) == ("False", "FasterThanDeclared")


def test_a_status_is_written_for_news_only() -> None:
    lessons = Lessons()
    lessons.follow(*CHAT, TAUGHT)

    def answered(step: float, now_s: float) -> frozenset[str]:
        return lessons.answered(CHAT, "uid", {"h200": learned(step)}, now_s)

    assert not lessons.asked()
    assert answered(1.0, 0.0) == {"h200"}
    assert answered(1.2, 60.0) == frozenset()  # soon after
    assert answered(1.2, SHOW_S) == {"h200"}
    assert answered(1.21, 3 * SHOW_S) == frozenset()  # hardly another figure
    assert answered(1.5, 3 * SHOW_S + 60.0) == {"h200"}  # another judgement
    assert answered(1.22, 3 * SHOW_S + 120.0) == frozenset()
    assert lessons.answered(CHAT, "another uid", {"h200": learned(9.0)}, 9 * SHOW_S) == frozenset()
    assert lessons.shown("h200")[CHAT].accuracy is Accuracy.SLOWER
    lessons.follow(*CHAT, None)
    assert not lessons.shown("h200")


def test_what_an_earlier_operator_wrote_of_a_serving_pool_stays_until_that_is_asked() -> None:
    """Others have been asked already."""
    others = (NAMESPACE, "other")
    uses = ["/".join(each) for each in (CHAT, others)]
    written = profile_status(profile("h200"), NOW, uses, {CHAT: lesson(2.0), others: lesson(2.0)})
    store, lessons = ObjectStore({**profile("h200"), "status": written}), Lessons()
    for name in (CHAT, others):
        lessons.follow(*name, TAUGHT)
    looks = Reconciler(store, store, OperatorSettings(gateway=DEFAULTS), lambda: NOW, lambda: "token", lessons=lessons)

    def told() -> dict[str, float]:
        looks.referred(HARDWARE_PROFILE, None, "h200")
        learned = store.objects["HardwareProfile", None, "h200"]["status"]["learned"]
        return {each["servingPool"]: each["stepRatio"] for each in learned}

    lessons.answered(CHAT, "uid", {"h200": learned(1.5)}, 0.0)
    assert told() == {"/".join(CHAT): 1.5, "/".join(others): 2.0}
    lessons.answered(others, "uid", {}, 0.0)
    assert told() == {"/".join(CHAT): 1.5}


def test_one_event_for_each_judgement() -> None:
    lessons = Lessons()
    lessons.follow(*CHAT, TAUGHT)
    store = ObjectStore(profile("h200"))
    settings = OperatorSettings(gateway=DEFAULTS)
    looks = Reconciler(store, store, settings, lambda: NOW, lambda: "token", lessons=lessons)

    def look() -> Manifest:
        looks.referred(HARDWARE_PROFILE, None, "h200")
        found: Manifest = store.objects["HardwareProfile", None, "h200"]["status"]
        return found

    for number, step in enumerate((1.0, 1.1, 2.0, 2.5, 2.2, 2.0)):
        lessons.answered(CHAT, "uid", {"h200": learned(step)}, number * 2 * SHOW_S)
        look()
    said = [(each["type"], each["reason"]) for each in store.events if each["reason"] != "Accepted"]
    assert said == [("Normal", "AsDeclared"), ("Warning", "SlowerThanDeclared")]
    written = len(store.writes)
    look()
    assert len(store.writes) == written


# --- scaling --------------------------------------------------------------------------------------------------------


def pool_of(role: Role) -> SteeredPool:
    return SteeredPool(name=role.value, role=role, profile=H200, least=1, most=8, count=1)


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE, Role.FLEXIBLE])
def test_learned_numbers_take_the_place_of_declared_ones_that_are_off(role: Role) -> None:
    of = Steered(uid="u", mode="Auto", pools=(pool_of(role),))
    assert corrected(of, {H200.name: lesson(1.1, 1.1)}) == of
    (found,) = corrected(of, {H200.name: lesson(2.0, 3.0)}).pools
    assert found.profile.name == "h200-qwen3-32b as learned"
    prompts, decodes = found.profile.step_s(8192, 0, 8192.0**2 / 2, 0), found.profile.step_s(32, 32_000, 0, 32)
    if role is not Role.DECODE:
        assert prompts == pytest.approx(3.0 * H200.step_s(8192, 0, 8192.0**2 / 2, 0), rel=0.1)
    if role is not Role.PREFILL:
        assert decodes == pytest.approx(2.0 * H200.step_s(32, 32_000, 0, 32), rel=0.1)


def test_a_fleet_of_engines_that_are_slower_than_declared_is_made_larger() -> None:
    """Than it has to be with engines as declared."""
    fleet = Fleet(rate_rps=8.0)
    fleet.round(2)
    before = fleet.counts()
    (name, taught) = next(iter(fleet.lessons.followed().items()))
    fleet.lessons.answered(name, taught.uid, {"h200": learned(2.0, 2.0)}, 0.0)
    fleet.round(1)
    after = fleet.counts()
    assert all(after[pool] > before[pool] for pool in before)
    assert "h200 as learned" in fleet.decisions["data"]["records"]  # type: ignore[index]


def test_an_operator_that_restarts_decides_nothing_before_it_has_asked_what_was_learned() -> None:
    """Engines that are twice as fast as declared: by declared numbers the fleet would grow for some minutes."""
    fleet = Fleet(rate_rps=20.0, learned={"h200": learned(0.5, 0.5)})
    fleet.round(30)
    before = fleet.counts()
    fleet.restart()
    fleet.look()
    assert fleet.lessons.unasked() == {CHAT}
    fleet.changed.clear()
    fleet.scaler.steer()
    assert not fleet.changed
    fleet.round(2)
    assert fleet.counts() == before


def test_a_fleet_keeps_its_size_while_its_gateways_are_replaced() -> None:
    """What the last ones have learned counts until the new ones know as much, unless the profile is edited."""
    fleet = Fleet(rate_rps=20.0, learned={"h200": learned(0.5, 0.5)})
    fleet.round(30)
    before = fleet.counts()

    def answered(of: LearnedProfile) -> Accuracy:
        fleet.lessons.answered(CHAT, fleet.lessons.followed()[CHAT].uid, {"h200": of}, 0.0)
        return fleet.lessons.of(CHAT)["h200"].accuracy

    assert answered(learned(None)) is Accuracy.FASTER
    fleet.round(2)
    assert fleet.counts() == before
    assert answered(learned(1.0, 1.0, observations=60)) is Accuracy.ACCURATE
    edited = msgspec.structs.replace(DECLARED, a_ms=1.0)
    assert answered(learned(None, declared=edited)) is Accuracy.UNKNOWN


# --- profiles without a speed ---------------------------------------------------------------------------------------

GUESS = DecodeStep(**{name: getattr(UNINFORMED_PROFILE, name) for name in FIELDS})


def guessed(step: float | None, prefill: float | None, **more: Any) -> Lesson:
    """What was learned where nothing is declared: engines as fast as an H200, and prefills by the guess."""
    pairs_ms = UNINFORMED_PROFILE.s_ms_per_pair
    known = learned(step, prefill, declared=GUESS, declared_s_ms_per_pair=pairs_ms, guessed=True, **more)
    return judged(Lesson(known, model="m"), Accuracy.UNKNOWN)


@pytest.mark.parametrize(
    ("role", "step", "prefill", "known"),
    [
        (Role.PREFILL, None, 0.4, True),
        (Role.PREFILL, 1.0, None, False),
        (Role.DECODE, 1.0, None, True),
        (Role.DECODE, None, 0.4, False),
        (Role.FLEXIBLE, 1.0, 0.4, True),
        (Role.FLEXIBLE, 1.0, None, False),
        (Role.FLEXIBLE, None, 0.4, False),
    ],
)
def test_a_speed_that_nobody_declares_is_known_once_it_is_learned(
    role: Role, step: float | None, prefill: float | None, known: bool
) -> None:
    """Of the stages that a pool serves."""
    pool = replace(pool_of(role), profile=replace(UNINFORMED_PROFILE, name="h200"))
    (found,) = corrected(Steered(uid="u", mode="Auto", pools=(pool,)), {"h200": guessed(step, prefill)}).pools
    assert found.profile.speed_known is known
    if known and role is not Role.PREFILL:
        assert found.profile.step_s(32, 32_000, 0, 32) == pytest.approx(H200.step_s(32, 32_000, 0, 32), rel=0.2)
    if known and role is not Role.DECODE:
        assert found.profile.d_ms_per_token == pytest.approx(0.4 * UNINFORMED_PROFILE.d_ms_per_token, rel=0.2) or (
            role is Role.FLEXIBLE
        )


def test_the_status_says_what_was_learned_where_nothing_is_declared() -> None:
    """Without ratios to a guess of steps, and as nobody's error."""
    manifest = profile("h200")
    few = profile_status(manifest, NOW, ["team/chat"], {("team", "chat"): guessed(None, None)})
    assert accuracy_of(few) == ("Unknown", "TooFewObservations")
    status = profile_status(manifest, NOW, ["team/chat"], {("team", "chat"): guessed(1.0, 0.4)})
    assert accuracy_of(status) == ("True", "Learned")
    (told,) = status["learned"]
    assert not {"stepRatio", "prefillRatio", "accurate"} & set(told)
    assert told["step"]["aMs"] == pytest.approx(H200.a_ms, rel=0.01)
    assert "prefillRatio" not in told
    ratio = 0.4 * GUESS.d_ms_per_token
    assert told["prefill"]["dMsPerToken"] == pytest.approx(ratio, rel=0.01)


def test_a_fleet_of_unknown_speed_is_scaled_once_it_is_learned() -> None:
    speeds = {to_camel(name) for name in SPEEDS}
    unknown = hardware()
    unknown["spec"] = {key: value for key, value in unknown["spec"].items() if key not in speeds}
    fleet = Fleet(rate_rps=8.0, hardware=[unknown])
    fleet.round(3)
    before = fleet.counts()

    def condition() -> Manifest:
        status = fleet.store.objects["ServingPool", *CHAT]["status"]
        return next(each for each in status["conditions"] if each["type"] == "ScalingActive")

    assert set(before.values()) == {1}
    assert (condition()["status"], condition()["reason"]) == ("False", "SpeedUnknown")
    assert "h200" in condition()["message"]
    (name, taught) = next(iter(fleet.lessons.followed().items()))
    fleet.lessons.answered(name, taught.uid, {"h200": guessed(2.0, 2.0).learned}, 0.0)
    fleet.round(1)
    assert all(fleet.counts()[pool] > before[pool] for pool in before)
    assert condition()["reason"] == "Steered"


def test_what_was_learned_of_engines_that_were_replaced_counts_until_more_is_known() -> None:
    """After a rollout, or a night at zero: else nothing would be scaled just then. Of another model nothing is kept."""
    lessons = Lessons()
    lessons.follow(*CHAT, TAUGHT)

    def answered(known: Lesson) -> Lesson:
        lessons.answered(CHAT, "uid", {"h200": known.learned}, 0.0)
        return lessons.of(CHAT)["h200"]

    first = answered(guessed(1.0, 0.4))
    assert first.accuracy is Accuracy.LEARNED
    assert answered(guessed(None, None)).ratios == first.ratios
    assert answered(guessed(3.0, None, observations=59)).ratios == first.ratios
    later = answered(guessed(3.0, None, observations=60))
    assert (later.step_ratio, later.prefill_ratio) == (3.0, 0.4)
    lessons.follow(*CHAT, replace(TAUGHT, model="another"))
    assert answered(guessed(None, None)).accuracy is Accuracy.UNKNOWN


@pytest.mark.parametrize("known", [lesson(3.0, 3.0), guessed(3.0, 3.0)], ids=["declared", "guessed"])
def test_what_was_learned_beside_other_numbers_does_not_correct_new_ones(known: Lesson) -> None:
    """Until gateways have taken an edit, ratios are to the old numbers: copied ones would be corrected twice."""
    assert known.accuracy.corrects
    guess = replace(UNINFORMED_PROFILE, name="h200", a_ms=1.0)
    for edited in (replace(H200, d_ms_per_token=0.3), replace(H200, s_ms_per_pair=3 * H200.s_ms_per_pair), guess):
        of = Steered(uid="u", mode="Auto", pools=(replace(pool_of(Role.PREFILL), profile=edited),))
        assert corrected(of, {edited.name: known, "h200": known}) == of


def test_a_pool_of_unknown_speed_without_instances_hinders_nobody() -> None:
    """Another pool decodes; where none does, there is no decision."""
    unknown = hardware("new")
    unknown["spec"] = {key: value for key, value in unknown["spec"].items() if key not in map(to_camel, SPEEDS)}
    new = {**autoscaled("new", "Decode", 0), "hardware": "new"}
    pools = [autoscaled("prefill", "Prefill", 0), autoscaled("decode", "Decode", 0), new]
    to_zero = {"ratio": {"mode": "Auto", "scaleToZeroAfterS": 3000}}
    fleet = Fleet(rate_rps=8.0, pools=pools, spec=to_zero, hardware=[hardware(), unknown])
    fleet.round(4)
    assert fleet.counts()["new"] == 0
    assert fleet.counts()["decode"] > 0
    assert next(each for each in fleet.status["conditions"] if each["type"] == "ScalingActive")["status"] == "True"


# --- asking ---------------------------------------------------------------------------------------------------------


async def test_real_gateways_are_asked_and_a_silent_one_is_no_news(tmp_path: Path) -> None:
    async with (
        scripted_engine(script) as engine,
        gateways(tmp_path, engine.address, "127.0.0.2") as (port, _),
    ):
        api = Pods([gateway_pod("a", "127.0.0.2"), gateway_pod("b", "127.0.0.3")])
        changed: list[str] = []
        lessons = Lessons()
        lessons.follow(*CHAT, TAUGHT)
        learner = Learner(api, lessons, changed.append, admin_port=port)
        await asyncio.to_thread(learner.learn)
        assert lessons.asked()
        assert changed == []
        lessons.follow(NAMESPACE, "new", TAUGHT)
        assert lessons.unasked() == {(NAMESPACE, "new")}
        await asyncio.to_thread(learner.learn, new=True)
        assert not lessons.unasked()
        rounds = learner.rounds()
        rounds.start()
        assert rounds.alive()
        await asyncio.to_thread(rounds.stop)
        assert not rounds.alive()
