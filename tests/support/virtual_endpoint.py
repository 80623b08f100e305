"""Libra's virtual batches on one endpoint, taken pass by pass: what `ballast_core.partition` leaps over."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ballast_core.profiles import HardwareProfile


@dataclass(slots=True)
class Part:
    """One part of a request on one endpoint."""

    prefill: int = 0
    decode: int = 0
    context: int = 0
    ready_s: float = 0.0
    finished_s: float = math.inf
    kv: float = 0.0
    """What it holds on average, from the beginning."""

    def __post_init__(self) -> None:
        self.kv = self.context + self.prefill + self.decode / 2


class OneEndpoint:
    """The module's three rules, one pass after the other."""

    prompt: float = math.inf
    memory: float = math.inf

    def __init__(self, parts: list[Part], budget: int, most: int, profile: HardwareProfile) -> None:
        self.waiting = sorted(parts, key=lambda part: part.ready_s)
        self.decoding: list[Part] = []
        self.budget, self.most, self.profile, self.now_s = budget, most, profile, 0.0

    def run(self) -> None:
        while self.waiting or self.decoding:
            while self.may_begin(0) and self.waiting[0].prefill == 0:
                self.prefilled(self.waiting.pop(0))
            if self.decoding or self.may_begin(0):
                self.one_pass()
            elif self.waiting:
                self.now_s = self.waiting[0].ready_s

    def may_begin(self, number: int) -> bool:
        if number >= len(self.waiting) or len(self.decoding) + number >= self.most:
            return False
        if self.waiting[number].ready_s > self.now_s + 1e-9:
            return False
        active = [*self.decoding, *self.waiting[:number]]
        held = sum(part.kv for part in active) + self.waiting[number].kv
        return not active or held <= self.memory

    def prefilled(self, part: Part) -> None:
        if part.decode:
            self.decoding.append(part)
        else:
            part.finished_s = self.now_s

    def one_pass(self) -> None:
        left, computed, pairs, ended = int(max(min(self.budget - len(self.decoding), self.prompt), 1)), 0, 0.0, 0
        while left and self.may_begin(ended):
            part = self.waiting[ended]
            chunk = min(part.prefill, left)
            pairs += chunk * (part.context + chunk / 2)
            part.prefill, part.context = part.prefill - chunk, part.context + chunk
            left, computed = left - chunk, computed + chunk
            if part.prefill:
                break
            ended += 1
        decodes, context = len(self.decoding), sum(part.context for part in self.decoding)
        self.now_s += self.profile.step_s(computed + decodes, context, pairs, decodes)
        for part in self.decoding:
            part.decode, part.context = part.decode - 1, part.context + 1
            if part.decode == 0:
                part.finished_s = self.now_s
        self.decoding = [part for part in self.decoding if part.decode]
        for part in self.waiting[:ended]:
            self.prefilled(part)
        del self.waiting[:ended]
