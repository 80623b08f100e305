"""How many prompt tokens the next step may compute beside its decodes (Libra section 4.2, Algorithm 2).

A table of step times over (prompt tokens, mean context of the decodes, decodes). It starts from a hardware profile and
is corrected by every measured step: section 5's offline table, and line 1 of the algorithm. Each cell holds a factor on
the profile's law, so a cell without measurements predicts the law. Cells grow by powers of two. A measurement also
corrects the whole table a little, because a profile that is wrong in one cell is usually wrong in all.

The search relies on one property: more prompt tokens never take less time. Factors of neighbouring cells could break
it. Therefore the time of a step with n prompt tokens is the longest prediction of the table up to n. The budget is the
largest n within the SLO, and a larger SLO never gives a smaller budget.
"""

from __future__ import annotations

import math

from ballast_core.profiles import HardwareProfile

_PREFILLS, _CONTEXTS, _DECODES = 20, 20, 14
"""The last cells, which hold all larger values: a million tokens, 16,384 decodes."""
_LONGEST_RATIO = 8.0
"""A measurement counts as at most this many times longer or shorter than predicted."""


class StepTimeTable:
    """Step times of one engine. Times in seconds; `context_tokens` is the mean over the decodes, as in the paper."""

    def __init__(
        self,
        profile: HardwareProfile,
        *,
        granule_tokens: int = 16,
        cell_weight: float = 0.2,
        table_weight: float = 0.02,
    ) -> None:
        """`granule_tokens`: budgets are multiples of it. The weights are those of one measurement, 0 to 0.5.

        Raises ValueError naming the field.
        """
        if granule_tokens < 1:
            raise ValueError(f"granule_tokens: must be 1 or more, not {granule_tokens!r}")
        for name, weight in (("cell_weight", cell_weight), ("table_weight", table_weight)):
            if not 0 <= weight <= 0.5:
                raise ValueError(f"{name}: must be 0 to 0.5, not {weight!r}")
        self.profile = profile
        self.granule_tokens = granule_tokens
        self._cell_weight = cell_weight
        self._table_weight = table_weight
        self._scale = 1.0
        """Factor of the whole table."""
        self._factors: dict[tuple[int, int, int], float] = {}
        """Factors of the measured cells, on top of the scale."""

    def predict_s(
        self, prefill_tokens: int, context_tokens: float, decodes: int, *, prefill_context_tokens: float = 0.0
    ) -> float:
        """Seconds of a step with these prompt tokens and decodes; it never falls with more prompt tokens.

        `prefill_context_tokens`: tokens of the same prompt that are computed already. The paper's table has no such
        dimension, which is 0 here.
        """
        context_cell, decodes_cell = _cell(context_tokens, _CONTEXTS), _cell(decodes, _DECODES)
        longest_s = 0.0
        for cell in range(_cell(prefill_tokens, _PREFILLS) + 1):
            factor = self._factors.get((cell, context_cell, decodes_cell), 1.0)
            # The law grows with prompt tokens: the longest step of a cell is its last one, or the given step.
            tokens = prefill_tokens if cell == _PREFILLS else min(prefill_tokens, (1 << cell) - 1)
            longest_s = max(longest_s, factor * self._law_s(tokens, context_tokens, decodes, prefill_context_tokens))
        return self._scale * longest_s

    def observe(
        self,
        prefill_tokens: int,
        context_tokens: float,
        decodes: int,
        measured_s: float,
        *,
        prefill_context_tokens: float = 0.0,
    ) -> None:
        """Learn from a measured step (line 1). A time that is not positive and finite is ignored.

        The cell's prediction moves towards the measurement, as a ratio, by both weights; all others by the table's.
        """
        if not 0 < measured_s < math.inf or prefill_tokens + decodes <= 0:
            return
        key = _cell(prefill_tokens, _PREFILLS), _cell(context_tokens, _CONTEXTS), _cell(decodes, _DECODES)
        law_s = self._law_s(prefill_tokens, context_tokens, decodes, prefill_context_tokens)
        factor = self._factors.get(key, 1.0)
        believed_s = self._scale * factor * law_s
        ratio = min(max(measured_s / believed_s, 1.0 / _LONGEST_RATIO), _LONGEST_RATIO)
        self._factors[key] = factor * ratio**self._cell_weight
        self._scale *= ratio**self._table_weight

    def max_prefill_tokens(
        self,
        context_tokens: float,
        decodes: int,
        slo_s: float,
        cap_tokens: int = 8192,
        *,
        prefill_context_tokens: float = 0.0,
    ) -> int:
        """The largest number of prompt tokens with which the step is predicted to stay within the SLO (line 3).

        It is a multiple of the granule, or `cap_tokens`, the upper bound. If even one granule takes too long, it is 0
        while requests decode. Without decodes it is one granule: such a step delays no token, and prompts make
        progress. If decodes always take the whole SLO, prompts wait, and the engine decides for how long.
        """

        def fits(tokens: int) -> bool:
            took_s = self.predict_s(tokens, context_tokens, decodes, prefill_context_tokens=prefill_context_tokens)
            return took_s <= slo_s

        cap = max(cap_tokens, 0)
        if cap and fits(cap):
            return cap
        low, high = 0, cap // self.granule_tokens
        while low < high:
            middle = (low + high + 1) // 2
            if fits(middle * self.granule_tokens):
                low = middle
            else:
                high = middle - 1
        tokens = low * self.granule_tokens
        return tokens if tokens or decodes else min(self.granule_tokens, cap)

    def _law_s(self, prefill_tokens: int, context_tokens: float, decodes: int, prefill_context_tokens: float) -> float:
        """Seconds of the step by the profile."""
        pairs = prefill_tokens * (prefill_context_tokens + prefill_tokens / 2)
        return self.profile.step_s(prefill_tokens + decodes, context_tokens * decodes, pairs, decodes)


def _cell(value: float, most: int) -> int:
    """The cell of a value: 0; 1; 2-3; 4-7; 8-15; ..."""
    return min(int(max(value, 0.0)).bit_length(), most)
