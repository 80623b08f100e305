"""Valid objects of every kind of the API as plain data, and edits of them by path."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from ballast_api.common import API_VERSION

Object = dict[str, Any]


class Absent:
    """Stands for a field that an edit removes."""

    def __repr__(self) -> str:
        return "(absent)"


ABSENT: Final = Absent()


def valid(kind: str) -> Object:
    """A valid object, as short as can be: what is left out is filled in by defaults."""
    metadata = {"name": "demo"}
    return _copy({"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": _SPECS[kind]})


def _copy(value: Object) -> Object:
    """A copy that shares nothing with the table, nor one part with another (deepcopy keeps such sharing)."""
    result: Object = json.loads(json.dumps(value))
    return result


_SPECS: Mapping[str, Object] = {
    "ServingPool": {
        "model": {"name": "Qwen/Qwen3-32B"},
        "engine": {"image": "vllm/vllm-openai:v0.11.0"},
        "pools": [
            {"name": "prefill", "role": "Prefill", "hardware": "a100", "replicas": 2},
            {"name": "decode", "role": "Decode", "hardware": "h20", "replicas": 4},
        ],
    },
    "SchedulingPolicy": {"prefill": {"type": "least-requests"}, "decode": {"type": "round-robin"}},
    "ServiceLevelObjective": {"ttftS": 2.0, "tpotS": 0.05, "e2eS": 60.0},
    "HardwareProfile": {
        "overheadMs": 1.0,
        "aMs": 16.0,
        "dMsPerToken": 0.167,
        "kMsPerKvToken": 6.55e-5,
        "sMsPerPair": 8.4e-6,
        "bMsPerSeq": 0.05,
        "kvTokens": 280000,
        "kvBytesPerToken": 262144,
    },
}

_OVERLAY: Object = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
    "spec": {"containers": [{"name": "engine", "tty": True}], "hostname": "h"},
}

_FULL_SPECS: Mapping[str, Object] = {
    "ServingPool": {
        "model": {
            "name": "Qwen/Qwen3-32B",
            "servedNames": ["qwen"],
            "maxModelLen": 4096,
            "volume": {"claim": "w", "mountPath": "/m"},
        },
        "engine": {
            "image": "i",
            "imagePullPolicy": "Always",
            "command": ["vllm"],
            "args": ["--x"],
            "env": [{"name": "A", "value": "b"}],
            "port": 8000,
            "kvConnector": {"type": "NixlConnector", "config": {"a": 1}},
            "agent": "Never",
        },
        "pools": [
            {
                "name": "one",
                "role": "Flexible",
                "hardware": "a100",
                "replicas": 2,
                "tensorParallelSize": 2,
                "nodesPerInstance": 1,
                "image": "j",
                "args": ["--y"],
                "env": [{"name": "A", "value": "c"}],
                "template": _OVERLAY,
            },
            {
                "name": "two",
                "role": "Flexible",
                "hardware": "h20",
                "autoscaling": {"minReplicas": 1, "maxReplicas": 4},
            },
        ],
        "ratio": {"mode": "Off", "minRatio": 0.5, "maxRatio": 2.0},
        "policyRef": {"name": "p"},
        "sloRef": {"name": "s"},
        "sloRefs": [],
        "gateway": {
            "replicas": 1,
            "image": "g",
            "imagePullPolicy": "Never",
            "face": "Both",
            "hostnames": ["*.example.com"],
            "match": {"headers": [{"name": "x-team", "value": "a"}], "byModel": True},
            "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
            "template": _OVERLAY,
            "parentRefs": [
                {
                    "group": "gateway.networking.k8s.io",
                    "kind": "Gateway",
                    "name": "eg",
                    "namespace": "n",
                    "sectionName": "http",
                    "port": 80,
                }
            ],
        },
        "rollout": {"maxSurge": "25%", "maxUnavailable": 0, "maxSkew": 0.25},
        "scaleDown": {"drainTimeoutS": 60.0},
        "gpuBudget": 100,
    },
    "SchedulingPolicy": {
        "prefill": {"type": "least-requests", "parameters": {}},
        "decode": {"type": "round-robin"},
        "queue": {"type": "uniboost", "parameters": {}},
        "admission": {"type": "bounded", "parameters": {}},
        "partition": {"type": "fixed", "parameters": {}},
        "rescheduling": {"type": "ares", "parameters": {}},
    },
    "ServiceLevelObjective": {
        "ttftS": 2.0,
        "tpotS": 0.05,
        "e2eS": 60.0,
        "attainment": 0.99,
        "priority": 0,
        "match": {"model": "m", "headers": [{"name": "x-tier", "value": "gold"}]},
    },
    "HardwareProfile": {
        **_SPECS["HardwareProfile"],
        "hardware": "A100",
        "gpus": 2,
        "blockSize": 16,
        "maxNumBatchedTokens": 8192,
        "maxNumSeqs": 256,
        "linkGbps": 200.0,
        "linkSetupS": 0.005,
        "derivation": "measured",
        "costPerHour": 3.5,
        "nodeSelector": {"a": "b"},
        "resourceName": "nvidia.com/gpu",
    },
}


def full(kind: str) -> Object:
    """A valid object that sets every field of its spec (of two that exclude each other, one per pool)."""
    return _copy({**valid(kind), "spec": _FULL_SPECS[kind]})


def every_field(kind: str) -> Iterator[str]:
    """The path of every field and list entry of `full(kind)` below spec, and of its name."""
    yield "metadata.name"
    yield "spec"
    yield from _paths(_FULL_SPECS[kind], "spec")


def _paths(value: Any, path: str) -> Iterator[str]:
    steps: Iterable[tuple[str, Any]] = ()
    if isinstance(value, dict):
        steps = ((f"{path}.{name}", item) for name, item in value.items())
    elif isinstance(value, list):
        steps = ((f"{path}[{index}]", item) for index, item in enumerate(value))
    for below, item in steps:
        yield below
        yield from _paths(item, below)


_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def edit(target: Any, path: str, value: Any) -> None:
    """Sets, appends or (`ABSENT`) removes what stands at a path such as `spec.pools[0].replicas`."""
    steps = [int(index) if index else name for index, name in _STEP.findall(path)]
    for step in steps[:-1]:
        target = target[step] if isinstance(step, int) else target.setdefault(step, {})
    if isinstance(value, Absent):
        del target[steps[-1]]
    elif isinstance(target, list) and steps[-1] == len(target):
        target.append(value)
    else:
        target[steps[-1]] = value
