"""Dimensions of the models that profiles are derived for; bf16, head size 128, grouped-query attention."""

from collections.abc import Mapping
from dataclasses import dataclass

HEAD_SIZE = 128
BYTES_PER_PARAMETER = 2
MEMORY_SHARE_RATIO = 0.9  # vLLM's --gpu-memory-utilization
RESERVED_BYTES_PER_GPU = 3 * 2**30  # activations, graphs, NCCL


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A dense decoder-only transformer with a gated feed-forward part."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    feed_forward: int
    vocabulary: int

    @property
    def layer_parameters(self) -> int:
        """Weights of all layers: what each computed token is multiplied with."""
        attention = self.hidden * (2 * self.heads + 2 * self.kv_heads) * HEAD_SIZE
        return self.layers * (attention + 3 * self.hidden * self.feed_forward)

    @property
    def head_parameters(self) -> int:
        """Weights of the output head; the embedding table is as large."""
        return self.hidden * self.vocabulary

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in all layers."""
        return 2 * self.layers * self.kv_heads * HEAD_SIZE * BYTES_PER_PARAMETER

    @property
    def flop_per_token(self) -> float:
        """Arithmetic of the layers' matrix products for one token."""
        return 2.0 * self.layer_parameters

    @property
    def flop_per_pair(self) -> float:
        """Attention arithmetic for one (new token, earlier token) pair: scores and weighted sum."""
        return 4.0 * self.layers * self.heads * HEAD_SIZE

    @property
    def bytes_per_step(self) -> int:
        """Weights that a step reads, however few tokens it computes: layers and output head."""
        return BYTES_PER_PARAMETER * (self.layer_parameters + self.head_parameters)

    def kv_tokens(self, gpus: int, bytes_per_gpu: float) -> int:
        """KV tokens that fit beside weights and reserve; may be negative."""
        weights = BYTES_PER_PARAMETER * (self.layer_parameters + 2 * self.head_parameters)
        room = gpus * (MEMORY_SHARE_RATIO * bytes_per_gpu - RESERVED_BYTES_PER_GPU) - weights
        return int(room // self.kv_bytes_per_token)


MODELS: Mapping[str, ModelShape] = {
    "llama3-8b": ModelShape(layers=32, hidden=4096, heads=32, kv_heads=8, feed_forward=14336, vocabulary=128256),
    "qwen3-14b": ModelShape(layers=40, hidden=5120, heads=40, kv_heads=8, feed_forward=17408, vocabulary=151936),
    "qwen3-32b": ModelShape(layers=64, hidden=5120, heads=64, kv_heads=8, feed_forward=25600, vocabulary=151936),
    "qwen2.5-14b": ModelShape(layers=48, hidden=5120, heads=40, kv_heads=8, feed_forward=13824, vocabulary=152064),
    "qwen2.5-32b": ModelShape(layers=64, hidden=5120, heads=40, kv_heads=8, feed_forward=27648, vocabulary=152064),
    "llama3-70b": ModelShape(layers=80, hidden=8192, heads=64, kv_heads=8, feed_forward=28672, vocabulary=128256),
}
