"""`ballast engine-sim serve`: a vLLM-compatible server without a GPU."""

import sys

import typer

app = typer.Typer(help="A vLLM-compatible server whose timing comes from the engine model.", no_args_is_help=True)

_HELP = """Serve MODEL as `vllm serve` would, with the timing of a hardware profile.

Takes vLLM's flags (--port, --served-model-name, --max-num-seqs, --kv-transfer-config, ...); those that change nothing
here are named in a warning. Its own: --profile NAME (or BALLAST_PROFILE, a name or the JSON of a HardwareProfile's
spec), --profiles FILE (HardwareProfile manifests of your own that --profile then names; repeatable), --lora-load-s S
(seconds more of a step that brings in a LoRA adapter), --time-scale X (or BALLAST_TIME_SCALE; 2 is twice as slow),
--misbehave JSON (a fault to have from the start; repeatable) and --misbehave-api PORT (a route that switches faults
while it serves, on 127.0.0.1 unless HOST:PORT says otherwise)."""


@app.command(
    "serve",
    help=_HELP,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def serve_command(context: typer.Context, model: str = typer.Argument(help="Model name, as for `vllm serve`.")) -> None:
    """Serve until SIGTERM."""
    import asyncio
    import logging

    import uvloop

    from ballast_sim.engine_sim.options import OptionError, parse_options
    from ballast_sim.engine_sim.run import serve
    from ballast_sim.engine_sim.server import EngineSimServer, ListenError

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    try:
        options, warnings = parse_options([model, *context.args])
    except OptionError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2) from None
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)

    def announce(server: EngineSimServer) -> None:
        typer.echo(f"engine-sim: {options.names[0]} on http://{options.host}:{server.port}", err=True)
        if options.misbehave_api is not None:
            from ballast_sim.engine_sim.misbehave.control import PATH

            where = f"http://{options.misbehave_api[0]}:{server.control_port}{PATH}"
            typer.echo(f"engine-sim: misbehaves at the command of {where}", err=True)

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(options, announce))
    except ListenError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
