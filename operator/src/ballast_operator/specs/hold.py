"""The hook by which an engine's pod waits until it is empty, whoever deletes it: `engine_hold`, run by the image's own
Python. Why it is done like this: docs/adr/0038-engines-hold-their-end.md."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

from ballast_api import names
from ballast_api.serving_pool import PoolSpec, ServingPoolSpec
from ballast_operator.kinds import Manifest
from ballast_operator.specs.agent_container import LOOPBACK
from ballast_operator.specs.meta import Owner
from ballast_operator.specs.services import gateway_admin_service_name

PROGRAM: Final = "engine_hold.py"
"""Key in the ConfigMap of the profiles: no HardwareProfile's name has an underscore."""
NOTICE_S: Final = 5
"""Seconds in which gateways learn that the pod ends, where the image has no Python, or nothing is to be emptied."""
_DIR: Final = "/etc/ballast-hold"
_VOLUME: Final = "hold"


def hold_s(spec: ServingPoolSpec) -> int:
    """Whole seconds that a pod has to become empty before its engine is told to end."""
    return max(math.ceil(spec.drain_deadline_s), NOTICE_S)


def hold_hook(owner: Owner, spec: ServingPoolSpec, pool: PoolSpec) -> Manifest:
    """`preStop` of the engine's container."""
    if not spec.drain_deadline_s:
        return {"sleep": {"seconds": NOTICE_S}}
    behind = (LOOPBACK, spec.engine.port_behind_agent)
    host, port = behind if spec.has_agent(pool) else ("$POD_IP", spec.engine.port)
    gateways = f"{gateway_admin_service_name(owner.name)}.{owner.namespace}:{names.PORT_ADMIN}"
    program = f"python3 -I -S {_DIR}/{PROGRAM} --host {host} --port {port} --gateways {gateways} --most {hold_s(spec)}"
    return {"exec": {"command": ["/bin/sh", "-c", f"{program} || sleep {NOTICE_S}"]}}


def hold_program() -> str:
    """Its text."""
    return (Path(__file__).parents[1] / PROGRAM).read_text()


def hold_volume(serving_pool: str) -> Manifest:
    """The program. A pod does not wait for it: without it the hook sleeps."""
    items = [{"key": PROGRAM, "path": PROGRAM}]
    source = {"name": names.profiles_name(serving_pool), "items": items, "optional": True}
    return {"name": _VOLUME, "configMap": source}


def hold_mount() -> Manifest:
    """Where the hook finds it."""
    return {"name": _VOLUME, "mountPath": _DIR, "readOnly": True}
