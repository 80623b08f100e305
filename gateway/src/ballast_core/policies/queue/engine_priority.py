"""A queue order as priorities for engines that schedule by them, such as vLLM with `--scheduling-policy priority`.

vLLM sorts its waiting queue by (priority, arrival there), lower first, and a priority is any integer. It gets
floor(1000 (key - start)) of an order's key: milliseconds if keys are times. The request's own priority comes first: one
step of it outweighs every key.
"""

from __future__ import annotations

import math

from ballast_core.policies.queue.protocol import QueueOrder, Service, Work

_PER_UNIT = 1000
_SPAN = 10**11
"""One step of a request's own priority: 1e8 units of key, about 3 years."""
_MOST_STEPS = 10**6


def engine_priority(order: QueueOrder, work: Work, service: Service, start_s: float) -> int:
    """The engine priority, lower first. It fits 64 bits, and is small if the request's own priority is 0.

    `start_s` is subtracted from arrivals and deadlines, so that keys count from there.
    """
    due_s = None if work.deadline_s is None else work.deadline_s - start_s
    moved = Work(
        arrived_s=work.arrived_s - start_s,
        prompt_tokens=work.prompt_tokens,
        cached_tokens=work.cached_tokens,
        prefilled_tokens=work.prefilled_tokens,
        generated_tokens=work.generated_tokens,
        expected_output_tokens=work.expected_output_tokens,
        deadline_s=due_s,
        priority=work.priority,
    )
    key = math.floor(_PER_UNIT * order.key(moved, service))
    half = _SPAN // 2 - 1
    steps = max(-_MOST_STEPS, min(work.priority, _MOST_STEPS))
    return steps * _SPAN + max(-half, min(key, half))
