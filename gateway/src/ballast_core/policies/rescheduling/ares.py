"""ARES: move the decode whose move takes most away from the variance of future load (section 5, Algorithm 1)."""

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
"""Requests weighed against all targets at once."""
_NOISE_RATIO = 1e-9
"""A gain below this share of the objective is rounding."""


@dataclass(frozen=True, slots=True)
class Ares:
    """ARES, Algorithm 1 with the errata of docs/rescheduling.md.

    Load of endpoint i at time t: sum over its requests r that still run by then of N(r) + v t. w_i is its mean over the
    horizon by weights beta that sum to 1; i is overloaded if w_i > (1 + theta) mean w, and may take if below that. Of
    all requests of overloaded endpoints whose remaining tokens exceed those that the move itself takes, and all
    endpoints that may take, have a link, a place by the admission, and room for N(r) + N^(r) more tokens, the pair that
    lowers the weighted variance of loads most is moved; none if none lowers it.
    Decodes leave an endpoint that drains first, the longest ahead, for where the variance then rises least.
    Without `prediction` it is the paper's "vLLM + rescheduling": the current load decides alone.
    """

    type: ClassVar[str] = "ares"
    theta: float = parameter(0.1, "An endpoint is overloaded if its load is above the mean by more than this share.")
    horizon_s: float = parameter(60.0, "How far ahead load is looked at, in seconds, above 0, to 86400.")
    half_life_s: float = parameter(20.0, "The weight of a moment halves for every so many seconds ahead.")
    points: int = parameter(32, "Moments of the horizon at which load is compared, 1 to 1024.")
    prediction: bool = parameter(True, "Looks ahead by predicted lengths; false: the current load alone decides.")
    predictor: Literal["hinted", "survival"] = parameter(
        "hinted", "Who foretells lengths: hints with survival curves where there are none, or these alone."
    )
    load: Literal["share", "tokens"] = parameter(
        "share", "Load is tokens by the endpoint's share of a typical KV capacity, or raw tokens."
    )
    interval_s: float = parameter(1.0, "Seconds between two rounds, 0.05 to 3600.")
    max_moves_per_round: int = parameter(1, "Moves that balance, in one round, 1 to 64.")
    max_moves_under_way: int = parameter(
        4, "Moves at the same time, those that empty draining endpoints included, 1 to 256."
    )
    min_stay_s: float = parameter(10.0, "A request that has moved, or could not, stays for so long.")
    payoff: float = parameter(1.0, "Remaining tokens must exceed this many times those that a move takes.")
    memory_ratio: float = parameter(0.95, "Share of a target's KV capacity that moves may fill.")
    empty_draining: bool = parameter(True, "Moves decodes away from endpoints that drain.")

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
        """Rates turn tokens into seconds; lengths only where it looks ahead."""
        now = Belief.RATES | Belief.PROGRESS
        return now | Belief.LENGTHS if self.prediction else now

    @property
    def horizon(self) -> Horizon:
        """What it looks at."""
        if not self.prediction:
            return Horizon.now()
        return Horizon.discounted(self.horizon_s, self.half_life_s, self.points)

    def decide(self, decodes: Decodes) -> Round:
        """One round: endpoints that drain first, then balance."""
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
        self._places: IntArray | None = None if decodes.free_places is None else decodes.free_places.copy()
        if policy.prediction:
            self._total_tokens: FloatArray = decodes.tokens + decodes.remaining_tokens
            left_s = decodes.remaining_tokens / (policy.payoff * curves.rates[decodes.endpoint])
            left_s -= decodes.migration_setup_s
            self._slowest_s: FloatArray = left_s / np.maximum(decodes.tokens, 1.0)
            """Seconds that the copy of a token may take, so that the request outlives its move."""
        else:
            self._total_tokens = decodes.tokens
            self._slowest_s = np.full(len(decodes.tokens), np.inf)

    def balance(self) -> tuple[Move | None, str]:
        """The move that lowers the objective most, done; or why there is none."""
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
        """Up to so many moves away from endpoints that drain, those with the most tokens to come first."""
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
        """Those from the first on that has an endpoint to go to; what fits nowhere is left out in one look."""
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
        if self._places is not None:
            self._places[move.target] -= 1
        return move

    def _best(self, rows: IntArray, targets: IntArray, least_gain: float) -> Move | None:
        """The pair with the highest gain above `least_gain`; the first of equal ones.

        Pairs are looked at in the order of what their request could gain at most: most are never looked at.
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
                at = int(found.argmax())
                if found.flat[at] > floor:
                    floor = float(found.flat[at])
                    row, target = divmod(at, len(pairs.targets))
                    best = Move(int(rows[chunk[row]]), int(pairs.targets[target]), floor / count)
                start, size = start + size, _CHUNK
        return best

    def _alike(self, targets: IntArray) -> list[IntArray]:
        """Targets by what a request's load on them depends on."""
        kinds = np.stack([self._curves.rates[targets], self._curves.scale[targets]], axis=1)
        _, members = np.unique(kinds, axis=0, return_inverse=True)
        members = members.ravel()
        return [targets[members == kind] for kind in range(int(members.max()) + 1)]

    def _allowed(self, rows: IntArray, targets: IntArray) -> BoolArray:
        """Pairs whose request outlives the move, and whose target takes and holds it; shape (rows, targets)."""
        source = self._curves.endpoint[rows]
        allowed = self._total_tokens[rows][:, None] <= self._room(targets)
        allowed &= self._decodes.migration_s[np.ix_(source, targets)] < self._slowest_s[rows][:, None]
        allowed &= source[:, None] != targets
        return np.asarray(allowed, np.bool_)

    def _room(self, targets: IntArray) -> FloatArray:
        """Tokens that each of them may yet be given, by its memory; -inf without a place. Shape (targets,)."""
        room = self._policy.memory_ratio * self._decodes.kv_tokens[targets] - self._curves.held_tokens[targets]
        if self._places is not None:
            room[self._places[targets] <= 0] = -np.inf
        return np.asarray(room, np.float64)
