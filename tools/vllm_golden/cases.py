"""The runs: one case for each group of scheduler rules, with requests that make the rules bite.

Everything is drawn from seeded generators; no data file is read.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from ballast_core.profiles import A100_QWEN3_32B, H200_LLAMA3_8B, HardwareProfile

LONGEST_PROMPT_TOKENS = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request. It stops at `output_tokens`, or leaves at `abort_s`, whichever comes first.

    `hold`: its KV is kept for another engine, which pulls it `pulled_after_s` after the end (None: never), and says
    at `heartbeats_after_s` that it still means to. `pull`: its prompt was computed elsewhere.
    """

    arrival_s: float
    input_tokens: int
    output_tokens: int
    priority: int = 0
    hash_ids: tuple[int, ...] | None = None
    hash_block: int | None = None
    pull: bool = False
    hold: bool = False
    pulled_after_s: float | None = None
    heartbeats_after_s: tuple[float, ...] = ()
    abort_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An engine's settings and what it is asked."""

    name: str
    pins: str
    asks: Callable[[], Sequence[Ask]]
    kv_blocks: int
    profile: HardwareProfile = H200_LLAMA3_8B
    max_model_len: int = 4096
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    async_scheduling: bool = True
    prefix_caching: bool = True
    policy: str = "fcfs"
    early_stop: bool = False
    kv_role: str | None = None
    lease_s: int = 30
    link_gbps: float = 200.0


def _plain(rate_rps: float, requests: int, seed: int, longest_output: int = 120) -> list[Ask]:
    """Poisson arrivals, lognormal lengths (mean input about 800, output about 90), cut so that files stay small."""
    rng, at_s = random.Random(f"golden plain {seed}"), 0.0
    asks: list[Ask] = []
    for _ in range(requests):
        input_tokens = min(LONGEST_PROMPT_TOKENS, max(8, round(rng.lognormvariate(6.3, 1.0))))
        output_tokens = min(longest_output, max(1, round(rng.lognormvariate(4.6, 0.8))))
        asks.append(Ask(arrival_s=round(at_s, 6), input_tokens=input_tokens, output_tokens=output_tokens))
        at_s += rng.expovariate(rate_rps)
    return asks


def _with(asks: Sequence[Ask], change: Callable[[int, Ask, random.Random], dict[str, object]], seed: int) -> list[Ask]:
    """The same requests with some fields replaced."""
    rng = random.Random(f"golden {seed}")
    return [_replaced(ask, change(number, ask, rng)) for number, ask in enumerate(asks)]


def _replaced(ask: Ask, fields: dict[str, object]) -> Ask:
    values: dict[str, object] = {name: getattr(ask, name) for name in Ask.__dataclass_fields__}
    return Ask(**{**values, **fields})  # type: ignore[arg-type]  # the fields are Ask's own


def _sessions(sessions: int, turns: int, rate_rps: float, seed: int, id_tokens: int = 64) -> list[Ask]:
    """Conversations that grow by turns, all behind one of three system prompts: shared prefixes of many lengths."""
    rng = random.Random(f"golden sessions {seed}")
    fresh = count(1000)
    systems = [tuple(next(fresh) for _ in range(length)) for length in (3, 6, 10)]
    asks: list[Ask] = []
    for _ in range(sessions):
        ids = list(rng.choice(systems))
        at_s = rng.random() * sessions / rate_rps
        for _ in range(turns):
            ids += [next(fresh) for _ in range(rng.randint(1, 4))]
            partial = rng.randint(0, id_tokens - 1)
            output_tokens = rng.randint(1, 80)
            asks.append(
                Ask(
                    arrival_s=round(at_s, 6),
                    input_tokens=len(ids) * id_tokens - partial,
                    output_tokens=output_tokens,
                    hash_ids=tuple(ids),
                    hash_block=id_tokens,
                )
            )
            at_s += 0.2 + rng.expovariate(1.0)
    return sorted(asks, key=lambda ask: ask.arrival_s)


def _aborts(asks: Sequence[Ask], share: float, within_s: float, seed: int) -> list[Ask]:
    """Clients that leave some time after they came."""

    def leave(_: int, ask: Ask, rng: random.Random) -> dict[str, object]:
        leaves, after_s = rng.random() < share, rng.random() * within_s
        return {"abort_s": round(ask.arrival_s + after_s, 6)} if leaves else {}

    return _with(asks, leave, seed)


def _handed_over(asks: Sequence[Ask], seed: int, *, lease_s: float, one_token: bool) -> list[Ask]:
    """Prefills for other engines: most pulled soon, some late after heartbeats, some never."""

    def hand_over(_: int, ask: Ask, rng: random.Random) -> dict[str, object]:
        fields: dict[str, object] = {"hold": True}
        if one_token:
            fields["output_tokens"] = 1
        fate, delay_s = rng.random(), rng.random()
        if fate < 0.7:
            fields["pulled_after_s"] = round(0.002 + 0.15 * delay_s, 6)
        elif fate < 0.85:  # beyond the lease, kept alive
            beats = [round(lease_s * share, 6) for share in (0.4, 0.9, 1.4)]
            fields |= {"heartbeats_after_s": tuple(beats), "pulled_after_s": round(lease_s * (1.2 + delay_s), 6)}
        elif fate < 0.93:  # too late: the lease ends first
            fields["pulled_after_s"] = round(lease_s * (1.05 + delay_s), 6)
        return fields

    return _with(asks, hand_over, seed)


def _pulled(asks: Sequence[Ask], seed: int) -> list[Ask]:
    return _with(asks, lambda *_: {"pull": True}, seed)


def _prefill_side() -> list[Ask]:
    return _aborts(_handed_over(_plain(45.0, 300, 8), 8, lease_s=2, one_token=True), 0.15, 0.25, 8)


def _both_sides() -> list[Ask]:
    asks = _handed_over(_plain(60.0, 200, 9), 9, lease_s=2, one_token=False)
    mixed = _with(asks, lambda number, *_: {"pull": number % 3 == 0, "hold": number % 2 == 0}, 9)
    return _aborts(mixed, 0.1, 0.5, 9)


def cases() -> Iterator[Case]:
    """All of them; the name is the file's."""
    yield Case(
        name="defaults",
        pins="asynchronous scheduling, chunked prefill, continuous batching",
        asks=lambda: _plain(40, 250, 1, longest_output=200),
        kv_blocks=20_000,
    )
    yield Case(
        name="sync",
        pins="asynchronous scheduling off; a client's abort at any point",
        asks=lambda: _aborts(_plain(60, 200, 2), 0.2, 1.0, 2),
        kv_blocks=20_000,
        async_scheduling=False,
    )
    yield Case(
        name="preemption",
        pins="admission wait, preemption by recompute, aborts under async scheduling",
        asks=lambda: _aborts(_plain(60, 200, 3), 0.15, 2.0, 3),
        kv_blocks=420,
    )
    yield Case(
        name="priority",
        pins="priority scheduling: order of admission, victims",
        asks=lambda: _with(_plain(60, 200, 4), lambda number, *_: {"priority": number * 7 % 3}, 4),
        kv_blocks=420,
        policy="priority",
    )
    yield Case(
        name="prefix_evict",
        pins="prefix sharing among running and freed requests, LRU eviction",
        asks=lambda: _sessions(45, 6, 12.0, 5),
        kv_blocks=900,
    )
    yield Case(
        name="early_stop",
        pins="ends by a stop token: one token too many is computed under async scheduling",
        asks=lambda: _plain(60, 200, 6),
        kv_blocks=1200,
        early_stop=True,
    )
    yield Case(
        name="max_num_seqs",
        pins="at most 12 sequences, on another profile",
        asks=lambda: _plain(8, 120, 7),
        kv_blocks=4000,
        profile=A100_QWEN3_32B,
        max_num_seqs=12,
        max_num_batched_tokens=1024,
    )
    yield Case(
        name="pull_decode",
        pins="decode side of a hand-off: allocate, wait for remote KV, preempt, recompute, abort while pulling",
        asks=lambda: _aborts(_pulled(_plain(70, 200, 10), 10), 0.15, 0.3, 10),
        kv_blocks=480,
        kv_role="kv_consumer",
        link_gbps=25.0,
    )
    yield Case(
        name="hold_prefill",
        pins="prefill side: blocks held until pulled, heartbeats, lease expiry, stranded KV, abort frees",
        asks=_prefill_side,
        kv_blocks=700,
        kv_role="kv_producer",
        lease_s=2,
    )
    yield Case(
        name="hold_prefill_sync",
        pins="the same without asynchronous scheduling and with shared prefixes",
        asks=lambda: _handed_over(_sessions(40, 6, 14.0, 11), 11, lease_s=2, one_token=True),
        kv_blocks=700,
        kv_role="kv_producer",
        lease_s=2,
        async_scheduling=False,
    )
    yield Case(
        name="hold_stop_preempt",
        pins="a producer that generates, ends by stop tokens and preempts: output in flight of a victim is dropped",
        asks=lambda: _handed_over(_plain(60, 150, 12), 12, lease_s=2, one_token=False),
        kv_blocks=500,
        kv_role="kv_producer",
        lease_s=2,
        early_stop=True,
    )
    yield Case(
        name="hold_and_pull",
        pins="both roles in one engine (kv_both): pulls and holds at once, with preemption and aborts",
        asks=_both_sides,
        kv_blocks=560,
        kv_role="kv_both",
        lease_s=2,
        link_gbps=25.0,
    )
