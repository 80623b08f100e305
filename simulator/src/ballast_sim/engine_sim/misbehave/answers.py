"""Error bodies as vLLM 0.32 writes them (its `create_error_response`, middleware and handlers), and garbage."""

import json
from http import HTTPStatus

from ballast_sim.engine_sim.bodies import BUSY
from ballast_sim.engine_sim.misbehave.facts import Facts

UNAUTHORIZED = b'{"error":"Unauthorized"}'
DONE = b"data: [DONE]\n\n"
ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."


def _error(message: str, kind: str, code: int, param: str | None = None) -> dict[str, object]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def unknown_model(facts: Facts) -> bytes:
    """404 of a server that serves another name."""
    message = f"The model `{facts.body.get('model', '')}` does not exist."
    return _compact(_error(message, "NotFoundError", 404, "model"))


def too_long(tokens: int, limit: int) -> bytes:
    """400 of a server with a context of `limit` tokens."""
    message = (
        f"This model's maximum context length is {limit} tokens. However, your prompt contains {tokens} input tokens, "
        "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
        f"(parameter=input_tokens, value={tokens})"
    )
    return _compact(_error(message, "BadRequestError", 400, "input_tokens"))


def status_body(status: int) -> bytes:
    """What comes with a status: of a dead engine, of a full queue, else as vLLM writes any HTTP error."""
    phrase = HTTPStatus(status).phrase
    if status == 500:
        return _compact(_error(ENGINE_DEAD, "InternalServerError", 500))
    return _compact(_error(BUSY if status == 503 else phrase, phrase, status))


def error_event(message: str = "Internal server error") -> bytes:
    """A stream's error event and its end."""
    return b"data: " + json.dumps(_error(message, "InternalServerError", 500)).encode() + b"\n\n" + DONE


def error_body() -> bytes:
    """The same for an answer that is no stream; its status is 500."""
    return _compact(_error("Internal server error", "InternalServerError", 500))


HUGE_BYTES = 2**20
_CHUNK = b'{"id":"cmpl-0","object":"text_completion","created":0,"model":"m","choices":['
_NO_SSE = bytes(range(256)).replace(b"\n", b"").replace(b"\r", b"") + b"\n\n"

GARBAGE = {
    "not-json": b"data: {this is no JSON\n\n",
    "broken-token-ids": b"data: " + _CHUNK + b'{"index":0,"text":" baba","token_ids":[5\n\n',
    "huge": b"data: " + _CHUNK + b'],"padding":"%b"}\n\n' % (b"x" * HUGE_BYTES),
    "not-sse": _NO_SSE,
}
"""By name; each is what stands in a stream. The huge event is a chunk without choices: it adds no text."""
