"""Which candidates a request for a LoRA adapter is placed among: a stage before any placement.

Where the adapter is at work already, one more request costs no load from memory and no place among the `--max-loras` of
a batch; where neither it nor room for it is, the request waits until another adapter has no request left. So: at work >
asked for > room for one more > none, as in llm-d's `lora-affinity-scorer`. Affinity alone would pile a popular adapter
up on one endpoint. So an endpoint keeps it only within a bound on its load, by consistent hashing with bounded loads
(Mirrokni, Thorup, Zadimoghaddam, SODA 2018): `LOAD_BOUND` times the mean, and `SLACK` requests, because small batches
cost a decode next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

LOAD_BOUND: Final = 1.25
SLACK: Final = 4


class Affinity(IntEnum):
    """What an adapter finds at an endpoint."""

    NO_ROOM = 0
    ROOM = 1
    WAITING = 2
    RUNNING = 3


def preferred(affinities: Sequence[Affinity], loads: Sequence[int]) -> list[int]:
    """Indices of the candidates to place among; never none of some. `loads`: requests at each."""
    bound = LOAD_BOUND * sum(loads) / max(len(loads), 1) + SLACK
    everyone = range(len(affinities))
    for affinity in (Affinity.RUNNING, Affinity.WAITING):
        within = [k for k in everyone if affinities[k] is affinity and loads[k] < bound]
        if within:
            return within
    room = [k for k in everyone if affinities[k] is Affinity.ROOM]
    return room or [k for k in everyone if affinities[k] is not Affinity.NO_ROOM] or list(everyone)
