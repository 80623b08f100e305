"""Bodies of `/v1/completions` and `/v1/chat/completions`: what is checked, and what goes to each leg.

Checked is what the gateway itself depends on, and what would make it ask an engine something senseless; everything
else is the engine's to judge, and its 4xx reaches the client as it is.

The two legs are NIXL's pull protocol (vLLM `distributed/kv_transfer/kv_connector/v1/nixl`): the prefill leg asks for
one token and the KV handle, the decode leg is the client's own request with that handle.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final, cast

from ballast_core.values import value
from ballast_gateway import lax, openai_body, paths
from ballast_gateway.openai_body import InvalidBody, JsonObject
from ballast_gateway.proxy.sse import MOST_TOKENS
from ballast_gateway.strict_json import Size

ASK_FOR_HANDLE: Final[JsonObject] = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
AS_STREAM: Final[JsonObject] = {"stream": True, "stream_options": {"include_usage": True}}
_STREAMED: Final = openai_body.dump(AS_STREAM)[1:]
_POSITIVE_INTS: Final = ("max_tokens", "max_completion_tokens", "n", "best_of")
_PIECE: Final = 50_000
"""Token ids that are looked at in one go, while other threads wait."""
_ROLES_HINT: Final = "such as user"


@value
class Generation:
    """A request to generate, as the gateway understands it."""

    chat: bool
    model: str
    stream: bool
    prompt_tokens: int
    """Exact for token ids; else about one for four characters."""
    max_output_tokens: int | None
    choices: int
    document: JsonObject
    """The client's body without control fields."""
    raw: bytes
    """The same as bytes."""
    priority: int | None = None
    """The client's own, as in vLLM: lower is more urgent."""
    passed: bool = False
    """Of another route than completions and chats: one engine gets it, and its answer goes on as it comes."""
    pulls: bool = True
    """Whether the decode engine pulls KV that another one has computed."""

    @property
    def can_hand_off(self) -> bool:
        """Several choices are several engine requests; NIXL gives no handle for those (`research/vllm.md` 3d)."""
        return self.choices == 1 and self.pulls and not self.passed

    @property
    def most_output_tokens(self) -> int:
        """More than this an answer does not bring, whatever an engine writes into its usage.

        By the fields that vLLM reads on this route: a client that names another one is not asked for less.
        """
        fields = ("max_tokens", "max_completion_tokens") if self.chat else ("max_tokens",)
        limits = [limit for field in fields if isinstance(limit := self.document.get(field), int) and limit > 0]
        embedded = self.document.get("prompt_embeds")
        batch = max(1, len(embedded)) if isinstance(embedded, list) else 1
        each = MOST_TOKENS if self.passed or not limits else min(max(limits), MOST_TOKENS)
        return self.choices * batch * each

    def as_stream(self) -> Generation:
        """The same request, with the answer and its usage as a stream."""
        body = self.raw[: self.raw.rindex(b"}")]
        raw = b"%b,%b" % (body, _STREAMED)  # of two equal keys the last one counts
        return replace(self, stream=True, document=self.document | AS_STREAM, raw=raw)

    @property
    def wants_usage(self) -> bool:
        """Whether its stream is to end with the usage."""
        options = self.document.get("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    def with_usage(self) -> Generation:
        """The same stream with the usage at its end, and none before."""
        given = self.document.get("stream_options") or {}
        asked: JsonObject = {"stream_options": {**given, "include_usage": True, "continuous_usage_stats": False}}
        body = self.raw[: self.raw.rindex(b"}")]
        raw = b"%b,%b" % (body, openai_body.dump(asked)[1:])  # of two equal keys the last one counts
        return replace(self, document=self.document | asked, raw=raw)

    def prefill_body(self) -> bytes:
        """The prefill leg: one token, no stream, and a KV handle please."""
        dropped = {"stream", "stream_options", "min_tokens", "max_tokens", "max_completion_tokens"}
        document = {key: value for key, value in self.document.items() if key not in dropped}
        document |= {"max_tokens": 1, "stream": False, "kv_transfer_params": ASK_FOR_HANDLE}
        if self.chat:
            document["max_completion_tokens"] = 1
        return openai_body.dump(document)

    def decode_body(self, kv_transfer_params: object | None) -> bytes:
        """The decode leg: what the client asked, with the handle that the prefill engine gave, verbatim."""
        if kv_transfer_params is None:
            return self.raw
        handle = openai_body.dump({"kv_transfer_params": kv_transfer_params})
        end = self.raw.rindex(b"}")
        return b"%b,%b" % (self.raw[:end], handle[1:])  # no second encoding of a prompt of many token ids


def read_generation(
    raw: bytes,
    *,
    chat: bool,
    default_model: str = "",
    dropped: frozenset[str] = openai_body.CONTROL_FIELDS,
    size: Size | None = None,
) -> Generation:
    """Check a body, and take out the `dropped` fields; `size`, if it was measured. One that names no model is for the
    default one, if there is one.

    Raises `InvalidBody`, which names the field.
    """
    document = openai_body.parse_object(raw, size)
    model = openai_body.model_of(document, default_model)
    plain = lax.plain(document, chat=chat)
    document = document if plain is None else plain
    echoes_only = _echoes_only(document, chat=chat)
    _check_common(document, least_tokens=0 if echoes_only else 1)
    (_check_messages if chat else _check_prompt)(document)
    stripped = openai_body.without_control_fields(document, dropped)
    document = document if stripped is None else stripped
    if plain is not None or stripped is not None or not is_plain_object(raw):
        raw = openai_body.dump(document)
    return Generation(
        chat=chat,
        model=model,
        stream=document.get("stream") is True,
        prompt_tokens=openai_body.prompt_tokens(
            document, openai_body.CHAT_PROMPT if chat else openai_body.COMPLETION_PROMPT
        ),
        max_output_tokens=1
        if echoes_only
        else openai_body.max_output_tokens(document, paths.CHAT if chat else paths.COMPLETIONS),
        choices=choices(document),
        document=document,
        raw=raw,
        priority=openai_body.priority(document),
        pulls=not is_never_pulled(document, chat=chat),
    )


def choices(document: JsonObject) -> int:
    """How many outputs are asked for. Raises `TypeError` where a count is none."""
    n, best_of = document.get("n") or 1, document.get("best_of") or 1
    prompts = document.get("prompt")
    batch = len(prompts) if isinstance(prompts, list) and prompts and not isinstance(prompts[0], int) else 1
    return int(max(n, best_of) * batch)


def is_never_pulled(document: JsonObject, *, chat: bool) -> bool:
    """Whether vLLM's NIXL connector pulls no KV for it: the prompt is computed in any case, or has no token ids to
    count."""
    without_ids = not chat and document.get("prompt_embeds") is not None
    return without_ids or openai_body.reads_no_cache(document, chat=chat)


def is_plain_object(raw: bytes) -> bool:
    """False for UTF-16, UTF-32 and a byte order mark: JSON to us, not to every engine."""
    return raw.lstrip(b" \t\r\n").startswith(b"{") and b"\0" not in raw[:4]


def check_stream(document: JsonObject) -> bool:
    """Whether a stream is asked for. Raises `InvalidBody`."""
    stream = document.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise InvalidBody("stream: must be true or false", "stream", got=stream)
    return bool(stream)


def _echoes_only(document: JsonObject, *, chat: bool) -> bool:
    """Whether the answer is the prompt alone: vLLM then computes one token that nobody sees."""
    limit = document.get("max_tokens")
    return not chat and document.get("echo") is True and type(limit) is int and limit == 0


def _check_common(document: JsonObject, *, least_tokens: int) -> None:
    stream = check_stream(document)
    options = document.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise InvalidBody("stream_options: must be an object", "stream_options", got=options)
    if options and not stream:
        raise InvalidBody("stream_options: only allowed with stream: true", "stream_options")
    for field in _POSITIVE_INTS:
        value, least = document.get(field), least_tokens if field == "max_tokens" else 1
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise InvalidBody(f"{field}: must be a whole number of 1 or more", field, got=value)
    for field in ("temperature", "top_p", "presence_penalty", "frequency_penalty"):
        value = document.get(field)
        if value is not None and (not isinstance(value, (int, float)) or isinstance(value, bool)):
            raise InvalidBody(f"{field}: must be a number", field, got=value)
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidBody(f"{field}: the number is too large", field)


def _check_prompt(document: JsonObject) -> None:
    prompt = document.get("prompt")
    if prompt is None and document.get("prompt_embeds") is None:
        raise InvalidBody("prompt: is missing; give a text or a list of token ids", "prompt")
    if prompt is None or isinstance(prompt, str):
        return
    if not isinstance(prompt, list) or not prompt:
        raise InvalidBody("prompt: must be a text or a list that is not empty", "prompt", got=prompt)
    if not (_are_ids(prompt) or all(isinstance(item, str) for item in prompt)) and not all(
        isinstance(item, list) and item and _are_ids(item) for item in prompt
    ):
        raise InvalidBody("prompt: its entries must be all texts, all token ids or all lists of token ids", "prompt")


def _are_ids(items: list[object]) -> bool:
    pieces = (items[start : start + _PIECE] for start in range(0, len(items), _PIECE))
    return all(set(map(type, piece)) == {int} and min(cast("list[int]", piece)) >= 0 for piece in pieces)


def _check_messages(document: JsonObject) -> None:
    messages = document.get("messages")
    if not isinstance(messages, list) or not messages:
        if messages is None:
            raise InvalidBody("messages: is missing; give a list of messages", "messages")
        raise InvalidBody("messages: must be a list that is not empty", "messages", got=messages)
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise InvalidBody(f"{where}: must be an object with role and content", where, got=message)
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role:
            raise InvalidBody(f"{where}.role: must be a text {_ROLES_HINT}", f"{where}.role", got=role)
        if content is not None and not isinstance(content, (str, list)):
            raise InvalidBody(f"{where}.content: must be a text or a list of parts", f"{where}.content", got=content)
