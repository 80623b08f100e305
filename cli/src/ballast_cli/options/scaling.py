"""A scaling policy in the loop of `ballast simulate`: the options of `Autoscaling`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from ballast_cli.options.declaring import Sets, refuse_given

if TYPE_CHECKING:
    from ballast_sim.simulation.autoscaling.settings import Autoscaling
    from ballast_sim.simulation.inputs.shapes import Machine


@dataclass(frozen=True, kw_only=True)
class Scales:
    """What makes an `Autoscaling`."""

    autoscale: Annotated[
        str | None,
        typer.Option(help="Scaling policy in the loop: TYPE or TYPE:name=value,... of `ballast policies`."),
    ] = None
    min_replicas: Annotated[int, typer.Option(help="Instances of each pool at least."), Sets("least")] = 1
    max_replicas: Annotated[
        int | None, typer.Option(help="Instances of each pool at most. Default: the fleet's GPUs."), Sets("most")
    ] = None
    min_ratio: Annotated[float | None, typer.Option(help="Prefill instances per decode instance, at least.")] = None
    max_ratio: Annotated[float | None, typer.Option(help="The same, at most.")] = None
    gpu_budget: Annotated[int | None, typer.Option(help="GPUs of all instances. Default: the fleet's.")] = None
    attainment: Annotated[float, typer.Option(help="Share of requests that it is to have meet --slo.")] = 0.99
    startup: Annotated[
        float, typer.Option(help="Seconds from asking for an instance to its first request."), Sets("startup_s")
    ] = 60.0
    scale_interval: Annotated[
        float, typer.Option(help="Seconds between two rounds of the scaling policy."), Sets("interval_s")
    ] = 15.0
    scale_to_zero_after: Annotated[
        float | None,
        typer.Option(help="Seconds without a request after which all instances stop, with --min-replicas 0."),
        Sets("zero_after_s"),
    ] = None
    price: Annotated[str, typer.Option(help="Cost of an instance and hour: PROFILE=COST,...")] = ""
    rehearse: Annotated[
        bool, typer.Option(help="Try candidates on the last minutes of arrivals before a round decides.")
    ] = False

    def autoscaling(self, machines: "tuple[Machine, ...]") -> "Autoscaling | None":
        """None without a policy; `machines` are the fleet's at first. Raises SettingError."""
        from ballast_core.policies.scaling.protocol import Clamps
        from ballast_sim.simulation.autoscaling.settings import Autoscaling, Rehearsing, parse_prices, parse_scaling

        if self.autoscale is None:
            refuse_given(self, "a scaling policy; give --autoscale, too")
            return None
        profiles = {machine.profile.name: machine.profile for machine in machines}
        gpus = sum(machine.profile.gpus for machine in machines)
        return Autoscaling(
            policy=parse_scaling(self.autoscale),
            least=self.min_replicas,
            most=self.max_replicas,
            clamps=Clamps(
                min_ratio=self.min_ratio,
                max_ratio=self.max_ratio,
                gpu_budget=gpus if self.gpu_budget is None else self.gpu_budget,
            ),
            attainment=self.attainment,
            startup_s=self.startup,
            interval_s=self.scale_interval,
            zero_after_s=self.scale_to_zero_after,
            prices=parse_prices(self.price, profiles) if self.price else {},
            rehearsing=Rehearsing() if self.rehearse else None,
        )
