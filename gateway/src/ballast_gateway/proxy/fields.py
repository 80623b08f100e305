"""Which fields of a request let its stream go on elsewhere, and which let its prompt be cut: one table.

*Replay*: another engine gets the prompt and the output so far as its prompt. What an engine keeps beside tokens is
lost: the state of its random numbers, counts of penalties, grammars, stop strings that span the cut, parsers of tools
and reasoning, offsets of log-probabilities (vLLM 0.32, measured; docs/limits/gateway.md has the table).

*Cut*: one engine computes the first part of the prompt, another one the rest. The gateway has to name the tokens of the
first part. It knows them where the prompt came as token ids; for text it asks an engine's `/tokenize`, which renders a
chat as `/v1/chat/completions` does only as far as it has the same fields (vLLM 0.32). The second engine gets the
client's own request, so whatever is about the output may stand in it.

A field that has no row keeps its request whole and where it is. Only streams are replayed or cut: the KV of a first
part is kept for one lease, without heartbeats, and vLLM reads whatever lies there later (`cutting.py`); when an engine
has begun is seen in a stream alone. A whole answer whose stream could be replayed comes as a stream (`whole_answers`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ballast_gateway.openai_body import COMPLETION_TOKENS
from ballast_gateway.proxy.bodies import Generation

OUTPUT_TOKENS_ARG: Final = "ballast_output_tokens"
"""In `vllm_xargs`: when engine-sim plays the model's end of text. A count of output, so it shrinks as `max_tokens`."""
TEMPLATE_FIELDS: Final = (
    *("add_generation_prompt", "continue_final_message", "add_special_tokens"),
    *("chat_template", "chat_template_kwargs"),
)
"""What `/tokenize` and `/v1/chat/completions` both take, and mean the same by."""
_MESSAGE_FIELDS: Final = frozenset({"role", "content", "name"})

Check = Callable[[object, Generation], bool]
"""Whether a field of this value may stand in the request."""


class Rule(NamedTuple):
    """One row: whether a request with this field may be replayed, and whether it may be cut."""

    replay: Check
    cut: Check


def is_replayable(generation: Generation) -> bool:
    """Whether its stream, asked for or not, may be continued by another engine."""
    if not generation.chat and generation.document.get("max_tokens", COMPLETION_TOKENS) is None:
        return False  # engines differ in what they take this for
    return generation.can_hand_off and _all_pass(generation, lambda rule: rule.replay)


def is_divisible(generation: Generation) -> bool:
    """Whether the tokens of its prompt can be known, so that two engines may compute it."""
    return generation.stream and generation.can_hand_off and _all_pass(generation, lambda rule: rule.cut)


def _all_pass(generation: Generation, purpose: Callable[[Rule], Check]) -> bool:
    return all(
        field in FIELDS and purpose(FIELDS[field])(value, generation)
        for field, value in generation.document.items()
        if value is not None
    )


# --- checks ---------------------------------------------------------------------------------------------------------


def _always(value: object, generation: Generation) -> bool:
    return True


def _never(value: object, generation: Generation) -> bool:
    return False


def _only(*idle: object) -> Check:
    """At these values the field does nothing."""

    def check(value: object, generation: Generation) -> bool:
        return any(each == value and isinstance(each, bool) == isinstance(value, bool) for each in idle)

    return check


def _in_chats(value: object, generation: Generation) -> bool:
    return generation.chat


def _is_whole_number(value: object, generation: Generation) -> bool:
    return type(value) is int


def _if_greedy(value: object, generation: Generation) -> bool:
    return generation.document.get("temperature") == 0  # greedy decoding draws nothing


def _is_ours(value: object, generation: Generation) -> bool:
    return isinstance(value, dict) and all(
        name == OUTPUT_TOKENS_ARG and type(tokens) is int for name, tokens in value.items()
    )


def _is_one_prompt(prompt: object, generation: Generation) -> bool:
    if generation.chat:
        return False
    return isinstance(prompt, str) or (isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], int))


def _is_text(messages: object, generation: Generation) -> bool:
    """A list of messages without images and the like, for which vLLM takes no token ids in place of messages."""
    if not isinstance(messages, list):
        return False
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, list) and not all(isinstance(p, dict) and p.get("type") == "text" for p in content):
            return False
    return True


def _is_plain_chat(messages: object, generation: Generation) -> bool:
    """Text of speakers, without what a server may rewrite before it renders it: calls of tools, reasoning."""
    if not (generation.chat and isinstance(messages, list) and _is_text(messages, generation)):
        return False
    return all(each.keys() <= _MESSAGE_FIELDS for each in messages)


# --- the table ------------------------------------------------------------------------------------------------------

FIELDS: Final[Mapping[str, Rule]] = {
    **dict.fromkeys(
        (
            *("model", "stream", "stream_options", "return_token_ids", "max_tokens", "max_completion_tokens"),
            *("ignore_eos", "stop_token_ids", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
            *("logit_bias", "allowed_token_ids", "skip_special_tokens", "spaces_between_special_tokens"),
            *("add_special_tokens", "user", "priority", "metadata", "store", "service_tier", "request_id"),
            *("cache_salt", "safety_identifier", "prompt_cache_key"),
        ),
        Rule(replay=_always, cut=_always),
    ),
    "prompt": Rule(replay=_always, cut=_is_one_prompt),
    "messages": Rule(replay=_is_text, cut=_is_plain_chat),
    **dict.fromkeys(
        ("add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs"),
        Rule(replay=_always, cut=_in_chats),
    ),
    "documents": Rule(replay=_always, cut=_only([])),
    "suffix": Rule(replay=_never, cut=_only("")),
    # Of the output: the engine that generates needs its state from the first token on.
    "min_tokens": Rule(replay=_is_whole_number, cut=_always),
    "seed": Rule(replay=_if_greedy, cut=_always),
    "vllm_xargs": Rule(replay=_is_ours, cut=_always),
    "presence_penalty": Rule(replay=_only(0), cut=_always),
    "frequency_penalty": Rule(replay=_only(0), cut=_always),
    "stop": Rule(replay=_only("", []), cut=_always),
    "include_stop_str_in_output": Rule(replay=_only(False), cut=_always),
    "bad_words": Rule(replay=_only([]), cut=_always),
    "logprobs": Rule(replay=_only(False), cut=_always),
    "top_logprobs": Rule(replay=_only(0), cut=_always),
    "structured_outputs": Rule(replay=_never, cut=_always),
    # Several outputs, and what renders or parses: only where they do nothing.
    **{
        field: Rule(replay=_only(idle), cut=_only(idle))
        for field, idle in {
            "n": 1,
            "best_of": 1,
            "echo": False,
            "use_beam_search": False,
            "length_penalty": 1,
            "tools": [],
            "tool_choice": "none",
            "response_format": {"type": "text"},
        }.items()
    },
}
