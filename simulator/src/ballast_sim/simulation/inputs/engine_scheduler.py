"""Schedulers of simulated engines by name: `fcfs`, `sarathi:512`, `srpt`, `uniboost:gamma=0.3,k=256,delta=0.1`."""

from __future__ import annotations

import math

from ballast_core.policies.queue.registry import QUEUE_ORDERS
from ballast_core.policies.registry import QUEUE_ORDER, PolicyError, build
from ballast_sim.engine.scheduling import VLLM_OWN, Preempt, Scheduling
from ballast_sim.naming import known_names
from ballast_sim.settings import SettingError

NAMES = ("fcfs", "sarathi", *(name for name in QUEUE_ORDERS if name != "fcfs"))
"""`fcfs` and `sarathi` are vLLM's own scheduler; the others are queue orders."""

_SHORT = {"gamma": "gamma_per_s", "k": "bin_tokens", "delta": "preemption_margin_s"}
"""The paper's letters."""

_PREEMPTS: dict[str, Preempt] = {"recompute": "recompute", "swap": "swap", "none": "none"}

Value = bool | int | float | str


def parse_scheduler(text: str) -> Scheduling:
    """Reads `NAME` or `NAME:setting=value,...`. Raises `ValueError` naming what is wrong.

    Settings of all: `chunk` (tokens of a step; a bare number is the chunk); of orders also `preempt` (recompute, swap,
    none), `swap_gbps` (GB/s of the host link), `quantum` (tokens) and the order's own parameters, by name or by the
    paper's letters gamma, k, delta.
    """
    name, _, rest = text.partition(":")
    if name not in NAMES:
        raise SettingError("engine_scheduler", f"unknown scheduler {name!r}; {known_names(name, NAMES)}")
    settings: dict[str, Value] = {}
    for part in filter(None, (piece.strip() for piece in rest.split(","))):
        key, equals, value = part.partition("=")
        key, value = (key, value) if equals else ("chunk", key)
        key = _SHORT.get(key, key)
        if not value or key in settings:
            problem = f"{key} is given twice" if key in settings else f"cannot read {part!r}"
            raise SettingError("engine_scheduler", f"{problem} in {text!r}; write such as {name}:chunk=512")
        settings[key] = _value(value)
    try:
        return _scheduling(name, text.rstrip(":"), settings)
    except ValueError as error:
        raise SettingError("engine_scheduler", f"{name}: {error}") from None


def _scheduling(name: str, text: str, settings: dict[str, Value]) -> Scheduling:
    chunk = _tokens(settings, "chunk")
    if name in ("fcfs", "sarathi"):
        if settings:
            raise ValueError(f"takes no {next(iter(settings))}; it takes chunk")
        if name == "sarathi" and chunk is None:
            raise ValueError("needs the tokens of a step; write such as sarathi:512")
        return VLLM_OWN if chunk is None else Scheduling(name=text, chunk_tokens=chunk)
    preempt = settings.pop("preempt", "recompute")
    if not isinstance(preempt, str) or preempt not in _PREEMPTS:
        raise ValueError(f"preempt: must be {', '.join(_PREEMPTS)}, not {preempt!r}")
    link = settings.pop("swap_gbps", 25.0)
    if not isinstance(link, int | float):
        raise ValueError(f"swap_gbps: must be a number (GB/s), not {link!r}")
    quantum = _tokens(settings, "quantum") or 64
    try:
        order = build(QUEUE_ORDER, name, settings)
    except PolicyError as error:
        raise ValueError(f"{error.field.removeprefix('parameters.')}: {error}") from None
    return Scheduling(
        name=text,
        order=order,
        chunk_tokens=chunk,
        preempt=_PREEMPTS[preempt],
        swap_gbytes_per_s=float(link),
        quantum_tokens=quantum,
    )


def _tokens(settings: dict[str, Value], key: str) -> int | None:
    value = settings.pop(key, None)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{key}: must be a number of tokens, 1 or more, not {value!r}")
    return value


def _value(text: str) -> Value:
    if text in ("true", "false"):
        return text == "true"
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text
