"""Says when endpoints of one role serve whole requests, as no endpoint of the other role is left for them.

A listener of the driver's effects. The log has one line when a role is gone from the fleet and one when it is back;
the metric also counts requests that had to be served so because every endpoint of the role had failed them.
"""

from __future__ import annotations

import logging
from typing import Final

from prometheus_client import CollectorRegistry

from ballast_api.metric_making import counter
from ballast_core.model import Role
from ballast_core.model.effects import Dispatch, Effect
from ballast_core.state.inventory import Inventory

_log = logging.getLogger(__name__)

_MISSING: Final = {Role.DECODE: Role.PREFILL, Role.PREFILL: Role.DECODE}
"""By the role of the endpoint that serves a request whole: the role that was missing."""


class StandIns:
    """Counts the dispatches to stand-ins, and logs changes of the fleet that cause them."""

    def __init__(self, inventory: Inventory, registry: CollectorRegistry) -> None:
        self._inventory = inventory
        requests = counter("ballast_gateway_fallback_dispatches_total", registry)
        self._counts = {role: requests.labels(str(missing)) for role, missing in _MISSING.items()}
        self._gone: frozenset[Role] = frozenset()
        """The roles whose absence has been logged."""

    def effect(self, effect: Effect, now_s: float) -> None:
        """An effect listener."""
        if type(effect) is not Dispatch:
            return
        if self._gone:
            self._look()
        if effect.prefill is None and effect.decode.role is not Role.FLEXIBLE:
            self._counts[effect.decode.role].inc()
            self._look()

    def _look(self) -> None:
        ready = self._inventory.ready_roles()
        gone = frozenset(role for role in _MISSING if role not in ready)
        for role in sorted(gone - self._gone):
            serves = _MISSING[role]
            _log.warning(
                f"no {role} endpoint is ready: {serves} endpoints serve whole requests",
                extra={"event": "role-gone", "role": str(role)},
            )
        for role in sorted(self._gone - gone):
            _log.info(f"{role} endpoints are ready again", extra={"event": "role-back", "role": str(role)})
        self._gone = gone
