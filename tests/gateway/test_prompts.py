"""Names of a prompt's prefix blocks, as both faces give them to the policies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_core.beliefs.block_hashes import token_block_hashes
from ballast_core.beliefs.kinds import Belief
from ballast_core.model import Request, RequestId
from ballast_gateway import openai_body
from ballast_gateway.prompts import BLOCK_TOKENS, MAX_BLOCKS, MAX_PIECES, NO_FACTS, PromptReader, block_hashes
from ballast_gateway.token_questions import Question, tokens_of

LONG = "All happy families are alike; each unhappy family is unhappy in its own way. " * 20
BLOCK_CHARS = 4 * BLOCK_TOKENS

TEXT = st.text('ab\u00e9\u4e2d\U0001f600"\\\n\ud800', max_size=400)
KEYS = st.sampled_from(["role", "content", "type", "text", "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "x"]), inner)
    ),
    max_leaves=20,
)


def said(*contents: Any) -> list[dict[str, Any]]:
    """A conversation."""
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": content} for at, content in enumerate(contents)]


def names(model: str = "m", **body: Any) -> list[int]:
    return block_hashes({"model": model, **body}, model)


def shared(left: list[int], right: list[int]) -> int:
    """How many leading names two prompts share; none may be shared after the first difference."""
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    assert not set(left[count:]) & set(right[count:])
    return count


def test_the_next_turn_begins_with_the_blocks_of_the_turn_before() -> None:
    """History, the answer, one question more: every block of the first turn is there again."""
    first = names(messages=said(LONG))
    second = names(messages=said(LONG, "In what way?", "Each in its own. " * 40))
    assert len(first) > 4
    assert shared(first, second) == len(first) < len(second)


def test_a_text_shares_its_blocks_with_a_longer_one() -> None:
    first, second = names(prompt=LONG), names(prompt=LONG + LONG)
    assert len(first) == len(LONG) // BLOCK_CHARS
    assert shared(first, second) == len(first)
    assert shared(first, names(prompt="x" + LONG)) == 0


def test_token_ids_are_named_exactly() -> None:
    ids = list(range(1000))
    first = names(prompt=ids)
    assert len(first) == 1000 // BLOCK_TOKENS
    assert shared(first, names(prompt=[*ids[:500], 7, *ids[501:]])) == 500 // BLOCK_TOKENS
    assert first == names(prompt=[ids])
    assert not set(first) & set(token_block_hashes(ids, BLOCK_TOKENS))  # those name no model


@pytest.mark.parametrize(
    "change",
    [
        {"model": "an-adapter"},
        {"cache_salt": "tenant"},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"chat_template": "{{ messages }}"},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"system": "Be brief."},
        {"messages": [{"role": "system", "content": LONG}]},
    ],
)
def test_what_changes_the_beginning_of_a_prompt_shares_nothing(change: dict[str, Any]) -> None:
    assert shared(names(messages=said(LONG)), names(**({"messages": said(LONG)} | change))) == 0


@pytest.mark.parametrize(
    "change", [{"temperature": 0.5}, {"max_tokens": 9}, {"user": "u"}, {"tools": None}, {"stream": True}]
)
def test_what_does_not_reach_the_prompt_changes_nothing(change: dict[str, Any]) -> None:
    assert names(messages=said(LONG)) == names(messages=said(LONG), **change)


def test_images_are_told_apart_by_their_bytes() -> None:
    def with_image(data: str) -> list[int]:
        image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return names(messages=said([{"type": "text", "text": LONG}, image, {"type": "text", "text": LONG}]))

    one = with_image("AAAA" * 1000)
    assert one == with_image("AAAA" * 1000)
    assert shared(one, with_image("AAAA" * 999 + "AAAB")) == len(LONG) // BLOCK_CHARS


def test_a_text_is_the_same_as_its_only_part() -> None:
    assert names(messages=said(LONG)) == names(messages=said([{"type": "text", "text": LONG}]))


def test_tool_calls_belong_to_the_prompt() -> None:
    def after(arguments: str) -> list[int]:
        call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"arguments": arguments}}]}
        return names(messages=[*said(LONG), call, {"role": "tool", "content": LONG}])

    assert shared(after("{}"), after('{"a":1}')) == len(names(messages=said(LONG)))


@pytest.mark.parametrize("ids", [[1, -1], [1, 2**32], [1, 2**70], [1, "a"], [1, None], [1, 0.5], [1, [2]]])
def test_numbers_that_are_no_token_ids_have_no_names(ids: list[Any]) -> None:
    """The picker passes such bodies on: the engine refuses them."""
    assert names(prompt=ids * BLOCK_TOKENS) == []


def test_several_prompts_have_no_common_beginning() -> None:
    assert names(prompt=[LONG, LONG]) == []
    assert names(prompt=[[1] * 100, [2] * 100]) == []


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_a_huge_prompt_gets_so_many_names_and_no_more() -> None:
    text = "abcd" * (BLOCK_TOKENS * (MAX_BLOCKS + 100))
    assert len(names(prompt=text)) == MAX_BLOCKS
    assert len(names(prompt=[5] * (BLOCK_TOKENS * (MAX_BLOCKS + 100)))) == MAX_BLOCKS
    assert len(names(messages=said(*["abcd" * 64 * 100] * 100))) == MAX_BLOCKS


def test_messages_without_end_are_looked_at_up_to_a_bound() -> None:
    empty = {"type": "text", "text": ""}
    late = [empty] * (MAX_PIECES + 1) + [{"type": "text", "text": LONG}]
    assert names(messages=said(late)) == []
    assert names(messages=said(late[-2:])) != []


def test_nesting_that_only_just_parses_is_named_too() -> None:
    depth = 0
    while True:  # the deepest that the parser takes
        try:
            document = openai_body.parse_object(
                b'{"messages":[{"role":"user","content":[%b%b]}],"tools":%b1%b}'
                % (b"[" * depth, b"]" * depth, b"[" * depth, b"]" * depth)
            )
        except openai_body.InvalidBody:
            break
        depth += 100
        if depth > 100_000:
            break
    assert depth > 100
    assert block_hashes(document, "m") == []


@pytest.mark.rotating(3)
@given(st.dictionaries(st.sampled_from(["prompt", "messages", "input", "tools", "system", "cache_salt"]), JSON))
@settings(deadline=None)
def test_no_document_breaks_the_reading(document: dict[str, Any]) -> None:
    """Names are 64-bit numbers, whatever stands where the prompt should; and the same again."""
    found = block_hashes(document, "m")
    assert all(0 <= name < 2**64 for name in found)
    assert found == block_hashes(document, "m")


@given(st.lists(TEXT, min_size=1, max_size=5), st.lists(TEXT, min_size=1, max_size=3))
@settings(deadline=None)
def test_history_is_always_a_prefix(history: list[str], more: list[str]) -> None:
    before = names(messages=said(*history))
    assert names(messages=said(*history, *more))[: len(before)] == before


# --- who needs it -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("needs", [Belief.NONE, Belief.STEP_TIMES | Belief.RATES])
def test_nothing_is_read_where_no_policy_needs_it(needs: Belief) -> None:
    assert PromptReader(needs).read({"prompt": LONG}, model="m", objective="o") is NO_FACTS


def test_names_and_classes_are_read_by_need() -> None:
    body = {"prompt": LONG}
    prefixes, lengths = PromptReader(Belief.PREFIXES), PromptReader(Belief.LENGTHS)
    assert prefixes.read(body, model="m").block_size == BLOCK_TOKENS
    assert prefixes.read(body, model="m").traffic_class == ""
    assert lengths.read(body, model="m").traffic_class == "m"
    assert lengths.read(body, model="m").block_hashes == ()
    short = prefixes.read({"prompt": "hello"}, model="m")
    assert Request(RequestId("r"), 2, block_hashes=short.block_hashes, block_size=short.block_size).block_size == 0


@pytest.mark.parametrize("field", ["system", "instructions", "documents"])
def test_the_tokens_of_a_prompt_with_more_to_it_than_its_messages_are_not_asked_for(field: str) -> None:
    """/tokenize would leave that out, and its count would pass for the whole prompt's."""
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "hello"}]}
    assert isinstance(tokens_of(chat, "m"), Question)
    assert tokens_of(chat | {field: "a" * 4000}, "m") is None


@pytest.mark.parametrize(
    ("fields", "cached"),
    [
        ({"prompt": LONG, "prompt_logprobs": 0}, False),
        ({"prompt": LONG, "echo": True, "logprobs": 1}, False),
        ({"messages": said(LONG), "echo": True}, False),
        ({"prompt": LONG, "echo": True}, True),
        ({"prompt": LONG, "logprobs": 1}, True),
        ({"messages": said(LONG), "logprobs": True, "top_logprobs": 1}, True),
    ],
)
def test_a_prompt_that_engines_compute_in_any_case_is_looked_for_nowhere(fields: dict[str, Any], cached: bool) -> None:
    """As evaluation harnesses ask: vLLM skips its prefix cache where log-probabilities of the prompt are wanted."""
    facts = PromptReader(Belief.PREFIXES, wants_tokens=True).read(fields, model="m")
    assert (bool(facts.block_hashes), facts.tokens is not None) == (cached, cached)
