"""`/v1/responses` as vLLM 0.32 gives it for plain text: no tools, no reasoning, nothing stored."""

import json
from typing import Any

from ballast_sim.engine import Finished, FinishReason
from ballast_sim.engine_sim.bodies import ApiError, check_modelled, unsupported
from ballast_sim.engine_sim.http11 import chunk
from ballast_sim.engine_sim.streams import Answer

_SAME = (
    *("model", "stream", "temperature", "top_p", "seed", "priority", "vllm_xargs", "ignore_eos"),
    "kv_transfer_params",
)
"""Fields that a chat has, too."""
_PART: dict[str, Any] = {"annotations": [], "logprobs": None, "type": "output_text"}


def as_chat(body: dict[str, Any]) -> dict[str, Any]:
    """The chat that a request for a response is. Raises ApiError."""
    if body.get("previous_response_id") is not None:
        wanted = body["previous_response_id"]
        raise ApiError(f"Response with id '{wanted}' not found.", "response_id", 404, "NotFoundError")
    _check_plain(body)
    asked = body.get("input")
    if not isinstance(asked, str | list) or not asked:
        raise ApiError("input: must be a text or a list of items, and not empty.", "input")
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else [_message(item) for item in asked]
    if body.get("instructions"):
        messages.insert(0, {"role": "system", "content": body["instructions"]})
    chat = {field: body[field] for field in _SAME if field in body}
    return chat | {"messages": messages, "max_tokens": body.get("max_output_tokens")}


def _check_plain(body: dict[str, Any]) -> None:
    """Raises ApiError naming a field that asks for more than an answer in plain text that nobody keeps."""
    check_modelled(body, chat=True)
    for field in ("background", "store"):
        if body.get(field):
            raise unsupported(field)
    text, reasoning, include = body.get("text"), body.get("reasoning"), body.get("include")
    if isinstance(text, dict) and text.get("format") not in (None, {"type": "text"}):
        raise unsupported("text.format")
    if isinstance(reasoning, dict) and any(reasoning.values()):
        raise unsupported("reasoning")
    if isinstance(include, list) and "message.output_text.logprobs" in include:
        raise unsupported("include")


def _message(item: object) -> object:
    if not isinstance(item, dict) or item.get("type", "message") != "message":
        raise ApiError("input: engine-sim reads messages only.", "input")
    content = item.get("content")
    if isinstance(content, list):
        content = [{"type": "text", "text": part.get("text")} if isinstance(part, dict) else part for part in content]
    return {"role": item.get("role"), "content": content}


class _Response(Answer):
    """The common part of a response that streams and of one that does not."""

    def __init__(self, *args: Any, asked: dict[str, Any], **kwargs: Any) -> None:
        """`asked`: the client's body."""
        super().__init__(*args, **kwargs)
        self._asked = asked

    @property
    def _item_id(self) -> str:
        return self._id.replace("resp_", "msg_", 1)

    def _text(self) -> str:
        return self.text(0, self.count)

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        item = {"id": self._item_id, "content": content, "role": "assistant", "status": status}
        return {**item, "type": "message", "phase": None}

    def _object(self, status: str, event: Finished | None = None) -> dict[str, Any]:
        asked, call = self._asked, self.call
        response: dict[str, Any] = {
            "id": self._id,
            "created_at": self._created_s,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": asked.get("instructions"),
            "metadata": asked.get("metadata"),
            "model": call.model,
            "object": "response",
            "output": [] if event is None else [self._item("completed", [{**_PART, "text": self._text()}])],
            "parallel_tool_calls": True,
            "temperature": 1.0 if asked.get("temperature") is None else float(asked["temperature"]),
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0 if asked.get("top_p") is None else float(asked["top_p"]),
            "background": False,
            "max_output_tokens": call.max_tokens,
            "service_tier": "auto",
            "status": status,
            "truncation": "disabled",
            "usage": None if event is None else self._response_usage(event),
        }
        nothing = ("max_tool_calls", "previous_response_id", "prompt", "reasoning", "text", "top_logprobs", "user")
        more = ("ec_transfer_params", "input_messages", "output_messages")
        response |= dict.fromkeys((*nothing, *more)) | dict.fromkeys(("presence_penalty", "frequency_penalty"), 0.0)
        held = None if event is None or self.hand_off_params is None else self.hand_off_params(event)
        return response | {"kv_transfer_params": held}

    def _response_usage(self, event: Finished) -> dict[str, Any]:
        prompt = self._content.input_tokens
        turns: dict[str, Any] = {"input_tokens_per_turn": [], "cached_tokens_per_turn": []}
        made: dict[str, Any] = {"output_tokens_per_turn": [], "tool_output_tokens_per_turn": []}
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": event.stats.cached_tokens, "cache_write_tokens": 0, **turns},
            "output_tokens": self.count,
            "output_tokens_details": {"reasoning_tokens": 0, "tool_output_tokens": 0, **made},
            "total_tokens": prompt + self.count,
        }

    def _status(self, event: Finished) -> str:
        return "incomplete" if event.reason is FinishReason.LENGTH else "completed"


class WholeResponse(_Response):
    """One JSON body when all is done."""

    def _show(self, count: int) -> None:
        pass

    def _end(self, event: Finished) -> None:
        if event.reason in (FinishReason.ERROR, FinishReason.ABORT):
            self.exchange.respond(*self._error(event))
        else:
            self.exchange.respond(200, json.dumps(self._object(self._status(event), event)).encode())


class StreamedResponse(_Response):
    """Server-sent events with names."""

    _sequence = 0

    def begin(self) -> None:
        """See `Answer.begin`."""
        self.exchange.start_stream()
        response = self._object("in_progress")
        opening = self._event("response.created", response=response)
        opening += self._event("response.in_progress", response=response)
        self.exchange.write_framed(chunk(opening))

    def _show(self, count: int) -> None:
        events = self._opening() if count == 1 else b""
        where = {"content_index": 0, "item_id": self._item_id, "output_index": 0}
        delta = self.text(count - 1, count)
        events += self._event("response.output_text.delta", **where, delta=delta, logprobs=[])
        self.exchange.write_framed(chunk(events))

    def _opening(self) -> bytes:
        item = self._item("in_progress", [])
        added = self._event("response.output_item.added", item=item, output_index=0)
        where = {"content_index": 0, "item_id": self._item_id, "output_index": 0}
        return added + self._event("response.content_part.added", **where, part={**_PART, "text": "", "logprobs": []})

    def _end(self, event: Finished) -> None:
        if not self.exchange.open:
            return
        if event.reason in (FinishReason.ERROR, FinishReason.ABORT):
            error = json.loads(self._error(event)[1])["error"]
            self.exchange.finish(b"event: error\ndata: %b\n\n" % json.dumps({"error": error}).encode())
            return
        text = self._text()
        where = {"content_index": 0, "item_id": self._item_id, "output_index": 0}
        part = {**_PART, "text": text}
        events = self._event("response.output_text.done", **where, logprobs=[], text=text)
        events += self._event("response.content_part.done", **where, part=part)
        item = self._item("completed", [part])
        events += self._event("response.output_item.done", item=item, output_index=0)
        response = self._object(self._status(event), event)
        self.exchange.finish(events + self._event("response.completed", response=response))

    def _event(self, name: str, **fields: Any) -> bytes:
        data = {**fields, "sequence_number": self._sequence, "type": name}
        self._sequence += 1
        return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n".encode()
