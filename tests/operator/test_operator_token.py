"""The pod API's token: made once, kept while it is usable, rotated so that no reader is ever without a common token.

1. A usable Secret is never written over, whatever its text.
2. At each step of a rotation, every two readers, of which one may still have the step before, accept what the other
   signs.
3. The token is in no status, Event, log line, and in no pod's template.
"""

from __future__ import annotations

import base64
import json
import logging
from datetime import datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_operator.kinds import Manifest
from ballast_operator.planning.plan import plan
from ballast_operator.reconcile import Reconciler, Result
from ballast_operator.settings import OperatorSettings
from ballast_operator.specs.token_secret import ANNOUNCED, SIGNING, STEP_S
from tests.support.object_store import ObjectStore
from tests.support.operator_builders import (
    DEFAULTS,
    FRESH_TOKEN,
    NAMESPACE,
    NOW,
    observed,
    profile,
    serving_pool,
    stored_condition,
)

ROTATE = "serving.ballast.dev/rotate-token"
KEY = ("Secret", NAMESPACE, "chat-gateway-token")
POOL_KEY = ("ServingPool", NAMESPACE, "chat")


class Operator:
    """The reconciler with a clock and with tokens that can be told apart."""

    def __init__(self) -> None:
        self.store = ObjectStore(serving_pool(gateway={"face": "Picker"}), profile("a100"), profile("h20"))
        self.now = datetime.fromisoformat(NOW)
        self.made = 0

    def look(self) -> Result:
        """One look of an operator that has just started."""
        chosen = OperatorSettings(gateway=DEFAULTS)
        return Reconciler(self.store, self.store, chosen, self._now, self._token).serving_pool(NAMESPACE, "chat")

    def after(self, seconds: float) -> Result:
        """A look some time later."""
        self.now += timedelta(seconds=seconds)
        return self.look()

    def rotate(self, value: str) -> Result:
        """The annotation gets a value."""
        self.store.objects[POOL_KEY]["metadata"]["annotations"] = {ROTATE: value}
        return self.look()

    def tokens(self) -> list[str]:
        """The Secret's, in their order."""
        return base64.b64decode(self.store.objects[KEY]["data"]["token"]).decode().split()

    def _now(self) -> str:
        return self.now.strftime("%Y-%m-%dT%H:%M:%SZ")

    def _token(self) -> str:
        self.made += 1
        return f"{self.made:064d}"


@pytest.fixture
def operator() -> Operator:
    made = Operator()
    made.look()
    return made


def secret(text: str | bytes, **more: object) -> Manifest:
    """One that is there, owned by the ServingPool of the builders."""
    (made,) = (item for item in plan(observed()).apply if item["kind"] == "Secret")
    data = base64.b64encode(text if isinstance(text, bytes) else text.encode()).decode()
    return {**made, "data": {"token": data}, **more}


def planned(found: Manifest | None) -> Manifest:
    """What the Secret must be where `found` is there."""
    (made,) = (item for item in plan(observed(token_secret=found)).apply if item["kind"] == "Secret")
    return made


def text_of(manifest: Manifest) -> str:
    return base64.b64decode(manifest["data"]["token"]).decode()


@pytest.mark.rotating(3)
@given(st.lists(st.text("abcdefgh0123456789-_", min_size=16, max_size=80), min_size=1), st.sampled_from(" \n\t"))
def test_a_usable_secret_is_kept_as_it_is(tokens: list[str], between: str) -> None:
    """Invariant 1, whoever has written it."""
    found = secret(between.join(tokens))
    assert planned(found)["data"] == found["data"]


@pytest.mark.parametrize(
    "found",
    [None, secret(""), secret("short"), secret("\n \n"), secret(b"\xff" * 32), secret("x", data={"token": "%"})]
    + [secret("x", data=data) for data in ({}, None, {"other": "eA=="})],
    ids=["none", "empty", "short", "blank", "no-text", "no-base64", "no-key", "no-data", "another-key"],
)
def test_one_that_is_missing_or_broken_is_made_anew(found: Manifest | None) -> None:
    """What gateways and agents would refuse to read."""
    assert text_of(planned(found)) == f"{FRESH_TOKEN}\n"


def test_a_secret_of_somebody_else_is_neither_read_nor_taken(operator: Operator) -> None:
    """The status names it."""
    theirs = {"apiVersion": "v1", "kind": "Secret", "data": {"token": base64.b64encode(b"t" * 32).decode()}}
    theirs["metadata"] = {"name": KEY[2], "namespace": NAMESPACE, "uid": "theirs"}
    operator.store.put(theirs)
    assert operator.look().failed
    assert operator.store.objects[KEY] == theirs
    assert stored_condition(operator.store, "Degraded")["reason"] == "NameConflict"


def test_labels_that_were_taken_away_come_back_and_the_token_stays(operator: Operator) -> None:
    """It is found by its name."""
    before = operator.tokens()
    del operator.store.objects[KEY]["metadata"]["labels"]
    operator.look()
    assert operator.tokens() == before
    assert operator.store.objects[KEY]["metadata"]["labels"]["serving.ballast.dev/serving-pool"] == "chat"


def test_a_rotation_goes_by_steps_and_looks_again_when_one_is_due(operator: Operator) -> None:
    """Announced, signing, alone; then all is quiet."""
    (old,) = operator.tokens()
    assert operator.look().requeue_s is not None  # the pods are not there
    operator.store.run_deployments()
    assert operator.look().requeue_s is None
    assert operator.rotate("1").requeue_s == STEP_S[ANNOUNCED]
    _, new = operator.tokens()
    assert operator.tokens() == [old, new]
    assert "Announced" in stored_condition(operator.store, "Degraded")["message"]
    assert operator.after(100).requeue_s == STEP_S[ANNOUNCED] - 100
    assert operator.tokens() == [old, new]
    assert operator.after(50).requeue_s == STEP_S[SIGNING]
    assert operator.tokens() == [new, old]
    assert operator.after(STEP_S[SIGNING] - 1).requeue_s == 1
    assert operator.after(1).requeue_s is None
    assert operator.tokens() == [new]
    writes = len(operator.store.writes)
    operator.look()
    operator.store.objects[POOL_KEY]["metadata"].pop("annotations")
    operator.look()
    assert operator.store.writes[writes:] == []
    assert operator.rotate("2").requeue_s == STEP_S[ANNOUNCED]
    assert operator.tokens()[0] == new


@pytest.mark.rotating(3)
@settings(max_examples=30)  # of up to thirty looks each
@given(st.lists(st.tuples(st.floats(0, 400), st.sampled_from(["", "1", "2", "3"])), min_size=1, max_size=30))
def test_whenever_somebody_asks_for_a_rotation_readers_understand_each_other(plan_of: list[tuple[float, str]]) -> None:
    """Invariant 2: from one text to the next, each one's first token is among the other's."""
    operator = Operator()
    operator.look()
    before = operator.tokens()
    written = operator.now
    for seconds, value in plan_of:
        operator.now += timedelta(seconds=seconds)
        operator.rotate(value)
        after = operator.tokens()
        if after != before:
            assert before[0] in after
            assert after[0] in before
            assert len(before) == 1 or (operator.now - written).total_seconds() >= min(STEP_S.values()) - 1
            before, written = after, operator.now


@pytest.mark.parametrize("since", ["soon", "2099-01-01T00:00:00Z"])
def test_a_step_without_its_time_begins_anew(operator: Operator, since: str) -> None:
    """Restored from a backup without annotations' sense, edited, or in the future, because the clock has been put back:
    nothing is dropped early, and nothing waits for that time."""
    operator.rotate("1")
    both = operator.tokens()
    operator.store.objects[KEY]["metadata"]["annotations"]["serving.ballast.dev/token-step-time"] = since
    assert operator.after(1000).requeue_s is not None
    assert operator.tokens() == both
    operator.after(STEP_S[ANNOUNCED])
    assert operator.tokens() == both[::-1]


def test_the_token_is_nowhere_but_in_its_secret(operator: Operator, caplog: pytest.LogCaptureFixture) -> None:
    """Invariant 3, through a whole rotation; templates do not change with it."""
    caplog.set_level(logging.DEBUG)
    deployments = {key: value for key, value in operator.store.objects.items() if key[0] == "Deployment"}
    seen = set(operator.tokens())
    operator.rotate("1")
    for _ in range(3):
        seen.update(operator.tokens())
        operator.after(max(STEP_S.values()))
    others = [value for key, value in operator.store.objects.items() if key != KEY]
    said = json.dumps([others, operator.store.events]) + caplog.text
    assert len(seen) == 2
    for token in seen:
        assert token not in said
        assert base64.b64encode(token.encode()).decode()[:40] not in said
    assert deployments == {key: value for key, value in operator.store.objects.items() if key[0] == "Deployment"}
    situation = observed(token_secret=operator.store.objects[KEY])
    assert FRESH_TOKEN not in repr(situation)
    assert operator.tokens()[0] not in repr(situation)
