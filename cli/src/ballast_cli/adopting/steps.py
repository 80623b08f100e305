"""The road from existing Deployments to a ServingPool beside them, and back. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from ballast_api import names
from ballast_cli.adopting.found import Manifest, of_kind


def steps_to_switch(manifest: Manifest, objects: Sequence[Manifest]) -> Iterator[str]:
    """Sentences, in order."""
    name = manifest["metadata"]["name"]
    gateway = names.gateway_object_name(name)
    picker = (manifest["spec"].get("gateway") or {}).get("face") == "Picker"
    backend = (
        f"{{group: inference.networking.k8s.io, kind: InferencePool, name: {gateway}}}"
        if picker
        else f"{{name: {gateway}, port: 80}}"
    )
    hardware = sorted({each["hardware"] for each in manifest["spec"]["pools"]})
    yield f"Create the HardwareProfiles {', '.join(hardware)} if they are not there, then apply this ServingPool."
    wait = f"kubectl wait --for=condition=Available servingpool/{name} --timeout=1h"
    yield f"Both fleets need GPUs at once; where too few are free, begin with fewer `replicas`. Wait: {wait}"
    routes = of_kind(objects, "HTTPRoute")
    if not routes:
        yield f"Send clients to Service {gateway}, port 80, some at first. Back: send them to the old address."
    for route in routes:
        called = f"HTTPRoute {route['metadata']['name']}"
        yield (
            f"In {called} add the backendRef {backend} with `weight: 10` beside the old one with `weight: 90`; "
            "then 50 and 50, then 100 and 0. Look at errors and latency between."
        )
        yield f"Back, at any time: weight 0 for {gateway}, 100 for the old one; nothing old was changed."
    parents = [each for route in routes for each in (route.get("spec") or {}).get("parentRefs") or ()]
    if parents:
        text = json.dumps(parents)
        yield (
            f"When all traffic is on the new one: set spec.gateway.parentRefs to {text}, delete the old HTTPRoute, "
            "and then the old Deployments."
        )
    else:
        yield "When all traffic is on the new one, delete the old Deployments."
