"""Which of an engine's routes clients reach through the picker face: vLLM 0.32's inference API, and no others.

The rest of its routes (`/sleep`, `/collective_rpc`, `/v1/load_lora_adapter`, `/update_weights`, ...) are for whoever
runs the engines. A path passes if it is written exactly as it stands here: engines decode and normalise what proxies
pass on, so `/%73leep` is `/sleep` to them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

INFERENCE: Final = frozenset(
    {
        *("/v1/completions", "/v1/completions/render", "/v1/completions/derender"),
        *("/v1/chat/completions", "/v1/chat/completions/batch"),
        *("/v1/chat/completions/render", "/v1/chat/completions/derender"),
        *("/v1/responses", "/v1/responses/render"),
        *("/v1/messages", "/v1/messages/count_tokens", "/v1/messages/render"),
        *("/v1/embeddings", "/v1/audio/transcriptions", "/v1/audio/translations"),
        *("/v1/score", "/score", "/v1/rerank", "/v2/rerank", "/rerank", "/classify", "/pooling", "/generative_scoring"),
        *("/cohere/v2/chat", "/v2/embed", "/tokenize", "/detokenize"),
        *("/v1/models", "/health"),
    }
)
_RESPONSE: Final = re.compile(r"/v1/responses/[A-Za-z0-9_-]{1,128}(/cancel)?")


def passes(path: str, more: Collection[str] = ()) -> bool:
    """Whether clients may ask engines for this path, without its query; `more` are paths that settings add."""
    return path in INFERENCE or path in more or _RESPONSE.fullmatch(path) is not None
