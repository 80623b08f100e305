"""Carries a failure script out on a fleet's clock."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ballast_sim.simulation.gateways.gateways import Gateways
from ballast_sim.simulation.inputs.failures import Failure, FailureKind
from ballast_sim.simulation.kernel import Kernel
from ballast_sim.simulation.world.world import World


def schedule(failures: Iterable[Failure], kernel: Kernel, world: World, gateways: Gateways) -> None:
    """Schedule the begin and the end of every failure. Gateways notice failures by scrapes, a drain by discovery.

    Of two that meet at one time the first ends before the second begins, in whatever order they are written.
    """
    for failure in sorted(failures, key=lambda one: one.at_s):
        endpoint = failure.endpoint
        match failure.kind:
            case FailureKind.CRASH:
                kernel.at(failure.at_s, partial(world.crash, endpoint))
                kernel.at(failure.ends_s, partial(world.restart, endpoint))
            case FailureKind.SLOW:
                kernel.at(failure.at_s, partial(world.slow, endpoint, failure.factor))
                kernel.at(failure.ends_s, partial(world.slow, endpoint, 1.0))
            case FailureKind.LOST_SCRAPES:
                kernel.at(failure.at_s, partial(gateways.mute, endpoint))
                kernel.at(failure.ends_s, partial(gateways.unmute, endpoint))
            case FailureKind.DRAIN:
                kernel.at(failure.at_s, partial(gateways.drain, endpoint))
