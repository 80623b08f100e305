"""ARES: the move that lowers the variance of future load most (section 5, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from ballast_core.arrays import BoolArray, FloatArray, IntArray
from ballast_core.beliefs.kinds import Belief
from ballast_core.policies.declaring import check_within, parameter
from ballast_core.policies.rescheduling.gains import Gains
from ballast_core.policies.rescheduling.load_curves import Horizon, LoadCurves
from ballast_core.policies.rescheduling.protocol import Decodes, Move, Round

_FIRST_CHUNK = 32
_CHUNK = 256
"""Requests weighed against all targets in one pass."""
_NOISE_RATIO = 1e-9
"""A gain below this share of the objective is rounding."""


@dataclass(frozen=True, slots=True)
class Ares:
    """ARES, Algorithm 1 with the errata of docs/rescheduling.md.

    Load of endpoint i at time t: sum of N(r) + v t over its requests r that still run then, with N(r) the tokens that r
    holds now and v tokens per second. w_i: its mean over the horizon, with weights beta that sum to 1. Endpoint i is
    overloaded if w_i > (1 + theta) mean w; below that it may be a target. A request of an overloaded endpoint may move
    if its remaining tokens N^(r) exceed those that the move itself takes. The target needs a link, capacity by the
    admission, and memory for N(r) + N^(r) tokens. The pair that lowers the weighted variance of loads most is moved;
    none if no pair lowers it. Decodes leave draining endpoints first, those with the most tokens to come before others,
    for the target with which the variance rises least.
    Without `prediction` it is the paper's "vLLM + rescheduling": the current load alone decides.
    """

    type: ClassVar[str] = "ares"
    theta: float = parameter(0.1, "An endpoint is overloaded if its load is above the mean by more than this share.")
    horizon_s: float = parameter(60.0, "How far ahead load is predicted, in seconds, above 0 to 86400.")
    half_life_s: float = parameter(20.0, "Seconds ahead after which the weight of predicted load has halved.")
    points: int = parameter(32, "Points of time of the horizon at which load is compared, 1 to 1024.")
    prediction: bool = parameter(True, "Whether predicted lengths count; if not, the current load alone decides.")
    predictor: Literal["hinted", "survival"] = parameter(
        "hinted", "Predictor of lengths: hints, with survival curves where there are none, or survival curves alone."
    )
    load: Literal["share", "tokens"] = parameter(
        "share", "Load is tokens relative to the endpoint's KV capacity, or raw tokens."
    )
    interval_s: float = parameter(1.0, "Seconds between two rounds, 0.05 to 3600.")
    max_moves_per_round: int = parameter(1, "Moves of one round that balance load, 1 to 64.")
    max_moves_under_way: int = parameter(
        4, "Moves at the same time, those away from draining endpoints included, 1 to 256."
    )
    min_stay_s: float = parameter(10.0, "Seconds for which a request stays after a move, done or failed.")
    payoff: float = parameter(1.0, "Remaining tokens must exceed the move's own tokens by this factor.")
    memory_ratio: float = parameter(0.95, "Share of a target's KV capacity that moves may fill.")
    empty_draining: bool = parameter(True, "Whether decodes are moved away from draining endpoints.")

    def __post_init__(self) -> None:
        """Raises ValueError naming the field."""
        for name in ("theta", "min_stay_s"):
            if not 0 <= getattr(self, name) < np.inf:
                raise ValueError(f"{name}: must be a finite number, 0 or more, not {getattr(self, name)!r}")
        for name in ("horizon_s", "half_life_s", "payoff"):
            if not 0 < getattr(self, name) < np.inf:
                raise ValueError(f"{name}: must be a finite number above 0, not {getattr(self, name)!r}")
        check_within(
            self,
            horizon_s=(0, 86_400),
            interval_s=(0.05, 3600),
            points=(1, 1024),
            max_moves_per_round=(1, 64),
            max_moves_under_way=(1, 256),
        )
        if not 0 < self.memory_ratio <= 1:
            raise ValueError(f"memory_ratio: must be above 0 and at most 1, not {self.memory_ratio!r}")

    @property
    def needs(self) -> Belief:
        """Rates, which turn tokens into seconds; lengths only with `prediction`."""
        now = Belief.RATES | Belief.PROGRESS
        return now | Belief.LENGTHS if self.prediction else now

    @property
    def horizon(self) -> Horizon:
        """The points of time at which load is compared."""
        if not self.prediction:
            return Horizon.now()
        return Horizon.discounted(self.horizon_s, self.half_life_s, self.points)

    def decide(self, decodes: Decodes) -> Round:
        """One round: empty draining endpoints first, then balance."""
        curves = LoadCurves(decodes, self.horizon, by_capacity=self.load == "share")
        loads, objective = curves.weighted(), curves.objective()
        free = self.max_moves_under_way - decodes.moves_under_way
        if free <= 0:
            return Round((), loads, objective, f"{decodes.moves_under_way} moves are under way, the limit")
        search = _Search(self, curves, decodes)
        moves: list[Move] = []
        if self.empty_draining:
            moves += search.empty_draining(free)
        reason = f"{len(moves)} moves, the limit"
        while len(moves) < free:
            if len(moves) >= self.max_moves_per_round:
                break
            move, reason = search.balance()
            if move is None:
                break
            moves.append(move)
            reason = f"{len(moves)} moves, the limit"
        return Round(tuple(moves), loads, objective, reason)


class _Search:
    """The pairs of request and target, weighed on curves that follow each move. R rows, E endpoints, H points."""

    def __init__(self, policy: Ares, curves: LoadCurves, decodes: Decodes) -> None:
        self._policy = policy
        self._curves = curves
        self._decodes = decodes
        self._may_move: BoolArray = decodes.may_move.copy()
        self._free: IntArray | None = None if decodes.free_decodes is None else decodes.free_decodes.copy()
        if policy.prediction:
            self._total_tokens: FloatArray = decodes.tokens + decodes.remaining_tokens
            left_s = decodes.remaining_tokens / (policy.payoff * curves.rates[decodes.endpoint])
            left_s -= decodes.migration_setup_s
            self._slowest_s: FloatArray = left_s / np.maximum(decodes.tokens, 1.0)
            """Longest copy of one token, in seconds, with which the request outlives its move."""
        else:
            self._total_tokens = decodes.tokens
            self._slowest_s = np.full(len(decodes.tokens), np.inf)

    def balance(self) -> tuple[Move | None, str]:
        """The move that lowers the objective most, applied to the curves; or the reason why there is none."""
        curves, decodes = self._curves, self._decodes
        loads = curves.weighted()
        if len(curves.takes) < 2:
            return None, "there are not two endpoints to choose between"
        limit = (1.0 + self._policy.theta) * float(loads[curves.takes].mean())
        overloaded = decodes.takes & (loads > limit)
        if not overloaded.any():
            return None, "no endpoint is overloaded"
        targets = np.flatnonzero(decodes.takes & (loads < limit))
        rows = np.flatnonzero(self._may_move & overloaded[curves.endpoint])
        best = self._best(rows, targets, _NOISE_RATIO * curves.objective())
        if best is None:
            return None, "no move lowers the variance"
        return self._done(best), ""

    def empty_draining(self, most: int) -> Iterator[Move]:
        """Up to `most` moves away from draining endpoints; requests with the most tokens to come first."""
        curves = self._curves
        rows = np.flatnonzero(self._may_move & ~self._decodes.takes[curves.endpoint])
        rows = rows[np.argsort(-self._decodes.remaining_tokens[rows], kind="stable")]
        while most > 0 and len(rows := self._from_first_with_target(rows)):
            best = self._best(rows[:1], curves.takes, -np.inf)
            if best is not None:
                most -= 1
                yield self._done(best)
            rows = rows[1:]

    def _from_first_with_target(self, rows: IntArray) -> IntArray:
        """The rows from the first one on that has a target; rows that fit on no target are dropped in one pass."""
        targets = self._curves.takes
        if not len(targets):
            return rows[:0]
        rows = rows[self._total_tokens[rows] <= self._room(targets).max()]
        for start in range(0, len(rows), _CHUNK):
            able = self._allowed(rows[start : start + _CHUNK], targets).any(axis=1)
            if able.any():
                return rows[start + int(able.argmax()) :]
        return rows[:0]

    def _done(self, move: Move) -> Move:
        self._curves.move(move.request, move.target, float(self._total_tokens[move.request]))
        self._may_move[move.request] = False
        if self._free is not None:
            self._free[move.target] -= 1
        return move

    def _best(self, rows: IntArray, targets: IntArray, least_gain: float) -> Move | None:
        """The pair with the highest gain above `least_gain`; the first of equal ones.

        Pairs are checked in the order of their upper bounds, so most are never checked.
        """
        count = len(self._curves.takes)
        if not len(rows) or not len(targets):
            return None
        gains = Gains(self._curves, rows)
        groups = [gains.pairs(group) for group in self._alike(targets)]
        groups.sort(key=lambda pairs: -float(pairs.bounds.max()))
        best, floor = None, least_gain * count
        for pairs in groups:
            promising = np.flatnonzero(pairs.bounds > floor)
            promising = promising[np.argsort(-pairs.bounds[promising], kind="stable")]
            start, size = 0, _FIRST_CHUNK
            while start < len(promising) and pairs.bounds[promising[start]] > floor:
                chunk = promising[start : start + size]
                found = np.where(self._allowed(rows[chunk], pairs.targets), gains.of(pairs, chunk), -np.inf)
                highest = int(found.argmax())
                if found.flat[highest] > floor:
                    floor = float(found.flat[highest])
                    row, target = divmod(highest, len(pairs.targets))
                    best = Move(int(rows[chunk[row]]), int(pairs.targets[target]), floor / count)
                start, size = start + size, _CHUNK
        return best

    def _alike(self, targets: IntArray) -> list[IntArray]:
        """Groups of targets with the same rate and scale, on which a request's load is the same."""
        kinds = np.stack([self._curves.rates[targets], self._curves.scale[targets]], axis=1)
        _, members = np.unique(kinds, axis=0, return_inverse=True)
        members = members.ravel()
        return [targets[members == kind] for kind in range(int(members.max()) + 1)]

    def _allowed(self, rows: IntArray, targets: IntArray) -> BoolArray:
        """Pairs whose request outlives the move and fits on the target; shape (rows, targets)."""
        source = self._curves.endpoint[rows]
        allowed = self._total_tokens[rows][:, None] <= self._room(targets)
        allowed &= self._decodes.migration_s[np.ix_(source, targets)] < self._slowest_s[rows][:, None]
        allowed &= source[:, None] != targets
        return np.asarray(allowed, np.bool_)

    def _room(self, targets: IntArray) -> FloatArray:
        """Tokens for which each target has memory left; -inf if admission lets it take no decode. Shape (targets,)."""
        room = self._policy.memory_ratio * self._decodes.kv_tokens[targets] - self._curves.held_tokens[targets]
        if self._free is not None:
            room[self._free[targets] <= 0] = -np.inf
        return np.asarray(room, np.float64)
