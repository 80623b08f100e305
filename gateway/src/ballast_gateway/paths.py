"""Which of an engine's routes clients reach through the gateway: vLLM 0.32's inference API, and no others.

The rest of its routes (`/sleep`, `/collective_rpc`, `/v1/load_lora_adapter`, `/update_weights`, ...) are for whoever
runs the engines. A path passes if it is written exactly as it stands here: engines decode and normalise what proxies
pass on, so `/%73leep` is `/sleep` to them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
CHAT_BATCH: Final = f"{CHAT}/batch"
RESPONSES: Final = "/v1/responses"
MESSAGES: Final = "/v1/messages"
"""Anthropic's."""
COHERE_CHAT: Final = "/cohere/v2/chat"
MODELS: Final = "/v1/models"
HEALTH: Final = "/health"
_UPLOADS: Final = frozenset({"/v1/audio/transcriptions", "/v1/audio/translations"})
"""Their bodies are forms, not JSON."""

INFERENCE: Final = frozenset(
    {
        *(COMPLETIONS, "/v1/completions/render", "/v1/completions/derender"),
        *(CHAT, CHAT_BATCH),
        *("/v1/chat/completions/render", "/v1/chat/completions/derender"),
        *(RESPONSES, "/v1/responses/render"),
        *(MESSAGES, "/v1/messages/count_tokens", "/v1/messages/render"),
        *("/v1/embeddings", *_UPLOADS),
        *("/v1/score", "/score", "/v1/rerank", "/v2/rerank", "/rerank", "/classify", "/pooling", "/generative_scoring"),
        *(COHERE_CHAT, f"{COHERE_CHAT}/render", "/v2/embed", "/v1/systemone", "/tokenize", "/detokenize"),
        *(MODELS, HEALTH),
    }
)
_RESPONSE: Final = re.compile(r"/v1/responses/[A-Za-z0-9_-]{1,128}(/cancel)?")


JSON: Final = INFERENCE - _UPLOADS - {MODELS, HEALTH}
"""Engines read a JSON object from a body that is posted there."""
PASSED: Final = JSON - {COMPLETIONS, CHAT}
"""What the proxy face passes to one engine: a JSON object is posted. Stored responses are not among them, since each
engine knows its own only.
"""
GENERATING: Final = frozenset({RESPONSES, MESSAGES, COHERE_CHAT, CHAT_BATCH})
"""Those of `PASSED` that generate; the others only read a prompt."""


def passes(path: str, more: Collection[str] = ()) -> bool:
    """Whether clients may ask engines for this path, without its query; `more` are paths that settings add."""
    return path in INFERENCE or path in more or _RESPONSE.fullmatch(path) is not None
