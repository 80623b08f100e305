"""`ballast traffic`: what gateways have recorded of the last minutes, as one trace."""

import secrets
from typing import Annotated

import typer


def traffic_command(
    gateway: Annotated[
        list[str],
        typer.Option(help="Address of a gateway's admin API, such as http://127.0.0.1:9090; may be repeated."),
    ],
    minutes: Annotated[float | None, typer.Option(help="Of the last minutes. Default: all that is kept.")] = None,
    output: Annotated[str, typer.Option(help="Write the trace to a file, or - for stdout.")] = "-",
) -> None:
    """Merge the recorded traffic of all gateways of a fleet into one trace, which `ballast simulate --trace` reads.

    Equal beginnings of prompts have equal block numbers, whichever gateways the requests came to. A gateway that asks
    for a token gets that of BALLAST_ADMIN_TOKEN. docs/gateway/admin.md, "Recorded traffic", has the fields.

    Exit status: 0, or 2 for input that cannot work, or a gateway that does not answer.
    """
    from ballast_api.recorded_traffic import TRAFFIC, merged, rows_of
    from ballast_cli.options.trace_files import fetched, is_url
    from ballast_cli.output import check_outputs, write_output

    if minutes is not None and not 0 < minutes <= 1e6:
        raise typer.BadParameter(f"must be above 0 and at most 1e6, not {minutes:g}", param_hint="--minutes")
    try:
        if wrong := [url for url in gateway if not is_url(url)]:
            raise ValueError(f"--gateway: {wrong[0]!r} is no address such as http://127.0.0.1:9090")
        check_outputs({"--output": output}, [])
        query = f"names={secrets.token_hex(16)}" + ("" if minutes is None else f"&minutes={minutes:g}")
        rows = []
        for url in gateway:
            try:
                answer = fetched(f"{url.rstrip('/')}{TRAFFIC}?{query}")
            except ValueError as error:  # its address has a secret, which is no text for a terminal
                raise ValueError(f"--gateway: {url}: {error}; is this its admin port?") from None
            try:
                rows += rows_of(answer)
            except ValueError as error:
                raise ValueError(f"--gateway: {url} answers something else than its traffic ({error})") from None
        text = b"".join(merged(rows)).decode()
        write_output("--output", output, text)
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
