"""The exact prefix index: what endpoints report is what is found, block by block.

Invariants, against an engine in plain Python that keeps every copy of every block:
1. `match` gives the engine's own hit length: whole leading blocks, the last token left out.
2. What was reported is held, and nothing else, once routed prompts are reported or overdue.
3. When every endpoint has ended its reports, nothing is left.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.beliefs.reported_prefixes import READING, ReportedPrefixes
from ballast_core.model import EndpointId
from ballast_core.model.events import CacheReported, CacheReportsBegun, ModelsObserved
from ballast_core.model.kv_reports import BlocksRemoved, BlocksStored, CacheCleared, ExtraKeys, HistoryTold, KvReport
from ballast_core.model.prompt_tokens import PromptTokens, packed
from ballast_core.model.served_models import ServedModels
from ballast_core.policies.registry import build_placement
from tests.support.core_builders import director as director_of
from tests.support.core_builders import request

A, B = EndpointId("a"), EndpointId("b")
SIZE = 4


class Engine:
    """What one rank caches, with vLLM's rules: a copy for each time that a block was computed."""

    def __init__(self, size: int = SIZE, adapter: str = "") -> None:
        self.size, self.adapter = size, adapter
        self.copies: Counter[bytes] = Counter()

    def names(self, tokens: list[int]) -> list[bytes]:
        """Its own hashes."""
        whole = len(tokens) // self.size * self.size
        return [
            sha256(repr((self.adapter, tokens[: at + self.size])).encode()).digest()
            for at in range(0, whole, self.size)
        ]

    def store(self, tokens: list[int], first: int, last: int) -> BlocksStored:
        """Blocks `first` up to `last` of these tokens were computed."""
        names = self.names(tokens)
        self.copies.update(names[first:last])
        extras: tuple[ExtraKeys, ...] = ((self.adapter,),) * (last - first) if self.adapter else ()
        return BlocksStored(
            tuple(names[first:last]),
            names[first - 1] if first else None,
            packed(tokens[first * self.size : last * self.size]),
            self.size,
            extras,
            self.adapter,
        )

    def compute(self, tokens: list[int], again: int) -> list[BlocksStored]:
        """Store what is missing, and so many blocks before that a second time."""
        last = len(tokens) // self.size
        first = self.hit([*tokens, 0]) // self.size
        return [self.store(tokens, max(first - again, 0), last)] if first < last else []

    def hit(self, tokens: list[int]) -> int:
        names = self.names(tokens)[: (len(tokens) - 1) // self.size]
        return next((at for at, name in enumerate(names) if not self.copies[name]), len(names)) * self.size


def index(*endpoints: EndpointId, ranks: int = 1) -> ReportedPrefixes:
    made = ReportedPrefixes()
    for slot, each in enumerate(endpoints):
        made.place(slot, each)
        for rank in range(ranks):
            made.begin(each, rank, 1000)
    return made


def tell(target: ReportedPrefixes, endpoint: EndpointId, *reports: KvReport, rank: int = 0, now_s: float = 0.0) -> None:
    for report in reports:
        target.report(endpoint, rank, report, now_s)


def found(target: ReportedPrefixes, tokens: list[int], *, model: str = "", salt: str = "", slots: int = 2) -> list[int]:
    prompt = PromptTokens.of(tokens, model=model, cache_salt=salt)
    matched: list[int] = target.match(prompt, np.arange(slots))[0].tolist()
    return matched


def test_a_prompt_is_found_as_far_as_it_is_cached_and_its_last_token_is_left() -> None:
    target, engine, tokens = index(A, B), Engine(), list(range(14))
    tell(target, A, engine.store(tokens, 0, 2), engine.store(tokens, 2, 3))
    assert found(target, tokens) == [12, 0]
    assert found(target, tokens[:12]) == [8, 0]
    assert found(target, tokens[:13]) == [12, 0]
    assert found(target, [*tokens[:5], 99, *tokens[6:]]) == [4, 0]
    assert found(target, []) == [0, 0]


def test_a_block_computed_twice_is_held_until_both_copies_are_gone() -> None:
    target, engine, tokens = index(A), Engine(), list(range(9))
    tell(target, A, engine.store(tokens, 0, 2), engine.store(tokens, 0, 2))
    removal = BlocksRemoved(tuple(engine.names(tokens)[1:2]))
    tell(target, A, removal)
    assert found(target, tokens, slots=1) == [8]
    tell(target, A, removal)
    assert found(target, tokens, slots=1) == [4]
    tell(target, A, CacheCleared())
    assert found(target, tokens, slots=1) == [0]
    assert len(target) == 0


def test_adapters_and_salts_keep_equal_prompts_apart() -> None:
    target, base, lora, tokens = index(A, B), Engine(), Engine(adapter="sql"), list(range(9))
    tell(target, A, base.store(tokens, 0, 2))
    tell(target, B, lora.store(tokens, 0, 2))
    assert found(target, tokens, model="base's name") == [8, 0]
    assert found(target, tokens, model="sql") == [0, 8]
    assert found(target, tokens, salt="mine") == [0, 0]
    salted = BlocksStored((b"1", b"2"), None, packed(tokens[:8]), SIZE, (("mine",), None))
    tell(target, A, salted)
    assert found(target, tokens, salt="mine") == [8, 0]


def test_a_prompt_for_an_adapter_that_is_served_finds_no_block_of_the_base_model() -> None:
    """Its first one, too: until then nothing of it has been reported."""
    director = director_of(("f0",), policy=build_placement("ballast"))
    base, tokens = Engine(), list(range(9))
    served = ServedModels(frozenset({"base's name", "sql"}), frozenset({"sql"}))
    director.on_event(ModelsObserved(EndpointId("f0"), served), 0.0)
    director.on_event(CacheReportsBegun(EndpointId("f0"), 0, 1000), 0.0)
    director.on_event(CacheReported(EndpointId("f0"), 0, (base.store(tokens, 0, 2),)), 0.0)

    def foreseen(model: str) -> int:
        asked = replace(request("r"), tokens=PromptTokens.of(tokens, model=model))
        return int(director.beliefs.cached_tokens(asked, np.arange(1))[0])

    assert (foreseen("base's name"), foreseen("sql")) == (8, 0)


def test_endpoints_with_blocks_of_other_sizes_are_matched_each_by_its_own() -> None:
    target, tokens = index(A, B), list(range(40))
    tell(target, A, Engine(4).store(tokens, 0, 9))
    tell(target, B, Engine(16).store(tokens, 0, 2))
    assert found(target, tokens) == [36, 32]


def test_the_end_of_a_prompt_is_no_block_even_where_it_is_reported_first() -> None:
    """vLLM's full attention beside other kinds of layers: a short prompt has an end alone, of a smaller size."""
    target, engine, tokens = index(A), Engine(16), list(range(40))
    tell(target, A, BlocksStored((1,), None, packed([7] * 4), 4))
    tell(target, A, engine.store(tokens, 0, 2), BlocksStored((2,), None, packed(tokens[:4]), 4))
    assert found(target, tokens, slots=1) == [32]
    known = target.known(A)
    assert known is not None
    assert (known.complete, known.block_size, known.blocks) == (True, 16, 2)


def test_the_best_rank_of_an_endpoint_counts() -> None:
    target, tokens = index(A, B, ranks=2), list(range(13))
    tell(target, A, Engine().store(tokens, 0, 1), rank=0)
    tell(target, A, Engine().store(tokens, 0, 3), rank=1)
    assert found(target, tokens) == [12, 0]
    tell(target, A, CacheCleared(), rank=1)
    assert found(target, tokens) == [4, 0]


def test_what_is_routed_counts_until_it_is_reported_or_overdue() -> None:
    """A second request of the same prefix finds the first one, which still waits for its turn."""
    target, engine, tokens = index(A), Engine(), list(range(13))
    tell(target, A, engine.store([50] * 4, 0, 1))
    target.record(0, PromptTokens.of(tokens), 1.0)
    assert found(target, tokens, slots=1) == [12]
    tell(target, A, engine.store(tokens, 0, 1), now_s=5.0)
    tell(target, A, engine.store([60] * 4, 0, 1), now_s=31.5)
    assert found(target, tokens, slots=1) == [4]


def test_what_is_routed_is_overdue_where_nothing_else_happens() -> None:
    """As where the client left before its prompt was computed, and the endpoint idles."""
    target, engine, tokens = index(A, B), Engine(), list(range(13))
    for endpoint in (A, B):
        tell(target, endpoint, engine.store([50] * 4, 0, 1))
    target.record(0, PromptTokens.of(tokens), 1.0)
    target.record(1, PromptTokens.of(tokens), 11.0)
    target.forget_overdue(30.5)
    assert found(target, tokens) == [12, 12]
    target.forget_overdue(31.5)
    assert found(target, tokens) == [0, 12]
    target.forget_overdue(41.5)
    assert found(target, tokens) == [0, 0]


def test_reports_with_a_gap_are_true_but_not_all() -> None:
    target, engine, tokens = index(A), Engine(), list(range(13))
    target.begin(A, 0, 1000, "its history is too short")
    tell(target, A, engine.store(tokens, 0, 2))
    matched, complete = target.match(PromptTokens.of(tokens), np.array([0]))
    assert (matched.tolist(), complete.tolist()) == ([8], [False])
    tell(target, A, CacheCleared())
    known = target.known(A)
    assert known is not None
    assert (known.complete, known.problem) == (True, "")


def test_a_history_is_complete_at_its_end_not_where_the_cache_was_cleared_in_it() -> None:
    target, engine, tokens = ReportedPrefixes(), Engine(), list(range(9))
    target.place(0, A)
    target.begin(A, 0, 1000, READING)
    tell(target, A, engine.store(tokens, 0, 2), CacheCleared())
    known = target.known(A)
    assert known is not None
    assert (known.complete, known.problem) == (False, READING)
    tell(target, A, engine.store(tokens, 0, 2), HistoryTold())
    known = target.known(A)
    assert known is not None
    assert (known.complete, known.blocks) == (True, 2)


def test_a_block_after_an_unknown_one_shows_that_reports_were_missed() -> None:
    target, tokens = index(A), list(range(13))
    tell(target, A, Engine().store(tokens, 2, 3))
    known = target.known(A)
    assert known is not None
    assert (known.complete, known.blocks, known.refused) == (False, 0, 1)
    assert "had not reported" in known.problem


def test_an_endpoint_that_reports_more_than_it_can_hold_is_believed_nothing() -> None:
    target = index(A, B)
    target.begin(A, 0, 50)
    tell(target, B, Engine().store(list(range(9)), 0, 2))
    for number in range(1000):
        tell(target, A, BlocksStored((number,), None, packed([number] * SIZE), SIZE))
    assert len(target) == 2
    known = target.known(A)
    assert known is not None
    assert (known.complete, known.blocks) == (False, 0)
    assert "more than 50 blocks" in known.problem
    target.begin(A, 0, 50)
    tell(target, A, Engine().store(list(range(9)), 0, 2))
    assert found(target, list(range(9))) == [8, 8]


@pytest.mark.parametrize(
    "report",
    [
        BlocksStored((1, 2), None, packed([1] * SIZE), SIZE),
        BlocksStored((1,), None, packed([1] * SIZE), SIZE, (None, None)),
        BlocksStored((1,), None, b"abc", SIZE),
        BlocksStored((1,), None, packed([1] * 2), 2),
        BlocksStored((), None, b"", 0),
    ],
)
def test_reports_that_make_no_sense_are_refused(report: BlocksStored) -> None:
    target = index(A)
    tell(target, A, Engine().store(list(range(4)), 0, 1), report, BlocksRemoved((b"unknown", 77)))
    known = target.known(A)
    assert known is not None
    assert (known.blocks, known.refused) == (1, 1)


def test_a_slot_that_another_endpoint_gets_shows_that_endpoints_blocks() -> None:
    target, tokens = index(A), list(range(9))
    tell(target, A, Engine().store(tokens, 0, 2))
    target.vacate(0)
    assert found(target, tokens, slots=1) == [0]
    target.place(0, B)
    assert found(target, tokens, slots=1) == [0]
    target.place(3, A)
    assert found(target, tokens, slots=5) == [0, 0, 0, 8, 0]


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["store", "store", "store", "remove", "clear", "restart", "record", "end"]),
        st.sampled_from([A, B]),
        st.integers(0, 2),
        st.lists(st.integers(0, 1), min_size=SIZE, max_size=17),
    ),
    max_size=60,
)


@pytest.mark.rotating(3)
@given(OPERATIONS)
@settings(max_examples=300, deadline=None)
def test_the_index_is_the_engines_truth_after_any_sequence(
    operations: list[tuple[str, EndpointId, int, list[int]]],
) -> None:
    """Invariants 1 to 3."""
    target = ReportedPrefixes(confirm_s=0.5)
    engines: dict[EndpointId, Engine] = {}
    for slot, endpoint in enumerate((A, B)):
        target.place(slot, endpoint)
        target.begin(endpoint, 0, 1000)
        engines[endpoint] = Engine()
    seen: list[list[int]] = []
    for at, (what, endpoint, pick, tokens) in enumerate(operations):
        engine, now_s = engines[endpoint], float(at)
        seen.append(tokens)
        match what:
            case "store":
                tell(target, endpoint, *engine.compute(tokens, pick))
            case "remove":
                for name in [name for name, count in engine.copies.items() if count][pick : pick + 1]:
                    engine.copies[name] -= 1  # a head may go before its tail
                    tell(target, endpoint, BlocksRemoved((name,)), now_s=now_s)
            case "clear":
                engine.copies.clear()
                tell(target, endpoint, CacheCleared())
            case "record":
                target.record(0 if endpoint == A else 1, PromptTokens.of(tokens), now_s)
            case _:
                engine.copies.clear()
                if what == "end":
                    target.end(endpoint)
                target.begin(endpoint, 0, 1000)
    target.forget_overdue(1e6)
    for tokens in seen:
        assert found(target, [*tokens, 0]) == [engines[A].hit([*tokens, 0]), engines[B].hit([*tokens, 0])]
    for endpoint, engine in engines.items():
        known = target.known(endpoint)
        assert known is not None
        assert known.blocks == sum(count > 0 for count in engine.copies.values())
        assert known.complete
        target.end(endpoint)
    assert len(target) == 0
