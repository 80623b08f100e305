"""Whole answers, put together from the stream that they come as inside.

A request with `stream: false` whose stream could go on elsewhere is sent to its engine as a stream, so it is watched,
moved and rescued as one. The client is sent nothing before all is there: a failure at any time can be mended elsewhere,
if need be from the start, and what cannot be mended is an error with a status.

The answer has the fields of vLLM 0.32 (`CompletionResponse`, `ChatCompletionResponse`). A stream says less than a whole
answer about logprobs, tools and reasoning: `fields` keeps requests for these out, and where an engine's parser has read
the output, or it gives no token ids, the request is sent once more as it came (`Unfit` remembers that for a while).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ballast_gateway import strict_json
from ballast_gateway.errors import ApiError
from ballast_gateway.http.client import UpstreamError
from ballast_gateway.http.server import ClientConnection, Flow, Header
from ballast_gateway.openai_body import JsonObject
from ballast_gateway.proxy.bodies import Generation
from ballast_gateway.proxy.events import FINISHED, SEPARATOR
from ballast_gateway.proxy.held_stream import HeldStream

_BATCH_BYTES: Final = 16 * 1024
"""Events are parsed so many at a time: one call of the parser costs less than many, and little waits in memory."""
_MAX_CHARS: Final = 64 * 1024 * 1024
_REMEMBER_S: Final = 60.0

_USAGE: Final = ("prompt_tokens", "total_tokens", "completion_tokens")
_USAGE_DETAILS: Final = {
    "prompt_tokens_details": ("cached_tokens", "created_cache_tokens", "multimodal_tokens"),
    "completion_tokens_details": ("reasoning_tokens",),
}
"""What vLLM names in a whole answer also where it has no value. Its streams leave that out."""


class Spoiled(UpstreamError):
    """What an engine sent makes no answer. All of it is thrown away."""


class WholeAnswer:
    """A `Client` in place of the real one, which is answered at the end.

    It holds the text, 16 KiB of events that are not read yet, and through `held` the ids: some twelve bytes a token.
    """

    __slots__ = (
        *("_bytes", "_chars", "_choice", "_client", "_first", "_headers", "_held", "_last", "_parts", "_role"),
        *("_status", "_text", "_usage", "asked", "spoiled"),
    )

    def __init__(self, client: ClientConnection, asked: Generation, held: HeldStream) -> None:
        """`asked`: the client's request as it came. `held`: the stream that `write` gets parts of."""
        self._client = client
        self._held = held
        self.asked = asked
        self._status = 0
        self._headers: list[Header] = []
        self.start_over()

    def start_over(self) -> None:
        """Forget what has come."""
        self.spoiled = False
        """It cannot be completed from what has come."""
        self._parts: list[bytes] = []
        self._bytes = self._chars = 0
        self._text: list[str] = []
        self._first: JsonObject | None = None
        self._last: JsonObject = {}
        self._role = "assistant"
        self._choice: JsonObject = {}
        """That which says why the output ends."""
        self._usage: JsonObject | None = None

    # --- what the client's connection would be asked ----------------------------------------------------------------

    @property
    def head_sent(self) -> bool:
        """Whether the client's answer has begun."""
        return self._client.head_sent

    @property
    def answering(self) -> bool:
        """Whether the client's answer is still due."""
        return self._client.answering

    @property
    def connection(self) -> ClientConnection:
        """The client's own."""
        return self._client

    def respond(self, status: int, headers: Iterable[Header], body: bytes) -> None:
        """An answer that is no stream passes through."""
        self._client.respond(status, headers, body)

    def respond_error(self, error: ApiError, extra: tuple[Header, ...] = ()) -> None:
        """So does an error."""
        self._client.respond_error(error, extra)

    def start_stream(self, status: int, headers: Iterable[Header]) -> None:
        """Keep the head for later."""
        self._status = status
        self._headers = [(name, b"application/json" if name == b"content-type" else value) for name, value in headers]

    def write(self, data: bytes, *, last: bool = False) -> None:
        """Take whole events. Raises `Spoiled`, with the event that ends the output at the latest."""
        if self.spoiled:
            raise Spoiled("what came before makes no whole answer")
        self._parts.append(data)
        self._bytes += len(data)
        if self._bytes >= _BATCH_BYTES or FINISHED in data or self._choice:
            self._read()
            if not self._choice and FINISHED in data:
                self.spoiled = True
                raise Spoiled("a reason to end that no choice has")

    def end(self) -> None:
        """Answer."""
        self._client.respond(self._status, self._headers, strict_json.dump(self._document()))

    def abort(self) -> None:
        """Cut the connection: there is no answer."""
        self._client.abort()

    def attach(self, flow: Flow) -> None:
        """No client is too slow for what is not sent."""

    def detach(self, flow: Flow) -> None:
        """See `attach`."""

    # --- the answer -------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        raw = b"".join(self._parts)
        self._parts, self._bytes = [], 0
        events = [event[6:] for event in raw.split(SEPARATOR) if event.startswith(b"data: {")]
        try:
            documents = strict_json.load(b"[%b]" % b",".join(events))
            if len(documents) != len(events):
                raise ValueError("events that are not one object each")
            text = [self._take(document) for document in documents]
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            self.spoiled = True
            said = f"{error!r:.200}".encode()  # it may hold some of the text
            raise Spoiled(f"a stream that makes no whole answer ({type(error).__name__})", said=said) from None
        self._text.append("".join(text))
        self._chars += len(self._text[-1])
        if self._chars > _MAX_CHARS:
            self.spoiled = True
            raise Spoiled(f"an answer of more than {_MAX_CHARS} characters")

    def _take(self, document: Any) -> str:
        """An event's text; what else it says is kept. Raises what makes it none of vLLM's."""
        if self._first is None:
            self._first = {field: document[field] for field in ("id", "created", "model")}
        self._last = document
        if not document["choices"]:  # beside a choice a usage is of what came so far (`--enable-force-include-usage`)
            usage = document.get("usage")
            if usage is not None:
                self._usage = self._checked(usage)
            return ""
        (choice,) = document["choices"]
        if choice.get("finish_reason") is not None:
            self._choice = choice
        if not self.asked.chat:
            return _text(choice["text"])
        delta = choice["delta"]
        self._role = _text(delta.get("role") or self._role)
        return _text(delta.get("content") or "")

    def _checked(self, usage: JsonObject) -> JsonObject:
        """The engine's own count, which has to agree with what came: nothing skipped, nothing twice."""
        counts, prompt, output = [usage[field] for field in _USAGE], self._held.prompt_tokens, self._held.tokens
        if counts != [prompt, prompt + output, output]:
            raise ValueError(f"{prompt} and {output} tokens came, the usage has {counts}")
        return usage

    def _document(self) -> JsonObject:
        choice, chat = self._choice, self.asked.chat
        prompt_ids = output_ids = None
        if self.asked.document.get("return_token_ids") is True:
            prompt_ids, output_ids = self._held.prompt_and_output()
        text = "".join(self._text)
        made: JsonObject = {"index": 0}
        if chat:
            unused = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
            made["message"] = {"role": self._role, "content": text, **unused}
        else:
            made["text"] = text
        made |= {"logprobs": None, "finish_reason": choice["finish_reason"], "stop_reason": choice.get("stop_reason")}
        made["token_ids"] = output_ids
        if not chat:
            made |= {"prompt_logprobs": None, "prompt_token_ids": prompt_ids}
        made["routed_experts"] = None
        kind = "chat.completion" if chat else "text_completion"
        assert self._first is not None
        body: JsonObject = {"id": self._first["id"], "object": kind, "created": self._first["created"]}
        body |= {"model": self._first["model"], "choices": [made], "service_tier": None}
        body |= {"system_fingerprint": self._last.get("system_fingerprint"), "usage": self._whole_usage()}
        if chat:
            body |= {"prompt_logprobs": None, "prompt_token_ids": prompt_ids, "prompt_text": None}
        metrics = self._last.get("metrics")
        return body | {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": metrics}

    def _whole_usage(self) -> JsonObject:
        usage = self._usage
        if usage is None:  # the engine broke between its last token and its usage
            counts = (self._held.prompt_tokens, self._held.prompt_tokens + self._held.tokens, self._held.tokens)
            usage = dict(zip(_USAGE, counts, strict=True))
        whole = {**usage, **dict.fromkeys(_USAGE_DETAILS)}
        for name, fields in _USAGE_DETAILS.items():
            if isinstance(details := usage.get(name), dict):
                whole[name] = dict.fromkeys(fields) | details
        return whole


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} in place of a text")
    return value


class Unfit:
    """Models whose streams made no whole answer a moment ago: asking for a stream first would be in vain."""

    def __init__(self) -> None:
        self._until_s: dict[tuple[str, bool], float] = {}

    def note(self, asked: Generation, now_s: float) -> None:
        """It was so now."""
        self._until_s[asked.model, asked.chat] = now_s + _REMEMBER_S

    def holds(self, asked: Generation, now_s: float) -> bool:
        """Whether a request like this one is to be sent as it came."""
        return self._until_s.get((asked.model, asked.chat), 0.0) > now_s
