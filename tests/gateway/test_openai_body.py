"""What is read from a body, and the errors that answer a bad one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_core.model import RejectReason
from ballast_gateway import errors, openai_body

TEXT = st.text('ab\u00e9\u4e2d\U0001f600"\\\n', max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"prompt": [1, 2, 3]}, 3),
        ({"prompt": [[1, 2], [3]]}, 3),
        ({"prompt": "12345678"}, 2),
        ({"prompt": "123456789"}, 3),
        ({"prompt": ["1234", "5678"]}, 2),
        ({"messages": [{"role": "user", "content": "12345678"}]}, 2),
        ({"messages": [{"content": [{"type": "text", "text": "1234"}, {"type": "image_url"}]}]}, 1),
        ({"input": "1234"}, 1),
        ({"prompt": None, "messages": [{"content": "1234"}]}, 1),
        ({}, 0),
    ],
)
def test_prompt_tokens_are_exact_for_ids_and_estimated_for_text(document: dict[str, Any], expected: int) -> None:
    """About four characters make a token."""
    assert openai_body.prompt_tokens(document) == expected


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "a" * 4000}}]},
        {"role": "assistant", "function_call": {"name": "f", "arguments": "a" * 4000}},
        {"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": {"a": "a" * 3992}}]},
        {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "a" * 4000}]}]},
        {"role": "user", "content": [{"type": "text", "text": "a" * 4000, "content": ""}]},
        {"type": "function_call", "name": "f", "arguments": "a" * 4000},
        {"type": "function_call_output", "output": "a" * 4000},
        {"type": "function_call_output", "output": [{"type": "input_text", "text": "a" * 4000}]},
    ],
)
def test_calls_of_tools_and_what_they_gave_are_text_of_the_prompt(turn: dict[str, Any]) -> None:
    """Of an agent's conversation they are most."""
    assert openai_body.prompt_tokens({"messages": [turn]}) == 1000
    assert openai_body.prompt_tokens({"input": [turn]}) == 1000


def test_images_are_no_text_of_the_prompt() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "a" * 4000}}
    shown = {"type": "computer_call_output", "output": {"type": "computer_screenshot", "image_url": "a" * 4000}}
    assert openai_body.prompt_tokens({"messages": [{"role": "user", "content": [image]}], "input": [shown]}) == 0


TOOLS = [{"type": "function", "function": {"name": "f", "description": "a" * 4000}}]


@pytest.mark.parametrize("prompt", ["x", "", [], {}, [1]])
def test_a_field_that_the_route_does_not_read_hides_no_prompt(prompt: object) -> None:
    """A chat's quota is charged for its messages and tools, whatever stands beside them."""
    chat = {"messages": [{"role": "user", "content": "a" * 4000}], "prompt": prompt}
    assert openai_body.prompt_tokens(chat, openai_body.CHAT_PROMPT) == 1000
    assert 2000 < openai_body.prompt_tokens(chat | {"tools": TOOLS}, openai_body.CHAT_PROMPT) < 2100
    completion = {"prompt": "a" * 4000, "messages": [], "tools": TOOLS}
    assert openai_body.prompt_tokens(completion, openai_body.COMPLETION_PROMPT) == 1000


@given(st.dictionaries(st.sampled_from(["prompt", "messages", "input", "tools", "model", "max_tokens"]), JSON))
def test_no_document_breaks_the_reading(document: dict[str, Any]) -> None:
    """Counts are never negative, whatever stands where the prompt should."""
    assert openai_body.prompt_tokens(document) >= 0
    assert (openai_body.max_output_tokens(document) or 1) > 0


@given(st.dictionaries(TEXT, JSON, max_size=5))
def test_cleaning_takes_out_control_fields_only(document: dict[str, Any]) -> None:
    """Everything else stays as it is, also through the bytes."""
    assert openai_body.without_control_fields(document) is None
    dirty = {"kv_transfer_params": {"remote_host": "x"}} | document | {"ec_transfer_params": None}
    cleaned = openai_body.without_control_fields(dirty)
    assert cleaned is not None
    assert json.loads(openai_body.dump(cleaned)) == document


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6, "max_tokens": 5}, 6),
        ({"max_output_tokens": 7}, 7),
        ({"max_tokens": True}, None),
        ({"max_tokens": "5"}, None),
        ({"max_tokens": 0}, None),
        ({}, None),
    ],
)
def test_the_output_limit_is_read_where_it_makes_sense(document: dict[str, Any], expected: int | None) -> None:
    """The engine judges the rest."""
    assert openai_body.max_output_tokens(document) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/completions", 3),
        ("/v1/chat/completions", 1),
        ("/v1/chat/completions/batch", 1),
        ("/v1/responses", 2),
        ("/v1/messages", 3),
        ("/cohere/v2/chat", 3),
        ("/of/settings", 1),
    ],
)
def test_a_limit_that_the_route_does_not_read_is_not_believed(path: str, expected: int) -> None:
    """Or whoever wrote a small one beside the real one would pass for a short request, and go first."""
    document = {"max_completion_tokens": 1, "max_output_tokens": 2, "max_tokens": 3}
    assert openai_body.max_output_tokens(document, path) == expected


@pytest.mark.parametrize(
    ("path", "document", "expected"),
    [
        ("/v1/completions", {}, 16),
        ("/v1/completions", {"max_completion_tokens": 500}, 16),
        ("/v1/completions", {"max_tokens": None}, None),
        ("/v1/chat/completions", {}, None),
        ("/v1/responses", {}, None),
    ],
)
def test_a_completion_without_a_limit_has_its_routes_own(
    path: str, document: dict[str, Any], expected: int | None
) -> None:
    """Sixteen tokens in vLLM: or a short request passes for one without end, and waits behind long ones."""
    assert openai_body.max_output_tokens(document, path) == expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/completions", True),
        ("/tenant/v1/chat/completions?x=1", True),
        ("/v1/responses/", True),
        ("/v1/models", False),
        ("/tokenize", False),
    ],
)
def test_which_paths_must_carry_json(path: str, expected: bool) -> None:
    """Whatever prefix a route puts before them."""
    assert openai_body.is_json_path(path) is expected


REJECTIONS = {
    "no-endpoints": 503,
    "saturated": 429,
    "upstream-failed": 503,
    "retry-budget": 503,
    "upstream-refused": 502,
    "breaks-engines": 502,
}


def test_every_rejection_has_a_status() -> None:
    assert set(RejectReason) == set(REJECTIONS)


@pytest.mark.parametrize(("reason", "status"), REJECTIONS.items())
def test_a_rejection_has_a_time_to_retry_unless_that_would_fail_again(reason: str, status: int) -> None:
    """OpenAI's shape, and a reason for machines in body and header."""
    error = errors.rejected(RejectReason(reason), "why", 1.0)
    assert error.status == status
    headers = dict(error.headers())
    assert (headers.get("retry-after"), headers["x-ballast-reason"]) == (None if status == 502 else "1", reason)
    assert json.loads(error.body())["error"] == {
        "message": "why",
        "type": error.type,
        "param": None,
        "code": reason,
    }
