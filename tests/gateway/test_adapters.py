"""LoRA adapters on sockets: what engines say of them, who is sent where, and which names clients may use."""

from __future__ import annotations

import json

import pytest

from ballast_gateway.observe.exposition import AdapterGauges, BadExposition, read_gauges
from ballast_gateway.observe.model_card import read_card

_GAUGES = 'vllm:num_requests_running{engine="0"} 1.0\nvllm:num_requests_waiting{engine="0"} 0.0\n'


def page(*samples: str) -> bytes:
    return (_GAUGES + "".join(f"vllm:lora_requests_info{sample}\n" for sample in samples)).encode()


def sample(running: str, waiting: str, at: str, most: str = "4") -> str:
    return f'{{max_lora="{most}",running_lora_adapters="{running}",waiting_lora_adapters="{waiting}"}} {at}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(page(), None, id="no-lora"),
        pytest.param(
            page(sample("", "", "1.7e+09"), sample("a,b", "c", "1.8e+09"), sample("d", "", "1.6e+09")),
            AdapterGauges(frozenset("ab"), frozenset("c"), 4),
            id="the-newest",
        ),
        pytest.param(
            b"# HELP vllm:lora_requests_info Running\n# TYPE vllm:lora_requests_info gauge\n"
            + page(sample("", "", "5.0")),
            AdapterGauges(frozenset(), frozenset(), 4),
            id="idle",
        ),
        pytest.param(
            page(sample("a b , c", "", "5.0", "x")), AdapterGauges(frozenset({"a b", "c"}), frozenset(), 0), id="odd"
        ),
        pytest.param(page(sample("a}b", "", "5.0")), AdapterGauges(frozenset({"a}b"}), frozenset(), 4), id="brace"),
        pytest.param(
            page(sample("a", "", "5.0"), sample("b", "", "5.5"))[:-1],
            AdapterGauges(frozenset("b"), frozenset(), 4),
            id="cut",
        ),
    ],
)
def test_the_newest_sample_says_what_is_at_work(text: bytes, expected: AdapterGauges | None) -> None:
    """vLLM keeps a sample for each state that there has been."""
    assert read_gauges(text).adapters == expected


def test_a_sample_without_a_number_is_no_page_of_an_engine() -> None:
    """As for the other metrics."""
    with pytest.raises(BadExposition):
        read_gauges(page('{max_lora="4"} soon'))


def test_adapters_are_the_models_with_a_parent() -> None:
    """As vLLM lists them."""
    models = [{"id": "m", "max_model_len": 9, "parent": None}, {"id": "a", "max_model_len": None, "parent": "m"}]
    card = read_card(json.dumps({"data": models}).encode(), ["m"])
    assert (card.names, card.adapters, card.max_model_len) == (("m", "a"), frozenset("a"), 9)
