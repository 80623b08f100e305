"""What an endpoint serves: names of models, LoRA adapters among them, and which adapters are at work there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ServedModels:
    """As vLLM says it at `/v1/models` and in `vllm:lora_requests_info`."""

    names: frozenset[str] = frozenset()
    """What it answers to, adapters included; empty if it has not said."""
    adapters: frozenset[str] = frozenset()
    """Those of the names that are adapters."""
    running: frozenset[str] = frozenset()
    """Adapters of requests that run."""
    waiting: frozenset[str] = frozenset()
    """Adapters of requests that wait in the engine."""
    most_running: int = 0
    """How many adapters may run at a time (`--max-loras`); 0 if it has not said."""
    roots: Mapping[str, str] = field(default_factory=dict, hash=False)
    """The weights behind a name, by the path or name that it was started with; without those of which it says none."""
