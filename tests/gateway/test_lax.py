"""Numbers and booleans in other writing: read as vLLM reads them, and written plainly for engines."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from ballast_gateway.lax import plain
from ballast_gateway.openai_body import without_control_fields
from ballast_gateway.proxy.bodies import read_generation
from ballast_gateway.proxy.fields import is_replayable
from tests.support.gateway_kit import post, raw_exchange, running_gateway
from tests.support.scripted_engine import decode_script, prefill_script, scripted_engine

OK = {"model": "tiny", "prompt": "hello"}


class AsVllm(BaseModel):
    """Fields of vLLM 0.32's `CompletionRequest` with its types."""

    stream: bool | None = False
    echo: bool | None = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    n: int = 1
    seed: int | None = None
    logprobs: int | None = None
    priority: int = 0
    temperature: float | None = None
    length_penalty: float = 1.0


@given(
    field=st.sampled_from(sorted(AsVllm.model_fields)),
    value=st.one_of(
        st.sampled_from(["true", "False", "on", "0", "1", " 7 ", "4.0", "4.5", "1e3", "nan", "inf", "", "x", "1_000"]),
        st.just("1" + "0" * 400),
        st.integers(-3, 70).map(str),
        st.integers(),
        st.booleans(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from([4.0, 0.0, 1.0, [], {}]),
    ),
)
def test_it_reads_what_vllm_reads(field: str, value: Any) -> None:
    """The same value; and what vLLM refuses is left for it to refuse."""
    document = {**OK, field: value}
    read = (plain(document, chat=False) or document)[field]
    try:
        expected = getattr(AsVllm(**{field: value}), field)
    except ValidationError:
        assert read is value
        return
    if isinstance(expected, float) and not math.isfinite(expected):
        assert read is value
    else:
        assert (float(read) if isinstance(expected, float) else read) == expected
        assert type(read) is type(expected) or (isinstance(expected, float) and type(read) is int)


def test_plain_bodies_are_not_copied() -> None:
    assert plain({**OK, "stream": True, "max_tokens": 5, "temperature": 1, "n": None, "top_p": 0.5}, chat=False) is None


def test_a_stream_asked_for_in_text_is_a_stream_that_can_be_replayed() -> None:
    """With all of its numbers, and its options."""
    body = {
        **OK,
        "stream": "true",
        "max_tokens": "16",
        "n": 1.0,
        "temperature": "0",
        "stream_options": {"include_usage": "yes"},
    }
    generation = read_generation(json.dumps(body).encode(), chat=False)
    assert generation.stream
    assert is_replayable(generation)
    assert generation.max_output_tokens == 16
    sent = json.loads(generation.raw)
    assert sent == {
        **OK,
        "stream": True,
        "max_tokens": 16,
        "n": 1,
        "temperature": 0.0,
        "stream_options": {"include_usage": True},
    }


async def test_engines_get_plain_numbers(tmp_path: Path) -> None:
    """Over sockets. Several choices: no stream inside, and no prefill leg."""
    async with scripted_engine(prefill_script) as first, scripted_engine(decode_script) as second:
        async with running_gateway(tmp_path, {"p0": first.address, "d0": second.address}) as gateway:
            (answer,) = await raw_exchange(
                gateway.port, post("/v1/completions", {**OK, "max_tokens": "3", "stream": "off", "n": 2.0}), answers=1
            )
        assert answer.status == 200
        assert second.asked[0].body["max_tokens"] == 3
        assert second.asked[0].body["stream"] is False


@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params"])
def test_vllm_xargs_carry_no_routing(name: str) -> None:
    """vLLM keeps them in one place with the connectors' parameters."""
    document = {**OK, "vllm_xargs": {name: "x", "mine": 1}}
    assert without_control_fields(document) == {**OK, "vllm_xargs": {"mine": 1}}
    generation = read_generation(json.dumps({**document, name: {"remote_host": "evil"}}).encode(), chat=False)
    assert json.loads(generation.raw) == {**OK, "vllm_xargs": {"mine": 1}}
    assert without_control_fields({**OK, "vllm_xargs": {"mine": 1}}) is None
