"""Placements that no gateway can run, because they know every output's length; by type name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ballast_core.policies.placement.protocol import Placement
from ballast_sim.simulation.policies.oracle import Oracle

SIMULATOR_ONLY: Mapping[str, type[Placement]] = MappingProxyType({Oracle.type: Oracle})
