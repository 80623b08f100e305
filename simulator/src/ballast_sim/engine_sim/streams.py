"""Answers to generation calls: server-sent events, one chunk per token, or one JSON body at the end.

The hot path is `StreamedAnswer.token`: every output token is five bytes of text, so a chunk is two constant byte
strings around the word, framed ahead of time.
"""

import json
from collections.abc import Callable
from typing import Any

from ballast_sim.engine import Finished, FinishReason, PullStarted, RequestStats
from ballast_sim.engine_sim.bodies import Call
from ballast_sim.engine_sim.handoff import PullSession
from ballast_sim.engine_sim.http11 import Exchange
from ballast_sim.engine_sim.metrics import Metrics
from ballast_sim.engine_sim.text import WORD_IDS, WORDS, GeneratedContent

_DONE = b"data: [DONE]\n\n"
_FINGERPRINT = "vllm-0.32.0-engine-sim"


class Answer:
    """The common part of streamed and whole answers: tokens, metrics, the pull, a client that disconnects."""

    def __init__(
        self,
        call: Call,
        content: GeneratedContent,
        exchange: Exchange,
        metrics: Metrics,
        *,
        response_id: str,
        created_s: int,
        arrival_s: float,
        time_scale: float,
        show_cached: bool,
        on_end: Callable[["Answer", Finished], None],
    ) -> None:
        """`on_end` is called once, when the engine has ended the request."""
        self.call = call
        self.exchange = exchange
        self.pull: PullSession | None = None
        self.hand_off_params: Callable[[Finished], dict[str, Any] | None] | None = None
        self.by_client = False
        self.count = 0
        self._content = content
        self._metrics = metrics
        self._id = response_id
        self._created_s = created_s
        self._arrival_s = arrival_s
        self._last_s = arrival_s
        self._scale = time_scale
        self._show_cached = show_cached
        self._on_end = on_end
        self._ends_at = min(call.max_tokens, call.stop_after or call.max_tokens)

    def begin(self) -> None:
        """The engine has taken the request: a stream's head goes out at once."""

    def token(self, at_s: float) -> None:
        """One more output token."""
        self.count = count = self.count + 1
        gap_s = (at_s - self._last_s) * self._scale
        self._last_s = at_s
        self._metrics.generated += 1
        if count == 1:
            self._metrics.time_to_first_token.observe(gap_s)
        else:
            self._metrics.inter_token_latency.observe(gap_s)
        self._show(count)

    def _show(self, count: int) -> None:
        raise NotImplementedError

    def pull_started(self, event: PullStarted) -> None:
        """The engine reserved the blocks of a pull."""
        if self.pull is not None:
            self.pull.started(event)

    def finished(self, event: Finished) -> None:
        """The engine has ended the request."""
        if self.pull is not None:
            self.pull.dropped()
        self._metrics.request_done(
            event.stats,
            reason=event.reason,
            at_s=event.at_s,
            max_tokens=self.call.max_tokens,
            scale=self._scale,
            by_client=self.by_client,
        )
        self._end(event)
        self._on_end(self, event)

    def _end(self, event: Finished) -> None:
        raise NotImplementedError

    def text(self, first: int, last: int) -> str:
        """Output tokens [first, last) as text."""
        return b"".join(WORDS[self._content.word(index)] for index in range(first, last)).decode()

    def ids(self, first: int, last: int) -> list[int]:
        """Output tokens [first, last) as ids."""
        return [WORD_IDS[self._content.word(index)] for index in range(first, last)]

    @property
    def _prompt_ids(self) -> list[int]:
        return self._content.tokens[: self._content.input_tokens]

    def _usage(self, count: int, stats: RequestStats | None = None) -> dict[str, Any]:
        prompt = self._content.input_tokens
        usage: dict[str, Any] = {"prompt_tokens": prompt, "total_tokens": prompt + count, "completion_tokens": count}
        if stats is not None and self._show_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": stats.cached_tokens}
        return usage

    def _error(self, event: Finished) -> tuple[int, bytes]:
        """Status and body of a request that the engine ended without a result."""
        if event.reason is FinishReason.ERROR:
            message, status = "The KV cache of the prompt could not be pulled from the prefill engine.", 500
            kind = "InternalServerError"
        else:
            message, status, kind = "The request was aborted: the server is shutting down.", 503, "ServiceUnavailable"
        error = {"message": message, "type": kind, "param": None, "code": status}
        return status, json.dumps({"error": error}).encode()


class WholeAnswer(Answer):
    """One JSON body when all is done."""

    def _show(self, count: int) -> None:
        pass

    def _end(self, event: Finished) -> None:
        if event.reason in (FinishReason.ERROR, FinishReason.ABORT):
            self.exchange.respond(*self._error(event))
            return
        text, call = self.text(0, self.count), self.call
        choice: dict[str, Any] = {
            "index": 0,
            "logprobs": None,
            "finish_reason": event.reason.value,
            "stop_reason": None,
        }
        choice |= {"token_ids": self.ids(0, self.count) if call.return_token_ids else None, "routed_experts": None}
        body: dict[str, Any] = {"id": self._id, "created": self._created_s, "model": call.model, "choices": [choice]}
        body |= {"service_tier": None, "system_fingerprint": _FINGERPRINT}
        prompt_ids = self._prompt_ids if call.return_token_ids else None
        if call.chat:
            unused = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
            choice["message"] = {"role": "assistant", "content": text, **unused}
            body |= {"object": "chat.completion", "prompt_token_ids": prompt_ids}
            body |= {"prompt_logprobs": None, "prompt_text": None}
        else:
            choice |= {"text": text, "prompt_token_ids": prompt_ids, "prompt_logprobs": None}
            body["object"] = "text_completion"
        usage = self._usage(self.count, event.stats)
        if details := usage.get("prompt_tokens_details"):
            details |= {"created_cache_tokens": None, "multimodal_tokens": None}
        body["usage"] = {"prompt_tokens_details": None, "completion_tokens_details": None, **usage}
        body["kv_transfer_params"] = self.hand_off_params(event) if self.hand_off_params else None
        body |= {"ec_transfer_params": None, "metrics": None}
        self.exchange.respond(200, json.dumps(body, separators=(",", ":")).encode())


class StreamedAnswer(Answer):
    """Server-sent events."""

    def __init__(self, *args: Any, stream_interval: int = 1, **kwargs: Any) -> None:
        """`stream_interval` tokens go into one chunk, but the first and the last go at once."""
        super().__init__(*args, **kwargs)
        self._interval = stream_interval
        self._shown = 0
        call = self.call
        kind = "chat.completion.chunk" if call.chat else "text_completion"
        self._head = f'{{"id":{json.dumps(self._id)},"object":"{kind}","created":{self._created_s},' + (
            f'"model":{json.dumps(call.model)},"choices":['
        )
        opening = '{"index":0,"delta":{"content":"' if call.chat else '{"index":0,"text":"'
        closing = '"},"logprobs":null,"finish_reason":null,"token_ids":null}]}\n\n'
        if not call.chat:
            closing = '","logprobs":null,"finish_reason":null,"stop_reason":null,'
            closing += '"prompt_token_ids":null,"token_ids":null}]}\n\n'
        front, self._back = f"data: {self._head}{opening}".encode(), f"{closing}".encode() + b"\r\n"
        size = len(front) + len(WORDS[0]) + len(closing)
        self._front = b"%x\r\n%b" % (size, front)
        self._plain = stream_interval == 1 and not call.return_token_ids and not call.usage_in_chunks

    def begin(self) -> None:
        """See `Answer.begin`."""
        self.exchange.start_stream()

    def _show(self, count: int) -> None:
        if count >= self._ends_at:
            return  # goes out with the end
        if self._plain and count > 1:
            self.exchange.write_framed(self._front + WORDS[self._content.word(count - 1)] + self._back)
            self._shown = count
        elif count == 1 or count - self._shown >= self._interval:
            data = self._opening() + self._chunk(self._shown, count, None)
            self.exchange.write_framed(b"%x\r\n%b\r\n" % (len(data), data))
            self._shown = count

    def _opening(self) -> bytes:
        """A chat's first chunk names the role."""
        if not self.call.chat or self._shown:
            return b""
        ids = json.dumps(self._prompt_ids if self.call.return_token_ids else None, separators=(",", ":"))
        role = '{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}'
        tail = self._chunk_usage(0) if self.call.usage_in_chunks else ""
        return f'data: {self._head}{role}]{tail},"prompt_token_ids":{ids},"prompt_text":null}}\n\n'.encode()

    def _chunk_usage(self, count: int) -> str:
        """The usage that stands in a chunk, with continuous_usage_stats."""
        details = {"completion_tokens_details": None} if self.call.chat else {}
        return ',"usage":' + json.dumps({**self._usage(count), **details}, separators=(",", ":"))

    def _chunk(self, first: int, last: int, reason: str | None) -> bytes:
        """Output tokens [first, last) as one event."""
        call = self.call
        choice: dict[str, Any] = {"index": 0}
        if call.chat:
            choice["delta"] = {"content": self.text(first, last)}
        else:
            choice["text"] = self.text(first, last)
        choice |= {"logprobs": None, "finish_reason": reason}
        if not call.chat:
            shown = call.return_token_ids and first == 0
            choice |= {"stop_reason": None, "prompt_token_ids": self._prompt_ids if shown else None}
        elif reason is not None:
            choice["stop_reason"] = None
        choice["token_ids"] = self.ids(first, last) if call.return_token_ids else None
        tail = self._chunk_usage(last) if call.usage_in_chunks else ""
        if reason is not None and not call.include_usage:
            tail += f',"system_fingerprint":"{_FINGERPRINT}"'
        return f"data: {self._head}{json.dumps(choice, separators=(',', ':'))}]{tail}}}\n\n".encode()

    def _end(self, event: Finished) -> None:
        if not self.exchange.open:
            return
        if event.reason in (FinishReason.ERROR, FinishReason.ABORT):
            self.exchange.finish(b"data: " + self._error(event)[1] + b"\n\n" + _DONE)
            return
        data = self._opening() + self._chunk(self._shown, self.count, event.reason.value)
        if self.call.include_usage:
            usage = json.dumps(self._usage(self.count, event.stats), separators=(",", ":"))
            data += f'data: {self._head}],"usage":{usage},"system_fingerprint":"{_FINGERPRINT}"}}\n\n'.encode()
        self.exchange.finish(data + _DONE)
