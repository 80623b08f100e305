"""ARES's length predictor: an MLP on the last layer's hidden state of the last token (section 4.2, Eq. 2).

Four layers, d -> 2048 -> 512 -> 64 -> 1 in the paper, with ReLU between them. It runs where hidden states are, in the
engine, which tells what it says by `LengthPredicted`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ballast_core.arrays import FloatArray

PAPER_WIDTHS = (2048, 512, 64, 1)
"""Outputs of each layer in the paper, whose d is 3584: 8.4 million weights."""


@dataclass(frozen=True, slots=True, eq=False)
class LengthMlp:
    """Layer k maps x to W_k x + c_k. Any number of layers of any widths, the last of width 1."""

    weights: tuple[NDArray[Any], ...]
    """Shapes (outputs, inputs)."""
    biases: tuple[NDArray[Any], ...]
    """Shapes (outputs,)."""

    @classmethod
    def of(cls, weights: Sequence[NDArray[Any]], biases: Sequence[NDArray[Any]] | None = None) -> LengthMlp:
        """From arrays, without biases as in Eq. 2 if none are given. Raises ValueError naming the layer, from 1 on."""
        if not weights:
            raise ValueError("weights: there must be one layer at least")
        for number, layer in enumerate(weights, start=1):
            if layer.ndim != 2:
                raise ValueError(f"layer {number}: weights must have 2 dimensions, (outputs, inputs), not {layer.ndim}")
            if not np.isfinite(layer).all():
                raise ValueError(f"layer {number}: weights must be finite numbers")
            if number > 1 and layer.shape[1] != (before := weights[number - 2].shape[0]):
                raise ValueError(
                    f"layer {number}: takes {layer.shape[1]} inputs, but layer {number - 1} gives {before} outputs"
                )
        if weights[-1].shape[0] != 1:
            raise ValueError(f"layer {len(weights)}: the last one must give 1 output, not {weights[-1].shape[0]}")
        if biases is None:
            biases = [np.zeros(len(layer), layer.dtype) for layer in weights]
        if len(biases) != len(weights):
            raise ValueError(f"biases: there must be one for each of {len(weights)} layers, not {len(biases)}")
        for number, (bias, layer) in enumerate(zip(biases, weights, strict=True), start=1):
            if bias.shape != (len(layer),):
                raise ValueError(f"layer {number}: bias must have shape ({len(layer)},), not {bias.shape}")
            if not np.isfinite(bias).all():
                raise ValueError(f"layer {number}: bias must be finite numbers")
        return cls(tuple(weights), tuple(biases))

    @property
    def width(self) -> int:
        """d: size of the hidden state."""
        return int(self.weights[0].shape[1])

    @property
    def parameters(self) -> int:
        """Number of weights, biases left out."""
        return sum(layer.size for layer in self.weights)

    def remaining_tokens(self, hidden: NDArray[Any]) -> FloatArray:
        """Predicted output tokens to come, 0 or more, for hidden states of shape (requests, d); shape (requests,).

        Raises ValueError for another shape.
        """
        if hidden.ndim != 2 or hidden.shape[1] != self.width:
            raise ValueError(f"hidden: must have shape (requests, {self.width}), not {hidden.shape}")
        values = hidden
        for number, (layer, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = values @ layer.T + bias
            if number < len(self.weights) - 1:
                values = np.maximum(values, 0.0)
        return np.maximum(values[:, 0].astype(np.float64), 0.0)
