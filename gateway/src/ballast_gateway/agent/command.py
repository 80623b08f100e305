"""`ballast agent`: its command line, and its process until a signal.

Read here with the standard library alone: what the other commands use for theirs would take a third of its memory.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import uvloop

from ballast_gateway import logs
from ballast_gateway.agent.app import Agent
from ballast_gateway.agent.settings import MEBIBYTE, MOST_TEXT_MIB, AgentSettings, BadSetting

_log = logging.getLogger(__name__)
_LEVELS = ("debug", "info", "warning", "error")


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Run an agent until SIGTERM or SIGINT; returns the exit status, 2 for a setting that is refused."""
    try:
        settings, level = read(arguments, environment)
        logs.configure(level)
        return uvloop.run(_run(settings))
    except (BadSetting, OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 2


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[AgentSettings, str]:
    """Settings and the log's level. Flags win over the environment. Raises `BadSetting`; exits for `--help`."""
    given = parser(environment).parse_args(arguments)
    if not given.token_file:
        raise BadSetting("--token-file: is missing; give the file with the fleet's token (or BALLAST_TOKEN_FILE)")
    address = given.address
    if not address:
        pod_ip = environment.get("POD_IP", "")
        if not pod_ip:
            raise BadSetting("--address: is missing; give POD_IP:PORT, or set POD_IP by the downward API")
        address = f"[{pod_ip}]:{given.port}" if ":" in pod_ip else f"{pod_ip}:{given.port}"
    settings = AgentSettings(
        token_file=Path(given.token_file),
        name=given.name,
        address=address,
        engine=given.engine,
        host=given.host,
        port=given.port,
        pod_api_host=given.host,
        pod_api_port=given.pod_api_port,
        trust_prefiller_header=given.trust_prefiller_header,
        rescue=not given.no_rescue,
        drain_timeout_s=given.drain_timeout,
        prefill_timeout_s=given.prefill_timeout,
        idle_timeout_s=given.idle_timeout,
        max_body_bytes=given.max_body_mib * MEBIBYTE,
        max_text_body_bytes=min(MOST_TEXT_MIB, given.max_body_mib) * MEBIBYTE,
        trace_endpoint=given.trace_endpoint,
    )
    return settings, given.log_level


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override] # argparse says that it never returns
        raise BadSetting(message)


def parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """The flags."""
    flags = _Parser(
        prog="ballast agent",
        description="Hold the streams of planned requests in an engine's pod, and pass on all others (docs/agent.md).",
        allow_abbrev=False,
    )

    def flag(name: str, variable: str, default: str, **more: object) -> None:
        says = f"{more.pop('help')} [{variable}; default: {default or 'none'}]"
        flags.add_argument(name, default=environment.get(variable, default), help=says, **more)  # type: ignore[arg-type]

    flag("--host", "BALLAST_HOST", "0.0.0.0", help="address to bind")
    flag("--port", "BALLAST_PORT", "8000", type=_whole, help="port of the OpenAI API, where the engine's was")
    flag("--engine", "BALLAST_ENGINE", "127.0.0.1:8200", help="the engine, on the pod's loopback")
    flag("--pod-api-port", "BALLAST_POD_API_PORT", "9004", type=_whole, help="port of the pod API")
    flag("--token-file", "BALLAST_TOKEN_FILE", "", help="file with the fleet's tokens, one a line")
    flag("--name", "POD_NAME", "", help="the pod's name")
    flag("--address", "BALLAST_ADDRESS", "", help="POD_IP:PORT where others reach this agent; else from POD_IP")
    flag("--drain-timeout", "BALLAST_DRAIN_TIMEOUT", "300", type=_seconds, help="seconds for streams after SIGTERM")
    flag("--prefill-timeout", "BALLAST_PREFILL_TIMEOUT", "300", type=_seconds, help="seconds for a prefill")
    flag("--idle-timeout", "BALLAST_IDLE_TIMEOUT", "300", type=_seconds, help="longest silence of a stream, in seconds")
    flag("--max-body-mib", "BALLAST_MAX_BODY_MIB", "16", type=_whole, help="largest body of a held request")
    flag("--trace-endpoint", "BALLAST_TRACE_ENDPOINT", "", help="base URL of an OTLP/HTTP receiver, for traces")
    flag("--log-level", "BALLAST_LOG_LEVEL", "info", choices=_LEVELS, help="debug, info, warning or error")
    flags.add_argument(
        "--trust-prefiller-header",
        action="store_true",
        default=_is_on(environment, "BALLAST_TRUST_PREFILLER_HEADER"),
        help="follow x-prefiller-host-port of stock llm-d pickers [BALLAST_TRUST_PREFILLER_HEADER]",
    )
    flags.add_argument(
        "--no-rescue",
        action="store_true",
        default=_is_on(environment, "BALLAST_NO_RESCUE"),
        help="leave begun streams with their engines when these fail [BALLAST_NO_RESCUE]",
    )
    return flags


def _is_on(environment: Mapping[str, str], variable: str) -> bool:
    value = environment.get(variable, "").lower()
    if value not in {"", "0", "false", "1", "true"}:
        raise BadSetting(f"{variable}: must be true or false, not {value!r}")
    return value in {"1", "true"}


def _whole(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be seconds, not {text!r}") from None


async def _run(settings: AgentSettings) -> int:
    loop = asyncio.get_running_loop()
    first, second = asyncio.Event(), asyncio.Event()

    def signalled() -> None:
        (second if first.is_set() else first).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled)
    agent = Agent(settings)
    try:
        await agent.start()
        gc.collect()
        gc.freeze()
        await first.wait()
        _log.info("draining", extra={"event": "draining"})
        drain, cut = asyncio.create_task(agent.drain()), asyncio.create_task(second.wait())
        await asyncio.wait({drain, cut}, return_when=asyncio.FIRST_COMPLETED)
        if not (drain.done() and drain.result()):
            _log.warning("requests were cut off at the end of the drain", extra={"event": "cut-off"})
        for task in (drain, cut):
            task.cancel()
        return 0
    finally:
        await agent.close()
