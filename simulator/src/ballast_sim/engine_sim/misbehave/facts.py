"""What a fault may ask of a request before the server reads it. Nothing is parsed before it is asked for."""

import json
from functools import cached_property
from typing import Any, Literal

from ballast_sim.engine_sim.bodies import ApiError, input_tokens
from ballast_sim.engine_sim.handoff import wants_hold
from ballast_sim.engine_sim.text import detokenize

CHAT = "/v1/chat/completions"
GENERATION = ("/v1/completions", CHAT)

Leg = Literal["prefill", "decode"]


class Facts:
    """One request."""

    def __init__(self, path: str, body: bytes) -> None:
        """`body` as it came."""
        self.path = path
        self._raw = body

    @property
    def generates(self) -> bool:
        """Whether tokens are asked for."""
        return self.path in GENERATION

    @cached_property
    def body(self) -> dict[str, Any]:
        """The JSON object, or an empty one where there is none."""
        try:
            parsed = json.loads(self._raw)
        except (ValueError, RecursionError):
            return {}
        return parsed if isinstance(parsed, dict) else {}

    @property
    def streams(self) -> bool:
        """Whether the answer is to be a stream."""
        return self.body.get("stream") is True

    @property
    def leg(self) -> Leg | None:
        """Prefill: one token is asked for and its KV is to be kept. Decode: any other generation."""
        if not self.generates:
            return None
        transfer, body = self.body.get("kv_transfer_params"), self.body
        holds = isinstance(transfer, dict) and wants_hold(transfer)
        return "prefill" if holds and 1 in (body.get("max_tokens"), body.get("max_completion_tokens")) else "decode"

    @cached_property
    def tokens(self) -> list[int]:
        """The prompt's token ids; none where there is no prompt that could be read."""
        if not self.generates:
            return []
        try:
            return input_tokens(self.body, self.path == CHAT)
        except ApiError:
            return []

    @cached_property
    def prompt(self) -> str:
        """The prompt's text, a chat's as its template renders it."""
        return detokenize(self.tokens)
