"""The endpoints of a fleet and the profiles under them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ballast_sim.simulation.inputs.shapes import Machine


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What the parts of --endpoints stand for."""

    profile: Annotated[str | None, typer.Option(help="Profile of --endpoints parts that name none.")] = None
    profiles: Annotated[
        list[Path] | None,
        typer.Option(help="HardwareProfile manifests of your own, for --endpoints; repeatable."),
    ] = None

    def machines(self, endpoints: str) -> "tuple[Machine, ...]":
        """The machines of a shape. Raises ShapeError and ProfileFileError."""
        from ballast_sim.own_profiles import read_profiles
        from ballast_sim.simulation.inputs.shapes import parse_shape

        return parse_shape(endpoints, self.profile, read_profiles(self.profiles or ()))
