"""The requests in flight as arrays, one row each, for policies that compute over every request.

Rows are dense: the first `count` rows of every column are the requests that have an endpoint, in no particular order.
When a row is removed, the last row moves to its index.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ballast_core.arrays import BoolArray, FloatArray, IntArray, bool_cells, float_cells, int_cells

NO_LIMIT = int(np.iinfo(np.int64).max)
"""`limit_tokens` of a request without a limit of its own."""

_FIRST_ROWS = 64


class Flights:
    """Columns by request, each a numpy view of shape (count,) that the next change invalidates."""

    def __init__(self) -> None:
        self.count = 0
        self._slot: IntArray = np.zeros(_FIRST_ROWS, np.int64)
        self._prompt_tokens: IntArray = np.zeros(_FIRST_ROWS, np.int64)
        self._limit_tokens: IntArray = np.zeros(_FIRST_ROWS, np.int64)
        self._generated_tokens: IntArray = np.zeros(_FIRST_ROWS, np.int64)
        self._counted_tokens: IntArray = np.zeros(_FIRST_ROWS, np.int64)
        self._class_slot: IntArray = np.zeros(_FIRST_ROWS, np.int64)
        self._decoding: BoolArray = np.zeros(_FIRST_ROWS, np.bool_)
        self._movable: BoolArray = np.zeros(_FIRST_ROWS, np.bool_)
        self._expected_tokens: FloatArray = np.zeros(_FIRST_ROWS)
        self._handoff_at_s: FloatArray = np.zeros(_FIRST_ROWS)
        self._first_token_at_s: FloatArray = np.zeros(_FIRST_ROWS)
        self._progress_at_s: FloatArray = np.zeros(_FIRST_ROWS)
        self._gap_from_s: FloatArray = np.zeros(_FIRST_ROWS)
        self._changed: list[BoolArray] = []
        """For each watcher, whether a row has changed since its last call of `changes`."""
        self._open_cells()

    def _open_cells(self) -> None:
        """Most changes are of one row: cells make them cheap."""
        self._slot_of = int_cells(self._slot)
        self._prompt_of = int_cells(self._prompt_tokens)
        self._limit_of = int_cells(self._limit_tokens)
        self._generated_of = int_cells(self._generated_tokens)
        self._counted_of = int_cells(self._counted_tokens)
        self._class_of = int_cells(self._class_slot)
        self._decodes = bool_cells(self._decoding)
        self._may_move = bool_cells(self._movable)
        self._expected_of = float_cells(self._expected_tokens)
        self._handoff_s_of = float_cells(self._handoff_at_s)
        self._first_s_of = float_cells(self._first_token_at_s)
        self._progress_s_of = float_cells(self._progress_at_s)
        self._gap_s_of = float_cells(self._gap_from_s)
        self._cells: tuple[memoryview[Any], ...] = (
            self._slot_of,
            self._prompt_of,
            self._limit_of,
            self._generated_of,
            self._counted_of,
            self._class_of,
            self._decodes,
            self._may_move,
            self._expected_of,
            self._handoff_s_of,
            self._first_s_of,
            self._progress_s_of,
            self._gap_s_of,
        )
        self._changed_cells = [bool_cells(changed) for changed in self._changed]

    def watch(self) -> int:
        """Register a watcher; returns its number for `changes`. At first, every row counts as changed."""
        self._changed.append(np.ones(len(self._slot), np.bool_))
        self._changed_cells.append(bool_cells(self._changed[-1]))
        return len(self._changed) - 1

    def changes(self, watcher: int) -> IntArray:
        """Rows below `count` whose request or state has changed since this watcher's last call; ascending."""
        changed = self._changed[watcher][: self.count]
        rows: IntArray = np.flatnonzero(changed)
        changed[rows] = False
        return rows

    @property
    def slot(self) -> IntArray:
        """Slot of the decode endpoint."""
        return self._slot[: self.count]

    @property
    def prompt_tokens(self) -> IntArray:
        """Tokens of the prompt."""
        return self._prompt_tokens[: self.count]

    @property
    def limit_tokens(self) -> IntArray:
        """The request's limit of output tokens; `NO_LIMIT` if it sets none."""
        return self._limit_tokens[: self.count]

    @property
    def generated_tokens(self) -> IntArray:
        """Output tokens so far, as of `progress_at_s`."""
        return self._generated_tokens[: self.count]

    @property
    def counted_tokens(self) -> IntArray:
        """Output tokens that the survival curves have counted already (`SurvivalBook.aged`)."""
        return self._counted_tokens[: self.count]

    @property
    def class_slot(self) -> IntArray:
        """Row of the request's traffic class in the survival tables."""
        return self._class_slot[: self.count]

    @property
    def decoding(self) -> BoolArray:
        """False while its prefill is pending or running."""
        return self._decoding[: self.count]

    @property
    def movable(self) -> BoolArray:
        """Whether its decode may migrate."""
        return self._movable[: self.count]

    @property
    def expected_tokens(self) -> FloatArray:
        """Final output length by the last prediction; NaN without one. A change of it alone notifies no watcher."""
        return self._expected_tokens[: self.count]

    @property
    def handoff_at_s(self) -> FloatArray:
        """When it reached its decode endpoint; while pending, when it is expected there."""
        return self._handoff_at_s[: self.count]

    @property
    def first_token_at_s(self) -> FloatArray:
        """When its first output token was seen; until then, when it reached its decode endpoint."""
        return self._first_token_at_s[: self.count]

    @property
    def progress_at_s(self) -> FloatArray:
        """When `generated_tokens` was last updated."""
        return self._progress_at_s[: self.count]

    @property
    def gap_from_s(self) -> FloatArray:
        """Since when the gap to the next token measures the endpoint: `progress_at_s`, but inf after a move."""
        return self._gap_from_s[: self.count]

    def generated(self, row: int) -> int:
        """`generated_tokens` of one row."""
        return self._generated_of[row]

    def counted(self, row: int) -> int:
        """`counted_tokens` of one row."""
        return self._counted_of[row]

    def progress_of(self, row: int) -> tuple[int, float]:
        """`generated_tokens` and `gap_from_s` of one row."""
        return self._generated_of[row], self._gap_s_of[row]

    def add(
        self,
        *,
        slot: int,
        prompt_tokens: int,
        limit_tokens: int | None,
        handoff_at_s: float,
        now_s: float,
        class_slot: int = 0,
        movable: bool = False,
        expected_tokens: float | None = None,
        decoding: bool = False,
        counted_tokens: int = 0,
    ) -> int:
        """Add a row, pending or decoding; returns its index, valid until a row is removed."""
        if self.count == len(self._slot):
            self._grow()
        row = self.count
        self.count += 1
        self._slot_of[row] = slot
        self._prompt_of[row] = prompt_tokens
        self._limit_of[row] = NO_LIMIT if limit_tokens is None else min(limit_tokens, NO_LIMIT)
        self._generated_of[row], self._counted_of[row] = 0, counted_tokens
        self._class_of[row] = class_slot
        self._decodes[row] = decoding
        self._may_move[row] = movable
        self._expected_of[row] = math.nan if expected_tokens is None else expected_tokens
        self._handoff_s_of[row] = self._first_s_of[row] = handoff_at_s
        self._progress_s_of[row] = self._gap_s_of[row] = now_s
        for changed in self._changed_cells:
            changed[row] = True
        return row

    def start_decoding(self, row: int, now_s: float) -> None:
        """Its KV cache has reached its decode endpoint."""
        self._decodes[row] = True
        self._handoff_s_of[row] = self._first_s_of[row] = self._progress_s_of[row] = now_s
        for changed in self._changed_cells:
            changed[row] = True

    def relocate(self, row: int, slot: int, now_s: float) -> None:
        """It continues in this slot: a decoding request now, a pending one at the time that was expected before."""
        self._slot_of[row] = slot
        if self._decodes[row]:
            self._handoff_s_of[row] = now_s
            self._gap_s_of[row] = math.inf
        for changed in self._changed_cells:
            changed[row] = True

    def resume(self, row: int, counted_tokens: int) -> None:
        """It has been here before, with its tokens: the gap to the next one measures nothing."""
        self._counted_of[row] = counted_tokens
        self._gap_s_of[row] = math.inf

    def progress(self, row: int, generated_tokens: int, now_s: float) -> None:
        """It has this many output tokens now."""
        if self._generated_of[row] == 0:
            self._first_s_of[row] = now_s
        self._generated_of[row] = generated_tokens
        self._progress_s_of[row] = self._gap_s_of[row] = now_s
        for changed in self._changed_cells:
            changed[row] = True

    def progress_all(self, rows: IntArray, generated_tokens: IntArray, at_s: FloatArray) -> None:
        """`progress` of many rows, each once, that have tokens already."""
        self._generated_tokens[rows] = generated_tokens
        self._progress_at_s[rows] = at_s
        self._gap_from_s[rows] = at_s
        for changed in self._changed:
            changed[rows] = True

    def expect(self, row: int, tokens: float) -> None:
        """Its final output length is predicted as this; NaN: there is no prediction."""
        self._expected_of[row] = tokens

    def remove(self, row: int) -> int:
        """Drop a row: the last row moves to index `row`. Returns that row's former index."""
        last = self.count - 1
        if row != last:
            for cells in self._cells:
                cells[row] = cells[last]
            for changed in self._changed_cells:
                changed[row] = True
        self.count = last
        return last

    def columns(
        self, watcher: int
    ) -> tuple[
        IntArray, IntArray, IntArray, IntArray, IntArray, BoolArray, FloatArray, FloatArray, FloatArray, BoolArray
    ]:
        """Whole columns for the compiled kernel: of `changes` the last one, which it clears, the others as below.

        Slot, prompt, limit and generated tokens, class slot, decoding; times of hand-off, first token and progress.
        """
        return (
            self._slot,
            self._prompt_tokens,
            self._limit_tokens,
            self._generated_tokens,
            self._class_slot,
            self._decoding,
            self._handoff_at_s,
            self._first_token_at_s,
            self._progress_at_s,
            self._changed[watcher],
        )

    def _grow(self) -> None:
        rows = 2 * len(self._slot)
        self._slot = np.resize(self._slot, rows)
        self._prompt_tokens = np.resize(self._prompt_tokens, rows)
        self._limit_tokens = np.resize(self._limit_tokens, rows)
        self._generated_tokens = np.resize(self._generated_tokens, rows)
        self._counted_tokens = np.resize(self._counted_tokens, rows)
        self._class_slot = np.resize(self._class_slot, rows)
        self._decoding = np.resize(self._decoding, rows)
        self._movable = np.resize(self._movable, rows)
        self._expected_tokens = np.resize(self._expected_tokens, rows)
        self._handoff_at_s = np.resize(self._handoff_at_s, rows)
        self._first_token_at_s = np.resize(self._first_token_at_s, rows)
        self._progress_at_s = np.resize(self._progress_at_s, rows)
        self._gap_from_s = np.resize(self._gap_from_s, rows)
        self._changed = [np.resize(changed, rows) for changed in self._changed]
        self._open_cells()
