"""`ballast top`: the fleet as its gateways see it, in the terminal; the same snapshot as the live page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import httpx

    from ballast_gateway.live.rows import Frame

_WAIT_S = 5.0
"""For the gateway's next bytes."""
_WHOLE_S = 30.0
"""For a whole snapshot, however it trickles in."""


def top_command(
    gateway: Annotated[str, typer.Option(help="Address of a gateway's admin API.")] = "http://127.0.0.1:9090",
    token: Annotated[
        str | None, typer.Option(envvar="BALLAST_ADMIN_TOKEN", help="The admin token, where the gateway asks for one.")
    ] = None,
    worker: Annotated[
        int | None, typer.Option(help="Of a gateway with workers: what this one has done. Default: all together.")
    ] = None,
    only: Annotated[
        bool, typer.Option("--only", help="What this gateway has done itself. Default: all gateways of the fleet.")
    ] = False,
    *,
    once: Annotated[bool, typer.Option("--once", help="Print one snapshot and end, as pipes and scripts do.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds between two snapshots.")] = 1.0,
) -> None:
    """Show endpoints with load and predicted times, requests in flight, moves and SLO attainment as they are now.

    The gateway's admin port shows the same in a browser, and why each request went where it did: docs/live.md.

    Exit status: 0, or 2 for a gateway that does not answer or refuses the token.
    """
    from ballast_cli.top_view import narrow_console, screen

    if not 0.1 <= interval <= 60:
        raise typer.BadParameter(f"must be from 0.1 to 60, not {interval:g}", param_hint="--interval")
    if only and worker is not None:
        raise typer.BadParameter("is what --worker asks for already; give one of the two", param_hint="--only")
    asked = {"only": "1"} if only else {} if worker is None else {"worker": str(worker)}
    try:
        frame = _asked(gateway, token, asked)
        console = narrow_console()
        if once or not console.is_terminal or console.is_dumb_terminal:
            console.print(screen(frame, None, None))
            return
        _watch(gateway, token, asked, interval, frame)
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None


def _watch(gateway: str, token: str | None, asked: dict[str, str], interval_s: float, frame: Frame) -> None:
    import time

    from rich.live import Live

    from ballast_cli.top_view import narrow_console, screen

    console, before = narrow_console(), frame
    try:
        with Live(screen(frame, None, console.height), console=console, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(interval_s)
                before, frame = frame, _asked(gateway, token, asked)
                live.update(screen(frame, before, console.height), refresh=True)
    except KeyboardInterrupt:
        return


def _asked(gateway: str, token: str | None, asked: dict[str, str]) -> Frame:
    """One snapshot. Raises `ValueError` in plain words."""
    import asyncio

    import httpx
    import msgspec

    from ballast_gateway.live.rows import LIVE, Frame

    url = f"{gateway.rstrip('/')}{LIVE}"
    headers = {"authorization": f"Bearer {token}"} if token else {}
    try:
        answer = asyncio.run(_got(url, headers, asked))
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise ValueError(f"--gateway: {gateway!r} is no address such as http://127.0.0.1:9090 ({error})") from None
    except UnicodeEncodeError:
        raise ValueError("--token: may hold ASCII characters only") from None
    except TimeoutError:
        raise ValueError(f"--gateway: {gateway} has not answered to the end within {_WHOLE_S:g} s") from None
    except httpx.HTTPError as error:
        reason = str(error) or type(error).__name__
        raise ValueError(f"--gateway: {gateway} does not answer ({reason}); is this its admin port?") from None
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        given = "refuses this token" if token else "asks for a token: --token, or BALLAST_ADMIN_TOKEN"
        raise ValueError(f"--token: {gateway} {given}")
    if answer.status_code != httpx.codes.OK:
        raise ValueError(f"--gateway: {gateway} answers {answer.status_code}: {_detail(answer)}")
    try:
        return msgspec.json.decode(answer.content, type=Frame)
    except msgspec.DecodeError as error:
        raise ValueError(f"--gateway: {gateway} answers something else than a snapshot ({error})") from None


async def _got(url: str, headers: dict[str, str], asked: dict[str, str]) -> httpx.Response:
    """Raises `TimeoutError` for an answer that does not end, and httpx's errors."""
    import asyncio

    import httpx

    async with asyncio.timeout(_WHOLE_S), httpx.AsyncClient(timeout=_WAIT_S, trust_env=False) as client:
        return await client.get(url, headers=headers, params=asked)


def _detail(answer: object) -> str:
    import httpx

    assert isinstance(answer, httpx.Response)
    try:
        said = answer.json()
    except ValueError:
        said = None
    return str(said["detail"]) if isinstance(said, dict) and "detail" in said else answer.reason_phrase
