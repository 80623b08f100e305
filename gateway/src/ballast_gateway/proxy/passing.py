"""Bodies of the inference API beside completions and chats: responses, messages, embeddings, scores, tokens, ...

One engine gets such a request whole, and its answer goes on as it came. Checked is what the gateway depends on (the
model, whether a stream is asked for), and that no engine is asked to keep what only it would have: a stored response is
on one engine, and the next request may go to any.
"""

from __future__ import annotations

from typing import Final

from ballast_gateway import lax, openai_body, paths
from ballast_gateway.openai_body import JsonObject
from ballast_gateway.proxy.bodies import Generation, check_stream, is_plain_object
from ballast_gateway.strict_json import Size

_NOT_STORED: Final = b',"store":false}'


def read_passed(raw: bytes, *, path: str, default_model: str, dropped: frozenset[str], size: Size) -> Generation:
    """Check a body, and take out the `dropped` fields. Without a model it is for the default one, as with vLLM.

    Raises `InvalidBody`, which names the field.
    """
    document = openai_body.parse_object(raw, size)
    model = openai_body.model_of(document, default_model)
    plain = lax.plain(document, chat=True)
    cleaned = openai_body.without_control_fields(document if plain is None else plain, dropped)
    read = cleaned or plain or document
    stream = check_stream(read)
    if read is not document or not is_plain_object(raw):
        raw = openai_body.dump(read)
    if path == paths.RESPONSES:
        raw, read = _not_stored(raw, read)
    generates = path in paths.GENERATING
    return Generation(
        chat=False,
        model=model,
        stream=stream,
        prompt_tokens=openai_body.prompt_tokens(read),
        max_output_tokens=openai_body.max_output_tokens(read, path) if generates else 1,
        choices=1,
        document=read,
        raw=raw,
        priority=openai_body.priority(read),
        passed=True,
    )


def _not_stored(raw: bytes, document: JsonObject) -> tuple[bytes, JsonObject]:
    """A request for a response that no engine keeps. Raises `InvalidBody` where it asks for another."""
    if openai_body.keeps_nothing(document):
        return raw, document
    return raw[: raw.rindex(b"}")] + _NOT_STORED, document | {"store": False}  # of two equal keys the last one counts
