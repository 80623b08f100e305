"""Which generations may have their prompt cut, so that one engine computes its first part and another one the rest.

The gateway has to name the tokens of the first part. It knows them where the prompt came as token ids; for text it asks
an engine's `/tokenize`, which renders a chat as `/v1/chat/completions` does only as far as it has the same fields
(vLLM 0.32). The second engine gets the client's own request, so whatever is about the output may stand in it. A field
that is not listed here keeps its request whole.

Only streams are cut: the KV of the first part is kept for one lease, without heartbeats, and vLLM reads whatever lies
there later (`cutting.py`). When an engine has begun is seen in a stream alone.
"""

from __future__ import annotations

from typing import Final

from ballast_gateway.openai_body import JsonObject
from ballast_gateway.proxy.bodies import Generation
from ballast_gateway.proxy.replayable import are_text

TEMPLATE_FIELDS: Final = (
    *("add_generation_prompt", "continue_final_message", "add_special_tokens"),
    *("chat_template", "chat_template_kwargs"),
)
"""What `/tokenize` and `/v1/chat/completions` both take, and mean the same by."""
_MESSAGE_FIELDS: Final = frozenset({"role", "content", "name"})
_OF_THE_OUTPUT: Final = frozenset(
    (
        *("model", "stream", "stream_options", "return_token_ids", "max_tokens", "max_completion_tokens"),
        *("min_tokens", "ignore_eos", "stop", "stop_token_ids", "include_stop_str_in_output", "bad_words"),
        *("temperature", "top_p", "top_k", "min_p", "seed", "logit_bias", "allowed_token_ids"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "logprobs", "top_logprobs"),
        *("skip_special_tokens", "spaces_between_special_tokens", "structured_outputs", "vllm_xargs"),
        *("user", "priority", "metadata", "store", "service_tier", "request_id", "cache_salt"),
        *("safety_identifier", "prompt_cache_key"),
    )
)
_UNLESS_USED: Final[dict[str, tuple[object, ...]]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "suffix": ("",),
    "tools": ([],),
    "tool_choice": ("none",),
    "documents": ([],),
    "response_format": ({"type": "text"},),
}
"""Fields of the prompt, or of several outputs, that say nothing at these values."""


def is_divisible(generation: Generation) -> bool:
    """Whether the tokens of its prompt can be known."""
    document = generation.document
    if not generation.stream or not generation.can_hand_off:
        return False
    prompt_fields = {"messages", *TEMPLATE_FIELDS} if generation.chat else {"prompt", "add_special_tokens"}
    if not (_is_plain_chat(document) if generation.chat else _is_one_prompt(document.get("prompt"))):
        return False
    return all(
        value is None or field in prompt_fields or field in _OF_THE_OUTPUT or _says_nothing(field, value)
        for field, value in document.items()
    )


def _says_nothing(field: str, value: object) -> bool:
    return any(
        idle == value and isinstance(idle, bool) == isinstance(value, bool) for idle in _UNLESS_USED.get(field, ())
    )


def _is_one_prompt(prompt: object) -> bool:
    return isinstance(prompt, str) or (isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], int))


def _is_plain_chat(document: JsonObject) -> bool:
    """Text of speakers, without what a server may rewrite before it renders it: calls of tools, reasoning."""
    messages = document.get("messages")
    if not are_text(messages) or not isinstance(messages, list):
        return False
    return all(each.keys() <= _MESSAGE_FIELDS for each in messages)
