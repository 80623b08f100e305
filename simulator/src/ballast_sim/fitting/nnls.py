"""Least squares with coefficients that cannot be negative."""

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
_TOLERANCE = 1e-10


def non_negative_least_squares(matrix: FloatArray, target: FloatArray) -> FloatArray:
    """The x >= 0 with the least |matrix x - target|: the active-set method of Lawson and Hanson (1974, chapter 23).

    `matrix` has shape (rows, columns), `target` (rows,). Columns may differ by any scale: they are brought to length 1
    first. A column of zeros gets 0. Of columns that are multiples of each other only one gets a value.
    """
    lengths = np.linalg.norm(matrix, axis=0)
    scales = np.where(lengths > 0, lengths, 1.0)
    orthonormal, triangle = np.linalg.qr(matrix / scales)  # the same sum of squares, but for a constant
    rest = orthonormal.T @ target
    columns = matrix.shape[1]
    solution = np.zeros(columns)
    free = np.zeros(columns, dtype=bool)
    enough = _TOLERANCE * max(float(np.linalg.norm(target)), np.finfo(float).tiny)
    for _ in range(10 * columns):
        if free.all():
            break
        gradient = np.where(free, -np.inf, triangle.T @ (rest - triangle @ solution))
        best = int(np.argmax(gradient))
        if gradient[best] <= enough:
            break
        free[best] = True
        solution = _descend(triangle, rest, solution, free)
    result: FloatArray = solution / scales
    return result


def _descend(matrix: FloatArray, target: FloatArray, start: FloatArray, free: BoolArray) -> FloatArray:
    """The least squares over the free columns; those that would turn negative are fixed at 0 (`free` is changed)."""
    solution = start
    while True:
        candidate = np.zeros_like(solution)
        candidate[free] = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
        negative = free & (candidate <= 0)
        if not negative.any():
            return candidate
        share = np.min(solution[negative] / (solution[negative] - candidate[negative]), initial=1.0)
        solution = solution + share * (candidate - solution)
        free &= solution > np.finfo(float).eps
        solution = np.where(free, solution, 0.0)
