"""Which generations can go on at another engine from their tokens alone.

A replay gives the engine the prompt and the output so far as one prompt. What an engine keeps beside tokens is lost:
the state of its random numbers, counts of penalties, grammars, stop strings that span the cut, parsers of tools and
reasoning, offsets of log-probabilities (vLLM 0.32, measured; docs/limits.md has the table). So only requests are moved
whose every field is known to survive; a field that is not listed here keeps its request where it is.
"""

from __future__ import annotations

from typing import Final

from ballast_gateway.proxy.bodies import Generation

OUTPUT_TOKENS_ARG: Final = "ballast_output_tokens"
"""In `vllm_xargs`: when engine-sim plays the model's end of text. A count of output, so it shrinks as `max_tokens`."""
COMPLETION_TOKENS: Final = 16
"""The default of `max_tokens` in `/v1/completions`."""

_SURVIVES: Final = frozenset(
    (
        *("model", "prompt", "messages", "stream", "stream_options", "return_token_ids"),
        *("max_tokens", "max_completion_tokens", "ignore_eos", "stop_token_ids"),
        *("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "logit_bias", "allowed_token_ids"),
        *("skip_special_tokens", "spaces_between_special_tokens", "add_special_tokens"),
        *("add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs", "documents"),
        *("user", "priority", "metadata", "store", "service_tier", "request_id", "cache_salt"),
        *("safety_identifier", "prompt_cache_key"),
    )
)
_UNLESS_USED: Final[dict[str, tuple[object, ...]]] = {
    "n": (1,),
    "best_of": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "stop": ("", []),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "echo": (False,),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "tools": ([],),
    "tool_choice": ("none",),
    "response_format": ({"type": "text"},),
    "include_stop_str_in_output": (False,),
    "bad_words": ([],),
}
"""Lost in a replay, but nothing is lost at these values."""


def is_replayable(generation: Generation) -> bool:
    """Whether its stream may be continued by another engine."""
    if not generation.stream or not generation.can_hand_off:
        return False
    if not generation.chat and generation.document.get("max_tokens", COMPLETION_TOKENS) is None:
        return False  # engines differ in what they take this for
    return all(_survives(field, value, generation) for field, value in generation.document.items() if value is not None)


def _survives(field: str, value: object, generation: Generation) -> bool:
    if field in _SURVIVES:
        return field != "messages" or are_text(value)
    match field:
        case "min_tokens":
            return type(value) is int
        case "seed":  # greedy decoding draws nothing
            return generation.document.get("temperature") == 0
        case "vllm_xargs":
            return isinstance(value, dict) and all(
                name == OUTPUT_TOKENS_ARG and type(tokens) is int for name, tokens in value.items()
            )
        case _:
            return any(
                idle == value and isinstance(idle, bool) == isinstance(value, bool)
                for idle in _UNLESS_USED.get(field, ())
            )


def are_text(messages: object) -> bool:
    """A list of messages without images and the like, for which vLLM takes no token ids in place of messages."""
    if not isinstance(messages, list):
        return False
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and not all(isinstance(p, dict) and p.get("type") == "text" for p in content):
            return False
    return True
