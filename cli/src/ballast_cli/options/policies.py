"""Which policies a run compares."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ballast_core.model import Binding
    from ballast_sim.simulation.policies.choice import PolicyChoice


COMPARED = "round-robin/round-robin,least-requests/least-requests,ballast"
"""Where nothing is named: what most routers do, the usual better choice, and our default."""


@dataclass(frozen=True, kw_only=True)
class Policies:
    """Names, a manifest, and the parts that all of them get."""

    policy: Annotated[
        str | None,
        typer.Option(help=f"Policies to compare: NAME places decodes, PREFILL/DECODE names both. Default: {COMPARED}."),
    ] = None
    policy_module: Annotated[
        list[str] | None,
        typer.Option(help="A placement of your own as package.module:Class, for --policy by its type; repeatable."),
    ] = None
    policy_file: Annotated[Path | None, typer.Option(help="Compare the SchedulingPolicies of a manifest.")] = None
    queue: Annotated[
        str | None, typer.Option(help="Queue order of all policies: TYPE, TYPE:name=value,... or none.")
    ] = None
    admission: Annotated[str | None, typer.Option(help="Admission of all policies, in the same way.")] = None
    partition: Annotated[str | None, typer.Option(help="Partition of all policies, in the same way.")] = None
    rescheduling: Annotated[str | None, typer.Option(help="Rescheduling of all policies, in the same way.")] = None
    binding: Annotated[
        str, typer.Option(help="When the decode endpoint is fixed: at arrival (early), at hand-off (late), or both.")
    ] = "late"

    def choices(self) -> "tuple[PolicyChoice, ...]":
        """In the order of the rows. Raises SettingError."""
        from ballast_sim.settings import SettingError
        from ballast_sim.simulation.policies.choice import parse_policies, read_policy_file, with_parts
        from ballast_sim.simulation.policies.own import load_placement

        own = {placement.type: placement for placement in map(load_placement, self.policy_module or ())}
        named = parse_policies(self.policy, own) if self.policy is not None else ()
        written = read_policy_file(self.policy_file) if self.policy_file else ()
        names = [choice.name for choice in (*named, *written)]
        for name in names:
            if names.count(name) > 1:
                raise SettingError(("policy", "policy_file"), f"{name!r} is named twice; its rows would look alike")
        if not names:
            named = parse_policies(",".join((*(f"{name}/{name}" for name in own), COMPARED)), own)
        parts = {part: getattr(self, part) for part in ("queue", "admission", "partition", "rescheduling")}
        return with_parts((*named, *written), parts)

    def bindings(self) -> "tuple[Binding, ...]":
        """Raises SettingError."""
        from ballast_core.model import Binding
        from ballast_sim.settings import SettingError

        if self.binding == "both":
            return (Binding.EARLY, Binding.LATE)
        if self.binding not in set(Binding):
            raise SettingError("binding", f"must be early, late or both, not {self.binding!r}")
        return (Binding(self.binding),)
