"""`ballast gateway`: the gateway process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ballast_api.gateway_settings import GatewaySettings


def gateway(
    *,
    config: Annotated[
        list[Path],
        typer.Option(
            help="Settings file (docs/reference/gateway-settings.md). Several serve several gateways in one process."
        ),
    ],
    endpoints: Annotated[
        Path | None, typer.Option(help="Endpoints file; replaces `discovery` in the settings.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to bind; overrides listeners.host.")] = None,
    port: Annotated[int | None, typer.Option(help="Port of the OpenAI API; overrides listeners.proxy.")] = None,
    admin_port: Annotated[int | None, typer.Option(help="Port of the admin API; overrides listeners.admin.")] = None,
    face: Annotated[str | None, typer.Option(help="Proxy, Picker or Both; overrides face.")] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that share the ports of both faces; overrides workers.")
    ] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error; overrides logLevel.")] = None,
) -> None:
    """Route OpenAI requests to prefill and decode engines (proxy face), or choose endpoints for Envoy (picker face).

    Ends on SIGTERM or SIGINT when running requests are done. Port 0 takes any free port, which the log names.
    """
    from ballast_api.errors import InvalidInput
    from ballast_gateway import logs, main
    from ballast_gateway.settings_file import SettingsFile

    overrides = {
        "face": face,
        "logLevel": log_level,
        "workers": workers,
        "listeners": {"host": host, "proxy": port, "admin": admin_port},
        "discovery": None if endpoints is None else {"file": str(endpoints)},
    }
    for option, value in {"--endpoints": endpoints, "--port": port, "--admin-port": admin_port}.items():
        if len(config) > 1 and value is not None:
            _exit(f"{option}: several gateways cannot share it; set it in each of the files")
    if len(set(map(str, config))) < len(config):
        _exit("--config: names one file twice")
    files = {str(file): SettingsFile(file, lambda settings: _with_overrides(settings, overrides)) for file in config}
    try:
        settings = {name: file.load() for name, file in files.items()}
    except InvalidInput as error:
        _exit(str(error))
    for file, each in settings.items():
        if len(settings) > 1 and each.workers > 1:
            _exit(f"{file}: workers: several gateways in one process have one each; give this one a process of its own")
    logs.configure(main.most_talkative(each.log_level for each in settings.values()))
    try:
        if len(settings) == 1 and (only := next(iter(settings.values()))).workers > 1:
            from ballast_gateway.ports import check_ports
            from ballast_gateway.workers import supervisor

            check_ports(settings)
            status = supervisor.run(only, next(iter(files.values())))
        else:
            status = main.run(settings, files)
    except (InvalidInput, OSError) as error:
        _exit(str(error))
    raise typer.Exit(status)


def _with_overrides(settings: GatewaySettings, overrides: dict[str, Any]) -> GatewaySettings:
    """The settings, overridden by the command line. Raises `InvalidInput`."""
    from pydantic import ValidationError

    from ballast_api.errors import InvalidInput, explain
    from ballast_api.gateway_settings import GatewaySettings

    data = settings.dump()
    for key, value in overrides.items():
        if key == "discovery" and value is not None:
            data[key] = value
        elif isinstance(value, dict):
            data[key] |= {name: item for name, item in value.items() if item is not None}
        elif value is not None:
            data[key] = value
    try:
        return GatewaySettings.parse(data)
    except ValidationError as error:
        raise InvalidInput("command line", explain(error)) from error


def _exit(problem: str) -> None:
    sys.stderr.write(f"{problem}\n")
    raise typer.Exit(2)
