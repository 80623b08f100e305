"""The targeted scan of /metrics agrees with prometheus_client's full parser."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ballast_gateway.observe.exposition import BadExposition, EngineGauges, read_gauges, read_page

LABEL = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20)


def page(engines: list[tuple[str, str, int, int, float, int]]) -> bytes:
    """A page as vLLM writes it: the wanted gauges among their lookalikes, histograms and comments."""
    registry = CollectorRegistry()
    labels = ("engine", "model_name")
    running = Gauge("vllm:num_requests_running", "Running vllm:num_requests_waiting 3", labels, registry=registry)
    waiting = Gauge("vllm:num_requests_waiting", "Waiting", labels, registry=registry)
    reasons = Gauge("vllm:num_requests_waiting_by_reason", "By reason", (*labels, "reason"), registry=registry)
    usage = Gauge("vllm:kv_cache_usage_perc", "1 means 100 %", labels, registry=registry)
    preemptions = Counter("vllm:num_preemptions", "Preemptions", labels, registry=registry)
    Gauge("xvllm:num_requests_running", "Not ours", registry=registry).set(99)
    ttft = Histogram("vllm:time_to_first_token_seconds", "TTFT", labels, registry=registry)
    for engine, model, run, wait, kv, preempted in engines:
        running.labels(engine, model).set(run)
        waiting.labels(engine, model).set(wait)
        reasons.labels(engine, model, "capacity").set(wait + 1)
        usage.labels(engine, model).set(kv)
        preemptions.labels(engine, model).inc(preempted)
        ttft.labels(engine, model).observe(0.1)
    return generate_latest(registry)


def by_the_full_parser(text: bytes) -> EngineGauges:
    samples: dict[str, list[float]] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(sample.value)
    usage = samples["vllm:kv_cache_usage_perc"]
    return EngineGauges(
        running=int(sum(samples["vllm:num_requests_running"])),
        waiting=int(sum(samples["vllm:num_requests_waiting"])),
        kv_usage_ratio=sum(usage) / len(usage),
        preemptions=int(sum(samples["vllm:num_preemptions_total"])),
    )


COUNT = st.integers(0, 10**6)


@given(
    st.lists(
        st.tuples(LABEL, LABEL, COUNT, COUNT, st.floats(0, 1), COUNT),
        min_size=1,
        max_size=4,
        unique_by=lambda engine: (engine[0], engine[1]),
    )
)
def test_the_scan_agrees_with_the_parser_of_prometheus_client(
    engines: list[tuple[str, str, int, int, float, int]],
) -> None:
    """Whatever stands in the labels: braces, quotes, line feeds, the names of other metrics."""
    text = page(engines)
    assert read_gauges(text) == by_the_full_parser(text)


def test_a_timestamp_after_the_value_is_no_value() -> None:
    """Exporters may write one."""
    text = b'vllm:num_requests_running{e="0"} 3.0 1700000000\nvllm:num_requests_waiting 4 1700000000'
    assert read_gauges(text) == EngineGauges(running=3, waiting=4, kv_usage_ratio=0.0, preemptions=0)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"<html>not found</html>",
        b"vllm:num_requests_running 1\n",
        b'vllm:num_requests_running{a="b"}\nvllm:num_requests_waiting 1\n',
        b"vllm:num_requests_running x\nvllm:num_requests_waiting 1\n",
        b"vllm:num_requests_running NaN\nvllm:num_requests_waiting 1\n",
        b"vllm:num_requests_running +Inf\nvllm:num_requests_waiting 1\n",
        b"vllm:num_requests_running 1e19\nvllm:num_requests_waiting 1\n",
        b"vllm:num_requests_running 1\nvllm:num_requests_waiting -3\n",
        b'vllm:num_requests_running{e="0"} 9e15\nvllm:num_requests_running{e="1"} 9e15\nvllm:num_requests_waiting 1\n',
        b"vllm:num_requests_running 1\n" * 1025 + b"vllm:num_requests_waiting 1\n",
    ],
)
def test_a_page_without_usable_numbers_is_refused(text: bytes) -> None:
    """The scrape then counts as failed. No engine has less than nothing, or what floats cannot count."""
    with pytest.raises(BadExposition, match=r"num_requests|number"):
        read_gauges(text)


@pytest.mark.parametrize(
    "line",
    [b"vllm:kv_cache_usage_perc -5.0", b"vllm:kv_cache_usage_perc 1e300", b"vllm:num_preemptions_total 1e300"],
)
def test_so_is_one_whose_other_numbers_cannot_be(line: bytes) -> None:
    """They are left out or right."""
    with pytest.raises(BadExposition, match=r"cannot be"):
        read_gauges(b"vllm:num_requests_running 1\nvllm:num_requests_waiting 1\n" + line)


def test_no_label_makes_a_page_slow_to_read() -> None:
    """Four times as long takes some four times as long; it was sixteen times."""

    def least_s(size: int) -> float:
        text = page([("0", "m", 1, 0, 0.5, 0)]) + b"vllm:lora_requests_info{%b} 1\n" % (b"a" * size)
        took_s = []
        for _ in range(5):
            began_s = time.process_time()
            read_gauges(text)
            took_s.append(time.process_time() - began_s)
        return min(took_s)

    assert least_s(16_000) < 8 * max(least_s(4_000), 1e-4)


async def test_a_long_page_is_read_while_the_loop_goes_on() -> None:
    """An engine with adapters has a line for each set of them that was at work."""
    long = page([("0", "m", 3, 4, 0.5, 6)]) + b"# a line without a meaning\n" * 10_000
    reading = asyncio.create_task(read_page(long))
    turns = 0
    while not reading.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 1
    assert await reading == read_gauges(long)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    """Never another exception."""
    with contextlib.suppress(BadExposition):
        read_gauges(b"vllm:num_requests_running 1\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc" + text)


def test_output_tokens_since_the_start_are_read_where_the_page_says_them() -> None:
    """Of all ranks together. Prompts need no look of their own: the first token of each counts as output."""
    page = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n"
    said = b'vllm:prompt_tokens_total 90\nvllm:generation_tokens_total{engine="%d"} %d\n'
    assert read_gauges(page).computed_tokens is None
    assert read_gauges(page + said % (0, 7) + said % (1, 5)).computed_tokens == 12
