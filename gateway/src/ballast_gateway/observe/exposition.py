"""Reads the few numbers that placement needs from an engine's /metrics page.

A scan for the wanted lines, not a parser of the format: a page of vLLM has some thousand lines, and it is read five
times a second from every endpoint (`make bench` compares). Format: Prometheus text exposition 0.0.4; names: vLLM
0.32 (`research/vllm.md` 3a). Several engines behind one endpoint (data parallel ranks) are added up.
"""

from __future__ import annotations

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

MOST_BYTES: Final = 8 * 1024 * 1024
"""Of a page. vLLM's have 0.1 to 0.2 MiB, and some 170 bytes more for each set of adapters that was at work."""
_LONG_BYTES = 128 * 1024
_LONG_PAGES = ThreadPoolExecutor(max_workers=1, thread_name_prefix="long-pages")
_MOST_SAMPLES = 1024
"""Of a metric: as many data parallel ranks."""
_END = 2.0**53
"""Beyond what a number can be; floats count no further one by one."""

_RUNNING = b"vllm:num_requests_running"
_WAITING = b"vllm:num_requests_waiting"
_KV_USAGE = b"vllm:kv_cache_usage_perc"
_PREEMPTIONS = b"vllm:num_preemptions_total"
_GENERATED = b"vllm:generation_tokens_total"
_LORA = b"vllm:lora_requests_info"
_LABEL = re.compile(rb'(?<!\w)(\w++)="((?:[^"\\]|\\.)*)"')
"""Linear: a name is looked at once, from its first letter on."""


class BadExposition(Exception):
    """No page of an engine: a needed line is missing, or holds no number that an engine can have."""


@dataclass(frozen=True, slots=True)
class AdapterGauges:
    """The LoRA adapters that are at work in an engine."""

    running: frozenset[str]
    waiting: frozenset[str]
    most_running: int
    """`--max-loras`; 0 if it is not said."""


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """The numbers of one page."""

    running: int
    waiting: int
    kv_usage_ratio: float
    """Mean over the engines behind the endpoint."""
    preemptions: int
    computed_tokens: int | None = None
    """Output tokens since its start, a prompt's first one among them; None where the page does not say."""
    adapters: AdapterGauges | None = None
    """None where the engine has no LoRA."""


async def read_page(page: bytes) -> EngineGauges:
    """`read_gauges`; of a long page on a thread, one after another: the loop goes on. Raises `BadExposition`."""
    if len(page) <= _LONG_BYTES:
        return read_gauges(page)
    return await asyncio.get_running_loop().run_in_executor(_LONG_PAGES, read_gauges, page)


def read_gauges(page: bytes) -> EngineGauges:
    """The numbers on a page. Raises `BadExposition`."""
    kv_usage, generated = _values(page, _KV_USAGE), _values(page, _GENERATED)
    return EngineGauges(
        running=_sum(_RUNNING, _needed(page, _RUNNING)),
        waiting=_sum(_WAITING, _needed(page, _WAITING)),
        kv_usage_ratio=sum(kv_usage) / len(kv_usage) if kv_usage else 0.0,
        preemptions=_sum(_PREEMPTIONS, _values(page, _PREEMPTIONS)),
        computed_tokens=_sum(_GENERATED, generated) if generated else None,
        adapters=_read_adapters(page),
    )


def _read_adapters(page: bytes) -> AdapterGauges | None:
    """vLLM leaves a sample for each state that there has been; its value is a time, and the newest counts."""
    newest, labels = 0.0, b""
    start = page.find(_LORA)
    while start >= 0:
        end = page.find(b"\n", start)
        line = page[start : end if end >= 0 else len(page)]
        at_s = _value(_LORA, line[len(_LORA) :]) if line[len(_LORA) :].startswith(b"{") else 0.0
        if (start == 0 or page[start - 1] == 0x0A) and at_s > newest:
            newest, labels = at_s, line
        start = page.find(_LORA, start + len(line))
    if not labels:
        return None
    said = {name: value.decode("utf-8", "replace") for name, value in _LABEL.findall(labels)}
    most = said.get(b"max_lora", "")
    return AdapterGauges(
        running=_names(said.get(b"running_lora_adapters", "")),
        waiting=_names(said.get(b"waiting_lora_adapters", "")),
        most_running=int(most) if most.isascii() and most.isdigit() and len(most) < 10 else 0,
    )


def _names(listed: str) -> frozenset[str]:
    return frozenset(filter(None, map(str.strip, listed.split(","))))


def _needed(page: bytes, name: bytes) -> list[float]:
    values = _values(page, name)
    if not values:
        raise BadExposition(f"no {name.decode()} on the page: is this an engine's /metrics?")
    return values


def _sum(name: bytes, values: list[float]) -> int:
    total = sum(values)
    if total >= _END:
        raise BadExposition(f"{name.decode()} is {total:g} in all, which cannot be")
    return int(total)


def _values(page: bytes, name: bytes) -> list[float]:
    """The value of every sample of a metric."""
    values: list[float] = []
    start = page.find(name)
    while start >= 0:
        after = start + len(name)
        end = page.find(b"\n", after)
        if end < 0:
            end = len(page)
        if (start == 0 or page[start - 1] == 0x0A) and page[after : after + 1] in (b"{", b" ", b"\t"):
            values.append(_value(name, page[after:end]))
            if len(values) > _MOST_SAMPLES:
                raise BadExposition(f"more than {_MOST_SAMPLES} samples of {name.decode()}")
        start = page.find(name, end)
    return values


def _value(name: bytes, rest: bytes) -> float:
    """`{labels} value [timestamp]`, after the metric's name. A label's value may hold anything, a brace too."""
    try:
        value = float(rest[rest.rfind(b"}") + 1 :].split()[0])
    except (ValueError, IndexError):
        raise BadExposition(f"no number after {name.decode()}") from None
    if not 0 <= value < _END:  # nan is neither
        raise BadExposition(f"{name.decode()} is {value:g}, which cannot be")
    return value
