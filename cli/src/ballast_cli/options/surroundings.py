"""What surrounds the engines of a simulated fleet: the options of `FleetSettings`, with its defaults."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ballast_cli.options.declaring import Sets

if TYPE_CHECKING:
    from ballast_sim.simulation.inputs.failures import Failure
    from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
    from ballast_sim.simulation.inputs.shapes import Machine


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What makes a `FleetSettings`."""

    max_tokens: Annotated[
        str,
        typer.Option(
            help="The max_tokens that policies see: as in the trace, none, a number, or exact (each output's length)."
        ),
    ] = "trace"
    gateways: Annotated[int, typer.Option(help="Gateway replicas, each with its own view.")] = 1
    scrape_interval: Annotated[
        float, typer.Option(help="Seconds between two scrapes of an endpoint."), Sets("scrape_interval_s")
    ] = 0.2
    scrape_delay: Annotated[
        float, typer.Option(help="Age of an observation when it arrives, in seconds."), Sets("scrape_delay_s")
    ] = 0.005
    scrape_loss: Annotated[
        float, typer.Option(help="Share of the scrapes that get lost, 0 to 1."), Sets("scrape_loss_ratio")
    ] = 0.0
    physics: Annotated[
        str,
        typer.Option(help="How engines work: vllm, or as in a paper: sibyl-printed, sibyl-held, ares-linear."),
    ] = "vllm"
    engine_policy: Annotated[
        str, typer.Option(help="vLLM's --scheduling-policy: fcfs, or priority, for queue orders with engine_priority.")
    ] = "fcfs"
    lengths: Annotated[
        str, typer.Option(help="Predicted output lengths: none, oracle, ares, noisy:100 (mean error), noisy:60%.")
    ] = "none"
    local_batching: Annotated[
        str, typer.Option(help="Prompt tokens in a step: default, chunk:512, or slo:0.1 (seconds between tokens).")
    ] = "default"
    cut_tokens: Annotated[
        str, typer.Option(help="Tokens before a cut in the output: streams (connector plug-in), at-cut (stock vLLM).")
    ] = "streams"
    kv_transfer: Annotated[
        str, typer.Option(help="KV between endpoints: whole after the source's end, or chunked while it computes.")
    ] = "whole"
    engine_scheduler: Annotated[
        str,
        typer.Option(
            help="Order inside engines: fcfs, sarathi:512, edf, sjf, srpt, las, uniboost:gamma=1,k=256,delta=0.1."
        ),
    ] = "fcfs"
    failures: Annotated[
        Path | None,
        typer.Option(help="Script of failures (JSON or YAML): crashes, drains, slow endpoints, lost scrapes."),
    ] = None

    def settings(self, machines: "tuple[Machine, ...]") -> "FleetSettings":
        """Raises SettingError."""
        from ballast_sim.engine.batching import LocalBatching
        from ballast_sim.simulation.inputs.engine_scheduler import parse_scheduler
        from ballast_sim.simulation.inputs.fleet_settings import FleetSettings
        from ballast_sim.simulation.inputs.length_hints import LengthHints

        return FleetSettings(
            scrape_interval_s=self.scrape_interval,
            scrape_delay_s=self.scrape_delay,
            scrape_loss_ratio=self.scrape_loss,
            gateways=self.gateways,
            known_limits=self.max_tokens == "exact",
            max_tokens=self._max_tokens(),
            recorded_limits=self.max_tokens == "trace",
            physics=self.physics,
            engine_policy=self.engine_policy,  # type: ignore[arg-type]  # checked there
            failures=self._failures(machines),
            length_hints=LengthHints.parse(self.lengths),
            local_batching=LocalBatching.parse(self.local_batching),
            cut_tokens=self.cut_tokens,  # type: ignore[arg-type]
            kv_transfer=self.kv_transfer,  # type: ignore[arg-type]
            engine_scheduler=parse_scheduler(self.engine_scheduler),
        )

    def _max_tokens(self) -> int | None:
        from ballast_sim.settings import SettingError

        if self.max_tokens in ("trace", "none", "exact"):
            return None
        if not self.max_tokens.isdecimal() or int(self.max_tokens) < 1:
            raise SettingError(
                "max_tokens", f"must be trace, none, exact or a number of tokens above 0, not {self.max_tokens!r}"
            )
        return int(self.max_tokens)

    def _failures(self, machines: "tuple[Machine, ...]") -> "tuple[Failure, ...]":
        from ballast_sim.settings import SettingError
        from ballast_sim.simulation.inputs.failures import FailureScriptError, read_failures

        if self.failures is None:
            return ()
        try:
            return read_failures(self.failures, [machine.endpoint.id for machine in machines])
        except FailureScriptError as error:
            raise SettingError("failures", str(error)) from None
