"""A fault of the gateway's own in the midst of a request: its client is answered, and nothing of it is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from ballast_gateway.driver import Ticket
from ballast_gateway.proxy import answers
from tests.support.gateway_kit import assert_openai_error, post, raw_exchange, running_gateway
from tests.support.scripted_engine import decode_script, prefill_script, scripted_engine

PATH = "/v1/completions"
BODY = {"model": "tiny", "prompt": "hello", "max_tokens": 3}


@pytest.mark.parametrize("where", ["poll", "prefill_done"])
async def test_a_fault_between_two_legs_is_a_500(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """Answered once, logged as failed, off the ledger; the connection goes on."""

    def fault(ticket: Ticket) -> None:
        raise RuntimeError("a fault")

    async with (
        scripted_engine(prefill_script) as prefill,
        scripted_engine(decode_script) as decode,
        running_gateway(tmp_path, {"p0": prefill.address, "d0": decode.address}) as gateway,
    ):
        with monkeypatch.context() as patched:
            patched.setattr(Ticket, where, fault)
            refused, listed = await raw_exchange(
                gateway.port, post(PATH, BODY), b"GET /v1/models HTTP/1.1\r\nhost: g\r\n\r\n", answers=2
            )
        (good,) = await raw_exchange(gateway.port, post(PATH, BODY), answers=1)
        assert (refused.status, listed.status, good.status) == (500, 200, 200)
        assert assert_openai_error(refused)["code"] == "internal-error"
        assert gateway.gateway.proxy is not None
        assert gateway.gateway.proxy.in_flight == len(gateway.gateway.driver.director.ledger) == 0
        first = gateway.requests()[0]
        assert (first["outcome"], first["reason"], first["status"]) == ("failed", "internal-error", 500)


async def test_a_fault_at_the_end_of_a_stream_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last event has come, and its engine's answer is still open: the connection is cut, the request is booked."""

    def fault(*_: object) -> None:
        raise RuntimeError("a fault")

    async with (
        scripted_engine(prefill_script) as prefill,
        scripted_engine(decode_script) as decode,
        running_gateway(tmp_path, {"p0": prefill.address, "d0": decode.address}) as gateway,
    ):
        with monkeypatch.context() as patched:
            patched.setattr(answers, "end", fault)
            (cut,) = await raw_exchange(gateway.port, post(PATH, BODY | {"stream": True}), answers=1)
        assert (cut.status, cut.whole) == (200, False)
        assert gateway.request()["outcome"] == "failed"
        assert gateway.gateway.proxy is not None
        assert gateway.gateway.proxy.in_flight == len(gateway.gateway.driver.director.ledger) == 0
        (good,) = await raw_exchange(gateway.port, post(PATH, BODY), answers=1)
        assert good.status == 200


async def test_a_fault_in_reading_a_body_keeps_none_of_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object, **__: object) -> None:
        raise RuntimeError("a fault")

    async with (
        scripted_engine(decode_script) as flexible,
        running_gateway(tmp_path, {"f0": flexible.address}) as gateway,
    ):
        assert gateway.gateway.proxy is not None
        with monkeypatch.context() as patched:
            patched.setattr("ballast_gateway.proxy.face.read_generation", fault)
            (bad,) = await raw_exchange(gateway.port, post(PATH, BODY), answers=1)
        (huge,) = await raw_exchange(gateway.port, post(PATH, BODY | {"seed": "1" + "0" * 400}), answers=1)
        assert (bad.status, huge.status) == (500, 200)
        assert gateway.gateway.proxy.clients.held_bytes == 0
