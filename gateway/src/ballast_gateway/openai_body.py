"""What the gateway reads from a request body of the OpenAI API, and what it takes out.

The gateway reads few fields; the engine checks all others. Shared by both faces.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from ballast_gateway import paths, strict_json
from ballast_gateway.strict_json import InvalidJson, Size

JsonObject: TypeAlias = dict[str, Any]

CONTROL_FIELDS: Final = frozenset({"kv_transfer_params", "ec_transfer_params"})
"""Routing internals of vLLM's connectors. From a client they would name the engine that KV is read from."""


CHARS_PER_TOKEN: Final = 4
"""Estimated length of a token in text."""
_MOST_TOKENS: Final = 2**31 - 1
"""More than any model generates: a bound for what a client may write."""
_MEDIA: Final = (b'_url"', b'data"', b'_embeds"')
"""Ends of the names of fields for images, audio, video, files and embeddings."""
_GENERATION_PATHS: Final = ("/completions", "/responses", "/messages", "/embeddings")


_TOOLS: Final = "tools"
COMPLETION_PROMPT: Final = ("prompt",)
CHAT_PROMPT: Final = ("messages", "documents", _TOOLS)
PROMPTS: Final = (
    *("prompt", "messages", "input", "instructions", "system", "tokens", _TOOLS),
    *("text_1", "text_2", "data_1", "data_2", "queries", "query", "documents", "items", "texts", "inputs"),
    "state",
)
"""Fields that hold what an engine reads, in vLLM 0.32's requests of whatever route."""
_TEXTS: Final = frozenset({"content", "text", "refusal", "tool_calls", "function_call", "function", "output"})
"""Fields of messages, their parts and other items that hold text, or what holds some."""
_CALLED_WITH: Final = frozenset({"arguments", "input"})
"""Fields of calls of tools: a text, or JSON that becomes one."""
_ANY_LIMIT: Final = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_CHAT_LIMITS: Final = ("max_completion_tokens", "max_tokens")
_LIMITS: Final = {
    paths.COMPLETIONS: ("max_tokens",),
    paths.CHAT: _CHAT_LIMITS,
    paths.CHAT_BATCH: _CHAT_LIMITS,
    paths.RESPONSES: ("max_output_tokens",),
    paths.MESSAGES: ("max_tokens",),
    paths.COHERE_CHAT: ("max_tokens",),
}
"""Fields that limit the output, by route, the one that counts first: vLLM 0.32 passes over the others."""
COMPLETION_TOKENS: Final = 16
"""The default of `max_tokens` in `/v1/completions`; null is no limit there."""
_NOTHING: Final = object()


class InvalidBody(Exception):
    """The client's body is wrong. The message is for the client; `param` names the field, if one is at fault.

    `problem` is the message without what the client sent, for the log.
    """

    def __init__(
        self, problem: str, param: str | None = None, *, got: object = _NOTHING, message: str | None = None
    ) -> None:
        """`got`: the value at fault, which only the client is shown. `message`, if it says more than both."""
        super().__init__(message or (problem if got is _NOTHING else f"{problem}, not {_shown(got)}"))
        self.param = param
        self.problem = problem

    def bare(self) -> InvalidBody:
        """The same without a traceback."""
        return InvalidBody(self.problem, self.param, message=str(self))


def is_json_path(path: str) -> bool:
    """Whether the path (query and all) is one whose body must be a JSON object."""
    return path.partition("?")[0].rstrip("/").endswith(_GENERATION_PATHS)


def parse_object(raw: bytes, size: Size | None = None) -> JsonObject:
    """The body as a JSON object, in UTF-8, UTF-16 or UTF-32; `size`, if it was measured. Raises `InvalidBody`."""
    if not raw:
        raise InvalidBody("the body is empty; send a JSON object")
    if not raw.startswith(b'{"') and (encoding := json.detect_encoding(raw)) != "utf-8":
        try:
            raw, size = raw.decode(encoding).encode(), None
        except UnicodeDecodeError as error:
            raise InvalidBody(f"the body is not {error.encoding.upper()} text (byte {error.start})") from None
    try:
        document = strict_json.parse(raw, size)
    except InvalidJson as error:
        problem = str(error) if error.field is None else "a name stands twice in one object, or a number is too large"
        raise InvalidBody(problem, error.field, message=str(error)) from None
    if not isinstance(document, dict):
        raise InvalidBody("the body must be a JSON object")
    return document


def may_hold_media(parts: Iterable[bytes]) -> bool:
    """Whether the beginning of a body names a field for images, audio, video, files or embeddings."""
    begun = b"".join(parts)
    return any(end in begun for end in _MEDIA)


def model_of(document: JsonObject, default: str = "") -> str:
    """The `model` field, or the `default`, if there is one, where it is absent, null or empty, as with vLLM.

    Raises `InvalidBody`.
    """
    model = document.get("model")
    if default and (model is None or model == ""):
        return default
    if not isinstance(model, str) or not model:
        raise InvalidBody("model: name the model, a non-empty string", param="model")
    return model


def reads_no_cache(document: JsonObject, *, chat: bool) -> bool:
    """Whether vLLM computes all of the prompt, whatever it holds of it: log-probabilities of the prompt are asked
    (`SamplingParams.skip_reading_prefix_cache`)."""
    if document.get("prompt_logprobs") is not None:
        return True
    echoed = document.get("top_logprobs", 0) if chat else document.get("logprobs")
    return document.get("echo") is True and echoed is not None


def max_output_tokens(document: JsonObject, path: str = "") -> int | None:
    """The limit on output tokens per choice, the client's or its route's own; None if there is no usable one.

    `path`: whose engines look at some of the fields only, so that the others are not believed.
    """
    for field in _LIMITS.get(path, _ANY_LIMIT):
        value = document.get(field)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return min(value, _MOST_TOKENS)
    return COMPLETION_TOKENS if path == paths.COMPLETIONS and "max_tokens" not in document else None


def prompt_tokens(document: JsonObject, fields: Iterable[str] = PROMPTS) -> int:
    """Tokens in the prompt: exact for token ids, else about one for four characters; of tools, of their JSON.

    `fields`: those that hold it on the route, for a client may fill others that no engine reads there.
    """
    tools = document.get(_TOOLS) if _TOOLS in fields else None
    ids, chars = _count([document[field] for field in fields if field != _TOOLS and field in document])
    return ids + -(-(chars + (len(dump(tools)) if tools else 0)) // CHARS_PER_TOKEN)


def priority(document: JsonObject) -> int | None:
    """The client's priority, lower first; None without one. The engine refuses one that is no whole number."""
    value = document.get("priority")
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def without_control_fields(document: JsonObject, dropped: frozenset[str] = CONTROL_FIELDS) -> JsonObject | None:
    """A copy without the fields that clients may not set, or None if there are none.

    vLLM keeps `vllm_xargs` where it keeps these fields, so an entry of such a name would pass for one.
    """
    arguments = document.get("vllm_xargs")
    cleaned = _without(arguments, CONTROL_FIELDS) if isinstance(arguments, dict) else None
    kept = _without(document, dropped)
    if cleaned is None:
        return kept
    return {**(document if kept is None else kept), "vllm_xargs": cleaned}


def keeps_nothing(document: JsonObject) -> bool:
    """Whether a body for `/v1/responses` says itself that its answer is not kept; else `store: false` is to be added.

    A kept response is on one engine, and the next request may go to any. Raises `InvalidBody` where one is asked for.
    """
    if document.get("previous_response_id") is not None:
        raise InvalidBody(
            "previous_response_id: responses are not kept; send the whole conversation as input", "previous_response_id"
        )
    for field in ("background", "store"):
        if document.get(field) not in (None, False):
            raise InvalidBody(f"{field}: responses are not kept; send false, or leave it out", field)
    return document.get("store") is False


def _without(fields: JsonObject, dropped: frozenset[str]) -> JsonObject | None:
    if dropped.isdisjoint(fields):
        return None
    return {key: value for key, value in fields.items() if key not in dropped}


def load(raw: bytes) -> object:
    """An engine's JSON, in UTF-8. Raises `ValueError` and `RecursionError`."""
    return strict_json.load(raw)


def dump(document: JsonObject) -> bytes:
    """The document as a body."""
    return strict_json.dump(document)


def _count(value: object) -> tuple[int, int]:
    """Token ids and characters in a prompt, messages or input of any shape that the API allows."""
    ids = chars = 0
    pending: list[object] = [value]
    while pending:
        match pending.pop():
            case str(text):
                chars += len(text)
            case [int(), *_] as tokens:
                ids += len(tokens)
            case list(items):
                pending.extend(items)
            case dict(fields):  # of images and the like nothing is text
                pending += [fields[name] for name in _TEXTS.intersection(fields)]
                called_with = [fields[name] for name in _CALLED_WITH.intersection(fields)]
                chars += sum(len(given) if isinstance(given, str) else len(dump(given)) for given in called_with)
            case _:
                pass
    return ids, chars


def _shown(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case dict():
            return "an object"
        case list():
            return "an empty list" if not value else "a list"
        case _:
            text = repr(value[:40] if isinstance(value, str) else value)
            return text if len(text) <= 40 else f"{text[:37]}..."
