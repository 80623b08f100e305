"""The KV revision: a hash of what decides whether two engines can read each other's KV blocks. Pure.

vLLM's NixlConnector refuses a peer whose version, model, attention backend, cache layout or block size differs. What
does all that: the image, the command, the model, the connector, and arguments and environment, so these count, as they
stand in the pods, overlays included. Arguments that no KV block depends on are listed here; all others count, so an
unknown one costs a coupled rollout, never a broken pair. A tag that moves to another image is not seen.

All pools of a ServingPool have one revision. A pool whose engine differs from the others' in what counts adds to it:
who writes two unlike engines into one spec says that they go together.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from ballast_operator.kinds import Manifest
from ballast_operator.specs.meta import content_hash

_SHORT: Final = {"-tp": "tensor-parallel-size", "-dp": "data-parallel-size"}
_HARMLESS: Final = frozenset(
    {
        # who reaches the engine, and under which names
        *("host", "port", "uds", "served-model-name", "root-path", "api-key", "shutdown-timeout", "middleware"),
        *("ssl-keyfile", "ssl-certfile", "ssl-ca-certs", "allowed-origins", "allowed-methods", "allowed-headers"),
        # how much it takes on, and in which order
        *("max-num-seqs", "max-num-batched-tokens", "max-num-partial-prefills", "max-long-partial-prefills"),
        *("long-prefill-token-threshold", "scheduling-policy", "async-scheduling", "enable-chunked-prefill"),
        *("gpu-memory-utilization", "num-gpu-blocks-override", "kv-cache-memory-bytes", "swap-space", "cpu-offload-gb"),
        *("enable-prefix-caching", "prefix-caching-hash-algo", "max-loras", "max-cpu-loras"),
        # NixlConnector reads caches of another tensor parallel size
        *("tensor-parallel-size", "data-parallel-size"),
        *("nnodes", "node-rank", "master-addr", "master-port", "headless"),
        # what it says, and how answers are worded
        *("kv-events-config", "disable-log-stats", "enable-log-requests", "disable-log-requests", "max-log-len"),
        *("uvicorn-log-level", "disable-uvicorn-access-log", "otlp-traces-endpoint", "collect-detailed-traces"),
        *("chat-template", "chat-template-content-format", "response-role", "tool-call-parser", "reasoning-parser"),
        *("enable-auto-tool-choice", "return-tokens-as-token-ids", "enable-request-id-headers", "seed"),
        *("enable-prompt-tokens-details", "enable-server-load-tracking", "max-logprobs", "generation-config"),
        # where the weights come from
        *("download-dir", "load-format", "safetensors-load-strategy", "model-loader-extra-config"),
    }
)
"""vLLM's options that leave the KV cache as it is, without their dashes; `no-` before one is the same option."""
_CONNECTOR: Final = "kv-transfer-config"
_CONNECTOR_ROLE: Final = ("kv_role", "kv_rank")
"""Keys of the connector's configuration that differ between prefill and decode by design."""
_ENVIRONMENT: Final = re.compile(r"VLLM_(?!NIXL_SIDE_CHANNEL_|LOGGING_|LOG_|API_KEY|HOST_IP|PORT$|CACHE_ROOT)")
"""Variables that count: vLLM's own, such as VLLM_KV_CACHE_LAYOUT, without addresses and logging."""


def kv_revision(model: str, engines: Iterable[Manifest]) -> str:
    """Ten hex digits. `engines`: the containers `engine` of all pools, as they will run."""
    distinct = {json.dumps(_relevant(engine), sort_keys=True) for engine in engines}
    return content_hash([model, *sorted(distinct)])


def _relevant(engine: Manifest) -> Mapping[str, Any]:
    words = [*(engine.get("command") or ()), *(engine.get("args") or ())]
    first = next((at for at, word in enumerate(words) if _option(word) is not None), len(words))
    return {
        "image": engine.get("image"),
        "command": words[:first],
        "options": _options(words[first:]),
        "env": {
            entry["name"]: entry.get("value", entry.get("valueFrom"))
            for entry in engine.get("env") or ()
            if _ENVIRONMENT.match(entry["name"])
        },
    }


def _options(words: Sequence[str]) -> Mapping[str, Any]:
    """Those that count, by name, with their values. The last one of a repeated option stands, as in vLLM."""
    found: dict[str, list[str]] = {}
    values: list[str] = []
    for word in words:
        option = _option(word)
        if option is None:
            values.append(word)
            continue
        name, equals, value = option.partition("=")
        values = found[name] = [value] if equals else []
    return {
        name: _connector(given) if name == _CONNECTOR else given
        for name, given in found.items()
        if name.removeprefix("no-") not in _HARMLESS
    }


def _option(word: str) -> str | None:
    """`name` or `name=value` of an option, in vLLM's spelling with dashes; None for a value such as `-1`."""
    if word in _SHORT:
        return _SHORT[word]
    if not re.match(r"--?[A-Za-z]", word):
        return None
    name, equals, value = word.lstrip("-").partition("=")
    return name.replace("_", "-") + equals + value


def _connector(values: Sequence[str]) -> Any:
    try:
        config = json.loads(" ".join(values))
    except ValueError:
        return list(values)
    if isinstance(config, dict):
        return {key: value for key, value in config.items() if key not in _CONNECTOR_ROLE}
    return config
