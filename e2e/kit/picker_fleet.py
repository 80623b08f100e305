"""The quickstart behind the picker face: three gateways, an agent in each decode pod; and how to hurt any of them."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kit.cluster import Cluster
from kit.commands import Kubectl
from kit.quickstart import NAME, engine_pods, is_ready, objects
from kit.waiting import wait_until

PICKERS, ENGINES = 3, 6
TOKEN = f"{NAME}-gateway-token"
POD_API_PORT = 9004
_PROGRAMS = {"gateway": b"gateway", "agent": b"agent", "engine": b"engine-sim"}
"""Container to the word of its command line that no other one has."""


def fleet_objects(image: str, gateway: str, model: str) -> list[dict[str, Any]]:
    """The quickstart with the picker face, behind a Gateway of its namespace; `model` is served, too."""
    found = objects(image, 1.0)
    (pool,) = [each for each in found if each["kind"] == "ServingPool"]
    pool["spec"]["gateway"] |= {"face": "Picker", "replicas": PICKERS, "parentRefs": [{"name": gateway}]}
    pool["spec"]["model"]["servedNames"] = [pool["spec"]["model"]["name"], model]
    return found


def gateway_pods(kubectl: Kubectl) -> list[dict[str, Any]]:
    """The pickers' pods."""
    return kubectl.items("pods", f"serving.ballast.dev/serving-pool={NAME},app.kubernetes.io/component=gateway")


def wait_whole(kubectl: Kubectl, timeout_s: float) -> None:
    """Until every pod of the fleet is ready."""
    wait_until(
        lambda: (
            len(pods := [*gateway_pods(kubectl), *engine_pods(kubectl)]) == PICKERS + 6 and all(map(is_ready, pods))
        ),
        timeout_s,
        "every pod of the fleet is ready",
        poll_s=1.0,
    )


def tokens(kubectl: Kubectl, secret: str = TOKEN) -> list[str]:
    """The pod API's, the one that signs first."""
    return base64.b64decode(kubectl.get("secret", secret)["data"]["token"]).decode().split()


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """An answer of the pod API; status 0 without one."""

    status: int
    body: Mapping[str, Any]


def pod_api(pod: Mapping[str, Any], target: str, token: str | None, body: Mapping[str, Any] | None = None) -> Said:
    """Ask a pod's agent or gateway as people do, with a bearer token. From within the cluster's network only."""
    url = f"http://{pod['status']['podIP']}:{POD_API_PORT}{target}"
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=10) as answer:
            text = answer.read()
            return Said(answer.status, json.loads(text) if text else {})
    except urllib.error.HTTPError as error:
        text = error.read()
        return Said(error.code, json.loads(text) if text else {})
    except OSError as error:
        return Said(0, {"error": {"message": str(error)}})


def held(pod: Mapping[str, Any], token: str) -> list[dict[str, Any]]:
    """The requests that a pod's agent holds."""
    return list(pod_api(pod, "/ballast/v1/state", token).body.get("requests", []))


def kill(cluster: Cluster, pod: str, container: str) -> bool:
    """SIGKILL to a container's process, as the kernel does when memory runs out. False if it does not run."""
    assert cluster.is_testbed, "its processes are this machine's in the test bed only"
    found = [pid for pid in _processes(pod) if _PROGRAMS[container] in _words(pid)]
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


def _processes(pod: str) -> list[int]:
    folder = f"/ballast-{os.environ['BALLAST_TESTBED_NAME']}/"
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            here = f"HOSTNAME={pod}".encode() in (process / "environ").read_bytes().split(b"\0")
            if here and folder in (process / "cgroup").read_text():
                found.append(int(process.name))
    return found


def _words(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []
