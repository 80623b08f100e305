"""From what is right to what is asked for now: windows, changes under way, and the GPUs that are free.

The windows are the HorizontalPodAutoscaler's: a pool shrinks to the most that was right in the last `down_s`, and grows
to the least that was right in the last `up_s`. Roles of a flexible pool follow what was right all through `flip_s`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ballast_core.policies.scaling.fitting import Fitter, flexible, gpus, within
from ballast_core.policies.scaling.protocol import Counts, Inputs, Layout, Memory, Recommended

_JUST_BEFORE_S = 1e-3


@dataclass(frozen=True, slots=True)
class Windows:
    """Seconds for which something must have been right before it is done."""

    down_s: float
    up_s: float
    flip_s: float


@dataclass(frozen=True, slots=True)
class Steadied:
    """What to ask for, why it is not what is right (empty if it is), and what to remember."""

    target: Layout
    held_by: str
    memory: Memory


def remember(inputs: Inputs, right: Layout, windows: Windows) -> Memory:
    """The memory with this round's layout, and without what is older than every window."""
    names = tuple(pool.name for pool in inputs.pools)
    kept = inputs.memory.recommended if inputs.memory.pools == names else ()
    if not kept:  # what is there counts as right just before the first round
        kept = (Recommended(inputs.now_s - _JUST_BEFORE_S, inputs.wanted),)
    since_s = inputs.now_s - max(windows.down_s, windows.up_s, windows.flip_s)
    return Memory(names, (*(each for each in kept if each.at_s >= since_s), Recommended(inputs.now_s, right)))


def still_right(inputs: Inputs) -> Memory:
    """The memory after a round that cannot say what is right: what was right last is until another layout is."""
    recent = inputs.memory.recommended
    if not recent:
        return inputs.memory
    last = recent[-1].layout
    kept = recent[:-1] if len(recent) > 1 and recent[-2].layout == last else recent
    return Memory(inputs.memory.pools, (*kept, Recommended(inputs.now_s, last)))


def steady(inputs: Inputs, right: Layout, windows: Windows, fitter: Fitter, *, shrinks: bool = True) -> Steadied:
    """What to ask for, where `right` is right; the fitter says what instances do that a window keeps beyond that.

    Unless `shrinks` a pool gets fewer instances only as far as others need its GPUs. Where the present layout breaks a
    clamp, because clamps have changed, nothing is held back but by GPUs; unless another scaler may have broken it, and
    for as long as it likes.
    """
    memory, wanted = remember(inputs, right, windows), inputs.wanted
    legal = within(inputs.pools, wanted, inputs.clamps)
    recent = memory.recommended
    target, held_by = right, ""
    if legal or _others_may_break(inputs):
        replicas = []
        for k, pool in enumerate(inputs.pools):
            now, best = wanted[k].replicas, right[k].replicas
            if best < now:
                best = min(now, max(each.layout[k].replicas for each in _since(recent, inputs.now_s - windows.down_s)))
                if best < now and (pool.starting or pool.draining):
                    best, held_by = now, "ChangeUnderWay"
            elif best > now:
                best = max(now, min(each.layout[k].replicas for each in _since(recent, inputs.now_s - windows.up_s)))
            replicas.append(best)
        if not shrinks:
            replicas = _kept(inputs, replicas)
        if replicas != [counts.replicas for counts in right]:
            target = fitter.refit(right, replicas)
        lasting = [each.layout for each in _since(recent, inputs.now_s - windows.flip_s)]
        target = _lasting_roles(inputs, target, lasting)
    target, free = within_gpus(inputs, target)
    if not free and (target != wanted or any(pool.draining for pool in inputs.pools)):
        held_by = held_by or "ChangeUnderWay"
    if legal and not within(inputs.pools, target, inputs.clamps):
        target = wanted
    if target != right and not held_by:
        held_by = "Stabilising"
    return Steadied(target, held_by, memory)


def _kept(inputs: Inputs, replicas: list[int]) -> list[int]:
    """So many instances in each pool, those of shrinking ones kept as far as the budget goes beside the others."""
    kept = [max(now.replicas, best) for now, best in zip(inputs.wanted, replicas, strict=True)]
    if inputs.clamps.gpu_budget is None:
        return kept
    over = sum(pool.gpus * count for pool, count in zip(inputs.pools, kept, strict=True)) - inputs.clamps.gpu_budget
    for k, pool in enumerate(inputs.pools):
        while over > 0 and kept[k] > replicas[k]:
            kept[k] -= 1
            over -= pool.gpus
    return kept


def _others_may_break(inputs: Inputs) -> bool:
    """Whether another scaler's number may be what breaks a clamp. Not the budget: it gets what that leaves."""
    budget = inputs.clamps.gpu_budget
    in_budget = budget is None or gpus(inputs.pools, inputs.wanted) <= budget
    return in_budget and any(pool.by_others for pool in inputs.pools)


def _since(recent: Iterable[Recommended], since_s: float) -> list[Recommended]:
    """Those of a window; the newest one is always among them."""
    every = list(recent)
    return [each for each in every if each.at_s >= since_s] or every[-1:]


def _lasting_roles(inputs: Inputs, target: Layout, lasting: list[Layout]) -> Layout:
    """The target with roles of flexible pools changed only as far as all of `lasting` agree."""
    result = list(target)
    for k, pool in enumerate(inputs.pools):
        now, then = pool.wanted, target[k]
        if not flexible(pool) or then.replicas != now.replicas:
            continue
        shares = [each[k].prefill / each[k].replicas for each in lasting if each[k].replicas]
        agreed = [*(round(share * then.replicas) for share in shares), then.prefill]
        prefill = min(max(now.prefill, min(agreed)), max(agreed))
        result[k] = Counts(prefill, then.replicas - prefill)
    return tuple(result)


def within_gpus(inputs: Inputs, target: Layout) -> tuple[Layout, bool]:
    """The target as far as GPUs are free: those of instances that drain, or are about to, are not, but for a pool that
    takes them back. And if it is all."""
    budget, pools, wanted = inputs.clamps.gpu_budget, inputs.pools, inputs.wanted
    if budget is None:
        return target, True
    kept = tuple(now if now.replicas > then.replicas else then for now, then in zip(wanted, target, strict=True))
    back = [min(pool.returning, then.replicas - pool.wanted.replicas) for pool, then in zip(pools, kept, strict=True)]
    draining = sum(pool.gpus * (pool.draining - each) for pool, each in zip(pools, back, strict=True))
    over = gpus(pools, kept) + draining - budget
    result = list(target)
    for k, pool in reversed(list(enumerate(pools))):
        while over > 0 and result[k].replicas > wanted[k].replicas + back[k]:
            counts, now = result[k], wanted[k]
            less_prefill = counts.prefill > now.prefill
            result[k] = Counts(counts.prefill - less_prefill, counts.decode - (not less_prefill))
            over -= pool.gpus
    if over > 0:  # what is there has more than the budget already
        result = [now if then.replicas > now.replicas else then for now, then in zip(wanted, result, strict=True)]
    return tuple(result), tuple(result) == target
