"""Numbers and booleans that clients write in other ways, such as `"16"`, `4.0` or `"true"`, taken as vLLM takes them.

vLLM reads bodies with pydantic in its lax mode, so pydantic itself decides here, too. The gateway goes by these fields
(a stream is held, a limit believed), and engines get them in plain form: all then read the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Final

from ballast_gateway.openai_body import JsonObject

if TYPE_CHECKING:
    from pydantic_core import SchemaValidator

_EITHER: Final[Mapping[str, type]] = {
    **dict.fromkeys(
        (
            *("stream", "echo", "use_beam_search", "ignore_eos", "include_stop_str_in_output", "return_token_ids"),
            *("skip_special_tokens", "spaces_between_special_tokens", "add_special_tokens"),
        ),
        bool,
    ),
    **dict.fromkeys(("max_tokens", "n", "best_of", "min_tokens", "seed", "top_k", "priority"), int),
    **dict.fromkeys(
        (
            *("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"),
            "length_penalty",
        ),
        float,
    ),
}
_COMPLETIONS: Final = {**_EITHER, "logprobs": int}
_CHAT: Final = {
    **_EITHER,
    **dict.fromkeys(("max_completion_tokens", "top_logprobs"), int),
    **dict.fromkeys(("logprobs", "add_generation_prompt", "continue_final_message"), bool),
}
_STREAM_OPTIONS: Final[Mapping[str, type]] = {"include_usage": bool, "continuous_usage_stats": bool}


def plain(document: JsonObject, *, chat: bool) -> JsonObject | None:
    """A copy with each known field as the number or boolean that vLLM 0.32 reads in it; None where it is that already.

    What vLLM would refuse stays as it is.
    """
    changed = _changed(document, _CHAT if chat else _COMPLETIONS)
    options = document.get("stream_options")
    if options and isinstance(options, dict) and (inner := _changed(options, _STREAM_OPTIONS)):
        changed["stream_options"] = options | inner
    return document | changed if changed else None


def _changed(document: JsonObject, kinds: Mapping[str, type]) -> JsonObject:
    changed = {}
    for field, value in document.items():
        kind = kinds.get(field)
        if kind is None or value is None or type(value) is kind or (kind is float and type(value) is int):
            continue
        try:
            read = _reader(kind).validate_python(value)
        except ValueError:
            continue
        if not isinstance(read, float) or math.isfinite(read):  # text such as "nan" makes a number that JSON cannot say
            changed[field] = read
    return changed


@cache
def _reader(kind: type) -> SchemaValidator:
    """pydantic's own, without its models: most clients write plainly, and agents in engine pods are small without."""
    from pydantic_core import SchemaValidator, core_schema

    schemas = {bool: core_schema.bool_schema(), int: core_schema.int_schema(), float: core_schema.float_schema()}
    return SchemaValidator(schemas[kind])
