"""`ballast top`: rows of 80 columns, names without control characters, and one clear line where it cannot work."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from ballast_cli.main import app
from ballast_cli.top_view import screen
from ballast_gateway.live.rows import About, AttainmentRow, EndpointRow, Frame, RequestRow, Tally
from tests.support.gateway_kit import running_gateway
from tests.support.raw_server import canned_server
from tests.support.scripted_engine import decode_script, scripted_engine


def endpoint(name: str, role: str, *, step_ms: float | None = None, prefill_ms: float | None = None) -> EndpointRow:
    return EndpointRow(name, role, "pool", "ready", 3, 1, 0.42, 0.4, 2, 900, 12, 34_567, step_ms, prefill_ms, 0.0)


def frame(**more: object) -> Frame:
    said: dict[str, object] = {
        "number": 0,
        "unix_s": 1000.0,
        "own": 7,
        "others": 2,
        "waiting": 1,
        "wait_s": 0.5,
        "ended": 90,
        "decided": 100,
        "about": About(whose="", models="tiny", policies={"prefill": "ballast", "decode": "ballast"}),
        "attainment": (AttainmentRow("chat", 2.0, None, None, 0.99, Tally(98, 2, 0), Tally(0, 0, 0)),),
        "endpoints": (
            endpoint("d10", "decode", step_ms=30.0),
            endpoint("d9" + "-long" * 20, "decode", step_ms=10.0),
            endpoint("p0", "prefill", prefill_ms=250.0),
        ),
        "requests": (RequestRow("evil\x1b[2J\u202e[red]", "tiny", "decode", "", "d10", "d9", 1234, 999_000, True),),
    }
    return Frame(**(said | more))  # type: ignore[arg-type]


def shown(frame: Frame, before: Frame | None = None, height: int | None = None) -> list[str]:
    console = Console(width=80, highlight=False, markup=False, emoji=False, color_system=None)
    with console.capture() as captured:
        console.print(screen(frame, before, height))
    return captured.get().splitlines()


def test_the_screen_has_80_columns_in_order() -> None:
    """Prefill before decode, 9 before 10, what moves and how steps are balanced; rates once there is a frame before."""
    lines = shown(frame(), frame(unix_s=998.0, ended=70, own=5))
    assert max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "in flight 7 + 2 of others   waiting 1 (0.50 s)   moving 1" in text
    assert "arriving 11.0/s   finished 10.0/s   step max/mean 1.50 of 20.0 ms" in text
    assert [line.split()[0][:4] for line in lines if " ready " in line] == ["p0", "d9-l", "d10"]
    assert "98.0%" in text
    assert "evil\ufffd[2J\ufffd[red]" in text
    assert "moves" in text
    assert "\x1b" not in text


def test_no_word_of_a_gateway_moves_the_cursor() -> None:
    """Not of its policies, names or states either: whatever answers at that address."""
    evil = "\x1b[2J"
    about = About(whose=evil, models=evil, policies={evil: evil}, name=evil, together=2)
    row = EndpointRow(evil, evil, evil, evil, 3, 1, 0.42, 0.4, 2, 900, 12, 34, 1.0, 1.0, 0.0)
    request = RequestRow(evil, evil, evil, evil, evil, "", 1, 0, True)
    assert "\x1b" not in "\n".join(shown(frame(about=about, endpoints=(row,), requests=(request,))))


async def test_a_terminal_that_cannot_be_drawn_on_gets_one_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TERM=dumb, as in an editor's shell: nothing at all was shown there."""
    monkeypatch.setattr("ballast_cli.top_view.Console.is_terminal", property(lambda _: True))
    monkeypatch.setenv("TERM", "dumb")
    async with running_gateway(tmp_path, {}) as gateway:
        told = await asyncio.wait_for(
            asyncio.to_thread(CliRunner().invoke, app, ["top", "--gateway", gateway.admin_url]), 30
        )
    assert (told.exit_code, "in flight 0" in told.output) == (0, True), told.output


def test_a_low_terminal_names_what_it_leaves_out() -> None:
    """The rest is counted."""
    many = tuple(endpoint(f"d{number}", "decode") for number in range(50))
    lines = shown(frame(endpoints=many), height=40)
    assert len(lines) <= 40
    assert any("more endpoints" in line for line in lines)


def asked(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["top", "--once", *arguments])


async def test_one_snapshot_of_a_gateway_with_a_token(tmp_path: Path) -> None:
    """Its token in the option or in the variable; without it, and where nothing answers, one line says what to do."""
    (tmp_path / "token").write_text("sesame")

    async def said(*arguments: str) -> tuple[int, str]:
        result = await asyncio.to_thread(asked, *arguments)
        return result.exit_code, result.output

    admin = {"tokenFile": str(tmp_path / "token")}
    async with (
        scripted_engine(decode_script) as engine,
        running_gateway(tmp_path, {"d0": engine.address}, admin=admin) as gateway,
    ):
        where = ("--gateway", gateway.admin_url)
        status, output = await said(*where, "--token", "sesame")
        assert (status, "d0" in output) == (0, True), output
        assert await said(*where) == (
            2,
            f"error: --token: {gateway.admin_url} asks for a token: --token, or BALLAST_ADMIN_TOKEN\n",
        )
        assert await said(*where, "--token", "wrong") == (
            2,
            f"error: --token: {gateway.admin_url} refuses this token\n",
        )
        assert (await said(*where, "--token", "señor"))[1].startswith("error: --token: may hold ASCII")
        status, output = await said("--gateway", gateway.url)
        assert (status, "error: --gateway:" in output, "404" in output) == (2, True, True)


@pytest.mark.parametrize("url", ["127.0.0.1:1", "http://127.0.0.1:1", "http://[", "ftp://host"])
def test_an_address_that_cannot_be_asked_is_one_line(url: str) -> None:
    result = asked("--gateway", url)
    assert result.exit_code == 2
    assert result.output.startswith("error: --gateway: ")
    assert result.output.count("\n") == 1


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n"], ids=["head", "body"])
async def test_a_server_that_trickles_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch, head: bytes) -> None:
    """Neither its head nor its body, although the next byte always comes."""
    monkeypatch.setattr("ballast_cli.top._WHOLE_S", 0.5)
    slowly = (head, *(bytes([each]) for each in b"HTTP/1.1 200 OK\r\nx: " + b"y" * 500))
    async with canned_server(*slowly, pause_s=0.1) as address:
        result = await asyncio.wait_for(asyncio.to_thread(asked, "--gateway", f"http://{address}"), 30)
    assert result.exit_code == 2
    assert result.output == f"error: --gateway: http://{address} has not answered to the end within 0.5 s\n"


def test_the_head_says_whose_sums_these_are() -> None:
    about = About(
        whose="2 of 3 gateways", models="tiny", policies={}, name="gw-0", view=True, peers=2, agents=4, together=2
    )
    assert shown(frame(about=about))[:3] == ["2 of 3 gateways tiny", "", "asked by gw-0, which hears 4 agents"]


@pytest.mark.parametrize(
    "arguments", [("--interval", "0"), ("--interval", "nan"), ("--only", "--worker", "1")], ids=" ".join
)
def test_options_that_cannot_be_are_refused(arguments: Sequence[str]) -> None:
    assert asked(*arguments).exit_code == 2


async def test_a_worker_of_a_gateway_without_workers_is_refused(tmp_path: Path) -> None:
    """What the gateway has done is not what a worker of that number has done."""
    async with (
        scripted_engine(decode_script) as engine,
        running_gateway(tmp_path, {"f0": engine.address}) as gateway,
    ):
        command = ["top", "--once", "--gateway", gateway.admin_url, "--worker", "3"]
        result = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert result.exit_code == 2
    assert "answers 404: this gateway has no workers" in " ".join(result.output.split())
