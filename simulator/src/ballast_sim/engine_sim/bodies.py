"""Request bodies of the OpenAI API as vLLM takes them: parsed, checked, and refused with the field's name."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from ballast_sim.engine_sim.text import VOCABULARY_SIZE, render_chat, tokenize

DEFAULT_COMPLETION_TOKENS = 16
STOP_AFTER_ARG = "ballast_output_tokens"
BUSY = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
_GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structural_tag")
_NOT_MODELLED: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("logprobs", "prompt_logprobs", "structured_outputs", *_GUIDED), (None,)),
    **dict.fromkeys(("echo", "use_beam_search"), (None, False)),
    "top_logprobs": (None, 0),
    "suffix": (None, ""),
    "response_format": (None, {"type": "text"}),
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
}
"""Fields that would change the output, and the values with which they do not."""
_IDLE_LOGPROBS = (None, False, 0)
"""Of chats; a completion with any of them but None has logprobs."""


class ApiError(Exception):
    """An answer that is an error, in vLLM's shape."""

    def __init__(
        self, message: str, param: str | None = None, status: int = 400, kind: str = "BadRequestError"
    ) -> None:
        """`kind` is the error's type; the code is the HTTP status, as vLLM has it."""
        super().__init__(message)
        self.param = param
        self.status = status
        self.kind = kind

    def body(self) -> bytes:
        """The JSON body."""
        error = {"message": str(self), "type": self.kind, "param": self.param, "code": self.status}
        return json.dumps({"error": error}).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One generation, as asked."""

    chat: bool
    model: str
    tokens: list[int]
    max_tokens: int
    stop_after: int | None
    stream: bool
    include_usage: bool
    usage_in_chunks: bool
    return_token_ids: bool
    priority: int
    request_id: str | None
    seed: int
    kv_transfer_params: dict[str, Any] | None


def parse_json(body: bytes) -> dict[str, Any]:
    """The body as an object. Raises ApiError."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(f"The body is not valid JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ApiError("The body must be a JSON object.")
    return parsed


def check_model(body: dict[str, Any], served: Sequence[str]) -> str:
    """The model asked for, or the first one served. Raises ApiError (404) for one that is not."""
    model = body.get("model")
    if model is None or model == "":
        return served[0]
    if not isinstance(model, str):
        raise ApiError("model: must be a string.", "model")
    if model not in served:
        raise ApiError(f"The model `{model}` does not exist.", "model", HTTPStatus.NOT_FOUND, "NotFoundError")
    return model


def parse_call(body: dict[str, Any], chat: bool, served: Sequence[str], max_model_len: int) -> Call:
    """Check a /v1/completions or /v1/chat/completions body. Raises ApiError."""
    model = check_model(body, served)
    check_modelled(body, chat)
    for field in ("n", "best_of"):
        if _integer(body, field, 1, 1) != 1:
            raise ApiError(f"{field}: engine-sim makes one choice a request; send 1 or leave it out.", field)
    transfer = _transfer(body)
    tokens = input_tokens(body, chat)
    max_tokens = _max_tokens(body, chat, len(tokens), max_model_len)
    _number(body, "temperature", 0.0, sys.float_info.max)
    _number(body, "top_p", math.ulp(0.0), 1.0)
    options = _object(body, "stream_options")
    stream = _flag(body, "stream")
    if options and not stream:
        raise ApiError("stream_options: can only be set when stream is true.", "stream_options")
    include_usage = _flag(options, "include_usage", "stream_options.include_usage")
    request_id = body.get("request_id")
    if request_id is not None and not isinstance(request_id, str):
        raise ApiError("request_id: must be a string.", "request_id")
    return Call(
        chat=chat,
        model=model,
        tokens=tokens,
        max_tokens=max_tokens,
        stop_after=_stop_after(body, max_tokens),
        stream=stream,
        include_usage=include_usage,
        usage_in_chunks=include_usage and _flag(options, "continuous_usage_stats"),
        return_token_ids=_flag(body, "return_token_ids"),
        priority=_integer(body, "priority", 0, None),
        request_id=request_id or None,
        seed=_integer(body, "seed", 0, None),
        kv_transfer_params=transfer,
    )


def check_modelled(body: dict[str, Any], chat: bool) -> None:
    """Raises ApiError naming a field that asks for what engine-sim does not do."""
    for field, idle in _NOT_MODELLED.items():
        values = _IDLE_LOGPROBS if chat and field == "logprobs" else idle
        if body.get(field) not in values:
            raise unsupported(field)


def unsupported(field: str) -> ApiError:
    """The refusal of a field."""
    return ApiError(f"{field}: is not supported by engine-sim.", field)


def input_tokens(body: dict[str, Any], chat: bool) -> list[int]:
    """Token ids of a request's input. Raises ApiError."""
    return _chat_tokens(body, _transfer(body)) if chat else prompt_tokens(body.get("prompt"))


def _transfer(body: dict[str, Any]) -> dict[str, Any] | None:
    transfer = body.get("kv_transfer_params")
    if transfer is not None and not isinstance(transfer, dict):
        raise ApiError("kv_transfer_params: must be an object.", "kv_transfer_params")
    return transfer


def prompt_tokens(prompt: object) -> list[int]:
    """Token ids of a completion's prompt: text, ids, or a list with one of these. Raises ApiError."""
    if isinstance(prompt, str):
        tokens = tokenize(prompt)
        if not tokens:
            raise ApiError("prompt: must not be empty.", "prompt")
        return tokens
    if not isinstance(prompt, list) or not prompt:
        raise ApiError("prompt: must be a string or a list of token ids, and not empty.", "prompt")
    if isinstance(prompt[0], str | list):
        if len(prompt) > 1:
            raise ApiError("prompt: engine-sim takes one prompt a request; send several requests.", "prompt")
        return prompt_tokens(prompt[0])
    return check_ids(prompt, "prompt")


def check_ids(ids: list[Any], field: str) -> list[int]:
    """Token ids within the vocabulary. Raises ApiError."""
    if set(map(type, ids)) != {int}:
        raise ApiError(f"{field}: token ids must be whole numbers, and the list must not be empty.", field)
    if min(ids) < 0 or max(ids) >= VOCABULARY_SIZE:
        wrong = min(ids) if min(ids) < 0 else max(ids)
        raise ApiError(f"{field}: token id {wrong} is out of vocabulary.", field)
    return ids


def chat_text(body: dict[str, Any]) -> str:
    """A chat's messages as the template renders them. Raises ApiError."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise ApiError("messages: must be a list with at least one message.", "messages")
    rendered: list[tuple[str, str]] = []
    for index, message in enumerate(messages):
        where = f"messages[{index}]"
        if not isinstance(message, dict):
            raise ApiError(f"{where}: must be an object.", "messages")
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise ApiError(f"{where}.role: must be a string.", "messages")
        rendered.append((role, _content(message.get("content"), f"{where}.content")))
    return render_chat(rendered, _flag(body, "add_generation_prompt", default=True))


def _content(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise ApiError(f"{where}: must be a string or a list of parts.", "messages")
    texts: list[str] = []
    for part in content:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise ApiError(f"{where}: engine-sim reads parts of type text only.", "messages")
        texts.append(part["text"])
    return "\n".join(texts)


def _chat_tokens(body: dict[str, Any], transfer: dict[str, Any] | None) -> list[int]:
    """The rendered chat, or the exact ids that `kv_transfer_params.prompt_token_ids` gives instead, as in vLLM."""
    text = chat_text(body)
    exact = (transfer or {}).get("prompt_token_ids")
    if exact is None:
        return tokenize(text)
    if not isinstance(exact, list):
        raise ApiError("kv_transfer_params.prompt_token_ids: must be a list of token ids.", "kv_transfer_params")
    return check_ids(exact, "kv_transfer_params.prompt_token_ids")


def _max_tokens(body: dict[str, Any], chat: bool, input_tokens: int, max_model_len: int) -> int:
    if input_tokens >= max_model_len:
        raise ApiError(
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt contains "
            f"{input_tokens} input tokens, which leaves no room for output. "
            "Please reduce the length of the input prompt.",
            "input_tokens",
        )
    room = max_model_len - input_tokens
    field = "max_completion_tokens" if chat and body.get("max_completion_tokens") is not None else "max_tokens"
    asked = body.get(field)
    default = room if chat else min(room, DEFAULT_COMPLETION_TOKENS)
    tokens = default if asked is None else _integer(body, field, 0, 1)
    if tokens > room:
        raise ApiError(
            f"{field}: {tokens} is too large. This model's maximum context length is {max_model_len} tokens and your "
            f"request has {input_tokens} input tokens ({tokens} > {max_model_len} - {input_tokens}).",
            field,
        )
    if _integer(body, "min_tokens", 0, 0) > tokens:
        raise ApiError(f"min_tokens: must not exceed {field} ({tokens}).", "min_tokens")
    return tokens


def _stop_after(body: dict[str, Any], max_tokens: int) -> int | None:
    """`vllm_xargs.ballast_output_tokens`: end by a stop token after so many outputs, unless ignore_eos or later."""
    extra = _object(body, "vllm_xargs")
    if STOP_AFTER_ARG not in extra:
        return None
    after = _integer(extra, STOP_AFTER_ARG, 0, 1, f"vllm_xargs.{STOP_AFTER_ARG}")
    after = max(after, _integer(body, "min_tokens", 0, 0))
    return after if after <= max_tokens and not _flag(body, "ignore_eos") else None


def _object(body: dict[str, Any], field: str) -> dict[str, Any]:
    value = body.get(field)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ApiError(f"{field}: must be an object.", field)
    return value


def _flag(body: dict[str, Any], field: str, name: str | None = None, default: bool = False) -> bool:
    value = body.get(field)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ApiError(f"{name or field}: must be true or false.", name or field)
    return value


def _number(body: dict[str, Any], field: str, lowest: float, highest: float) -> None:
    """Refuse a sampling parameter outside its range: vLLM does, though it changes nothing here."""
    value = body.get(field)
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ApiError(f"{field}: must be a number.", field)
    if not lowest <= value <= highest:
        raise ApiError(f"{field}: {value} is out of range.", field)


def _integer(body: dict[str, Any], field: str, default: int, minimum: int | None, name: str | None = None) -> int:
    value = body.get(field)
    if value is None:
        return default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ApiError(f"{name or field}: must be a whole number.", name or field)
    if minimum is not None and value < minimum:
        raise ApiError(f"{name or field}: must be at least {minimum}, not {value}.", name or field)
    return value
