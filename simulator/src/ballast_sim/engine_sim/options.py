"""vLLM's command-line flags, as far as they change what an outside observer sees.

Unknown flags are named in a warning and passed over: an operator's vLLM arguments must start this server, too.
"""

import argparse
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from pydantic import ValidationError

from ballast_api.hardware_profile import HardwareProfileSpec
from ballast_core.profiles import HardwareProfile
from ballast_sim.engine import EngineConfig
from ballast_sim.human_integers import human_integer
from ballast_sim.naming import known_names
from ballast_sim.own_profiles import ProfileFileError, read_profiles

if TYPE_CHECKING:
    from ballast_sim.engine_sim.misbehave.faults import Fault

DEFAULT_PROFILE = "h20-qwen3-32b"
PULL_CONNECTORS = ("NixlConnector", "NixlPullConnector")


_LAST_PORT = 65535


class OptionError(ValueError):
    """A flag or environment variable that cannot be used; the message names it and the fix."""


@dataclass(frozen=True, slots=True)
class KvTransfer:
    """The value of `--kv-transfer-config`: this engine's part in a hand-off."""

    role: Literal["kv_producer", "kv_consumer", "kv_both"] = "kv_both"
    failure_policy: Literal["fail", "recompute"] = "fail"
    lease_s: float = 30.0
    reads_parts: bool = False
    """`bidirectional_kv_xfer`: whether the KV of a prompt's first part may be pulled, and the rest computed."""
    least_part_tokens: int = 64
    """`kv_recompute_threshold`: fewer tokens are computed again rather than pulled."""

    @property
    def produces(self) -> bool:
        """Whether finished prefills may be held for others."""
        return self.role != "kv_consumer"

    @property
    def consumes(self) -> bool:
        """Whether prompts may be pulled from others."""
        return self.role != "kv_producer"


@dataclass(frozen=True, slots=True)
class KvEventsConfig:
    """The value of `--kv-events-config`: what the engine publishes of its prefix cache."""

    port: int = 5557
    """0 takes any free port, as does the next one."""
    replay_port: int | None = None
    topic: str = ""
    buffer_steps: int = 10_000
    """Batches that are kept for replay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Everything one server needs to know."""

    model: str
    profile: HardwareProfile
    host: str = "0.0.0.0"
    port: int = 8000
    served_model_names: tuple[str, ...] = ()
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    tensor_parallel_size: int = 1
    kv_transfer: KvTransfer | None = None
    kv_events: KvEventsConfig | None = None
    policy: Literal["fcfs", "priority"] = "fcfs"
    prefix_caching: bool = True
    async_scheduling: bool = True
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    shutdown_timeout_s: float = 0.0
    api_keys: tuple[str, ...] = ()
    prompt_tokens_details: bool = False
    stream_interval: int = 1
    server_load_tracking: bool = False
    seed: int = 0
    time_scale: float = 1.0
    side_channel_host: str | None = None
    side_channel_port: int = 0
    lora_modules: Mapping[str, str] = field(default_factory=dict)
    """Adapters by name, and their paths."""
    max_loras: int = 1
    lora_load_s: float = 0.0
    misbehave: "tuple[Fault, ...]" = ()
    misbehave_api: tuple[str, int] | None = None
    """Host and port of the route that commands faults."""

    @property
    def may_misbehave(self) -> bool:
        """Whether there may ever be a fault."""
        return bool(self.misbehave) or self.misbehave_api is not None

    @property
    def names(self) -> tuple[str, ...]:
        """Model names that requests may use; the first one is reported."""
        return self.served_model_names or (self.model,)

    @property
    def accepted(self) -> tuple[str, ...]:
        """The same with adapters' names."""
        return (*self.names, *self.lora_modules)

    def engine_config(self) -> EngineConfig:
        """The engine behind the server. Raises OptionError where the flags contradict the hardware."""
        transfer = self.kv_transfer
        try:
            return EngineConfig.from_profile(
                self.profile,
                max_model_len=self.max_model_len,
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
                block_size=self.block_size,
                policy=self.policy,
                prefix_caching=self.prefix_caching,
                async_scheduling=self.async_scheduling,
                pulls_kv=transfer is not None and transfer.consumes,
                hands_over_kv=transfer is not None and transfer.produces,
                recompute_failed_pulls=transfer is not None and transfer.failure_policy == "recompute",
                lease_s=transfer.lease_s if transfer else 30.0,
                external_pulls=True,
                max_loras=self.max_loras if self.lora_modules else 0,
                lora_load_s=self.lora_load_s,
            )
        except ValueError as error:
            raise OptionError(f"--{str(error).replace('_', '-', 2)}") from error


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise OptionError(message)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and int(text) <= _LAST_PORT):
        raise argparse.ArgumentTypeError(f"must be a port from 0 to {_LAST_PORT}, not {text!r}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="ballast engine-sim serve", add_help=False, allow_abbrev=False)
    parser.add_argument("model")
    parser.add_argument("--host", default="0.0.0.0")
    parser.add_argument("--port", type=_port, default=8000)
    parser.add_argument("--served-model-name", nargs="+", default=[])
    for flag in ("--max-model-len", "--max-num-seqs", "--max-num-batched-tokens", "--block-size"):
        parser.add_argument(flag, type=_positive)
    for flag in ("--max-num-queued-reqs", "--max-num-queued-tokens"):
        parser.add_argument(flag, type=_count)
    parser.add_argument("--tensor-parallel-size", "-tp", type=_positive, default=1)
    parser.add_argument("--kv-transfer-config", type=kv_transfer_config)
    parser.add_argument("--kv-events-config", type=kv_events_config)
    parser.add_argument("--scheduling-policy", choices=["fcfs", "priority"], default="fcfs")
    for flag, default in (("--enable-prefix-caching", True), ("--async-scheduling", True)):
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=default)
    for flag in ("--enable-prompt-tokens-details", "--enable-server-load-tracking"):
        parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--shutdown-timeout", type=_seconds, default=0.0)
    parser.add_argument("--api-key", nargs="+", default=[])
    parser.add_argument("--stream-interval", type=_positive, default=1)
    parser.add_argument("--enable-lora", action="store_true")
    parser.add_argument("--lora-modules", nargs="+", type=_lora_module, default=[])
    parser.add_argument("--max-loras", type=_positive, default=1)
    parser.add_argument("--lora-load-s", type=_seconds, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--profile")
    parser.add_argument("--profiles", action="append", type=Path, default=[])
    parser.add_argument("--time-scale", type=_scale)
    parser.add_argument("--misbehave", action="append", type=_faults, default=[])
    parser.add_argument("--misbehave-api", type=_host_and_port)
    return parser


def _lora_module(text: str) -> tuple[str, str]:
    """`NAME=PATH`, or a JSON object with `name` and `path`, as vLLM takes them."""
    name, _, path = text.partition("=")
    if text.startswith("{"):
        try:
            module = json.loads(text)
            name, path = module["name"], module["path"]
        except (ValueError, KeyError):
            name = path = ""
    if not (isinstance(name, str) and isinstance(path, str) and name and path):
        raise argparse.ArgumentTypeError(f'must be NAME=PATH or {{"name": ..., "path": ...}}, not {text!r}')
    return name, path


def _positive(text: str) -> int:
    value = _human_integer(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, not {text!r}")
    return value


def _count(text: str) -> int:
    value = _human_integer(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more, not {text!r}")
    return value


def _human_integer(text: str) -> int:
    try:
        return human_integer(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number such as 8192 or 8k, not {text!r}") from None


def _seconds(text: str) -> float:
    value = _number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be 0 or more seconds, not {text!r}")
    return value


def _scale(text: str) -> float:
    value = _number(text)
    if not 1e-3 <= value <= 1e3:
        raise argparse.ArgumentTypeError(f"must be between 0.001 and 1000, not {text!r}")
    return value


def _faults(text: str) -> "tuple[Fault, ...]":
    from ballast_sim.engine_sim.misbehave.faults import FaultError, read_faults

    try:
        return read_faults(text)
    except FaultError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _host_and_port(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"must be a port from 0 to 65535, or HOST:PORT, not {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from None


def kv_transfer_config(text: str) -> KvTransfer:
    """Read vLLM's `--kv-transfer-config` JSON. Only pull connectors are modelled."""
    try:
        spec = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be JSON: {error}") from None
    if not isinstance(spec, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    if spec.get("kv_connector") not in PULL_CONNECTORS:
        known = " or ".join(PULL_CONNECTORS)
        raise argparse.ArgumentTypeError(f"kv_connector {spec.get('kv_connector')!r} is not modelled; use {known}")
    role, policy = spec.get("kv_role", "kv_both"), spec.get("kv_load_failure_policy", "fail")
    if role not in ("kv_producer", "kv_consumer", "kv_both"):
        raise argparse.ArgumentTypeError(f"kv_role {role!r} is none of kv_producer, kv_consumer, kv_both")
    if policy not in ("fail", "recompute"):
        raise argparse.ArgumentTypeError(f"kv_load_failure_policy {policy!r} is neither fail nor recompute")
    extra = spec.get("kv_connector_extra_config") or {}
    if not isinstance(extra, dict):
        extra = {}
    lease_s = extra.get("kv_lease_duration", 30)
    if isinstance(lease_s, bool) or not isinstance(lease_s, int | float) or not 0 < lease_s < math.inf:
        raise argparse.ArgumentTypeError(f"kv_lease_duration {lease_s!r} must be above 0 seconds")
    threshold = extra.get("kv_recompute_threshold", 64)
    if not isinstance(threshold, int) or threshold < 0:
        raise argparse.ArgumentTypeError(f"kv_recompute_threshold {threshold!r} must be 0 tokens or more")
    return KvTransfer(role, policy, float(lease_s), extra.get("bidirectional_kv_xfer") is True, threshold)


def kv_events_config(text: str) -> KvEventsConfig | None:
    """Read vLLM's `--kv-events-config` JSON; None where it switches nothing on."""
    try:
        spec = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be JSON: {error}") from None
    if not isinstance(spec, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    if spec.get("enable_kv_cache_events") is not True or spec.get("publisher", "zmq") == "null":
        return None
    replay = spec.get("replay_endpoint")
    topic, steps = spec.get("topic", ""), spec.get("buffer_steps", 10_000)
    if not isinstance(topic, str) or not isinstance(steps, int) or steps < 1:
        raise argparse.ArgumentTypeError("topic must be text, buffer_steps 1 or more")
    return KvEventsConfig(
        _bound_port(spec.get("endpoint", "tcp://*:5557")), None if replay is None else _bound_port(replay), topic, steps
    )


def _bound_port(endpoint: object) -> int:
    match = re.fullmatch(r"tcp://\*:([0-9]{1,5})", endpoint) if isinstance(endpoint, str) else None
    if match is None or int(match[1]) > 65535:
        raise argparse.ArgumentTypeError(f"endpoint {endpoint!r} is not modelled; use tcp://*:PORT, which listens")
    return int(match[1])


def parse_options(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> tuple[ServerOptions, list[str]]:
    """Read `MODEL [vLLM flags]`. Returns the options and one warning for each flag that changes nothing here."""
    env = os.environ if environment is None else environment
    known, unknown = _parser().parse_known_args(list(arguments))
    _check_model(known.model, arguments, unknown)
    ignored = [argument.split("=")[0] for argument in unknown if argument.startswith("-")]
    warnings = [f"{flag} changes nothing here and is passed over" for flag in ignored]
    scale = known.time_scale if known.time_scale is not None else _environment_scale(env)
    transfer: KvTransfer | None = known.kv_transfer_config
    options = ServerOptions(
        model=known.model,
        profile=_profile(known.profile, known.profiles, env),
        host=known.host,
        port=known.port,
        served_model_names=tuple(known.served_model_name),
        max_model_len=known.max_model_len,
        max_num_seqs=known.max_num_seqs,
        max_num_batched_tokens=known.max_num_batched_tokens,
        block_size=known.block_size,
        tensor_parallel_size=known.tensor_parallel_size,
        kv_transfer=transfer,
        kv_events=known.kv_events_config,
        policy=known.scheduling_policy,
        prefix_caching=known.enable_prefix_caching,
        async_scheduling=known.async_scheduling,
        max_num_queued_reqs=known.max_num_queued_reqs,
        max_num_queued_tokens=known.max_num_queued_tokens,
        shutdown_timeout_s=known.shutdown_timeout,
        api_keys=tuple(known.api_key) or tuple(filter(None, [env.get("VLLM_API_KEY")])),
        prompt_tokens_details=known.enable_prompt_tokens_details,
        stream_interval=known.stream_interval,
        server_load_tracking=known.enable_server_load_tracking,
        seed=known.seed,
        time_scale=scale,
        side_channel_host=env.get("VLLM_NIXL_SIDE_CHANNEL_HOST") or env.get("VLLM_HOST_IP"),
        side_channel_port=_environment_port(env),
        lora_modules=dict(known.lora_modules),
        max_loras=known.max_loras,
        lora_load_s=known.lora_load_s,
        misbehave=tuple(fault for faults in known.misbehave for fault in faults),
        misbehave_api=known.misbehave_api,
    )
    if known.lora_modules and not known.enable_lora:
        raise OptionError("--lora-modules: needs --enable-lora, as in vLLM")
    if known.lora_modules and known.kv_events_config is not None:
        raise OptionError("--lora-modules: KV events of adapters are not modelled; leave out --kv-events-config")
    options.engine_config()
    return options, warnings


def _check_model(model: str, arguments: Sequence[str], unknown: Sequence[str]) -> None:
    """Raises OptionError where the model may be the value of an unknown flag before it, and another word may be it."""
    flags = {each for each in unknown if each.startswith("-") and "=" not in each}
    before = {word: flag for flag, word in pairwise(arguments) if flag in flags}
    others = [each for each in unknown if not each.startswith("-") and each not in before]
    if model in before and others:
        flag = before[model]
        raise OptionError(f"model: is it {model!r} or {others[0]!r}? {flag} is not known here; write the model first")


def _environment_scale(env: Mapping[str, str]) -> float:
    try:
        return _scale(env.get("BALLAST_TIME_SCALE") or "1")
    except argparse.ArgumentTypeError as error:
        raise OptionError(f"BALLAST_TIME_SCALE: {error}") from None


def _environment_port(env: Mapping[str, str]) -> int:
    text = env.get("VLLM_NIXL_SIDE_CHANNEL_PORT") or "0"
    if not text.isdecimal() or int(text) > 65535:
        raise OptionError(f"VLLM_NIXL_SIDE_CHANNEL_PORT: must be a port from 0 to 65535, not {text!r}")
    return int(text)


def _profile(name: str | None, files: Sequence[Path], env: Mapping[str, str]) -> HardwareProfile:
    """`--profile`, shipped or of a file; else BALLAST_PROFILE, such a name, a spec's JSON or a file
    with it; else the default."""
    try:
        known = read_profiles(files)
    except ProfileFileError as error:
        raise OptionError(str(error)) from None
    if name is not None:
        if name not in known:
            raise OptionError(
                f"--profile: there is no profile {name!r}; " + known_names(name, known, "ballast profiles")
            )
        return known[name]
    text = env.get("BALLAST_PROFILE")
    if not text:
        return known[DEFAULT_PROFILE]
    if text in known:
        return known[text]
    try:
        if text.startswith("/"):
            text = Path(text).read_text(encoding="utf-8")
        spec = HardwareProfileSpec.model_validate_json(text)
    except OSError as error:
        raise OptionError(f"BALLAST_PROFILE: cannot read {text}: {error.strerror}") from error
    except (ValidationError, ValueError) as error:
        raise OptionError(f"BALLAST_PROFILE: not the JSON of a HardwareProfile's spec: {error}") from error
    try:
        return spec.to_simulate(env.get("BALLAST_PROFILE_NAME") or "custom")
    except ValueError as error:
        raise OptionError(f"BALLAST_PROFILE: {error}") from error


def model_root(model: str) -> str:
    """What `/v1/models` calls the root: the path or name that was served."""
    return str(Path(model)) if model.startswith(("/", ".")) else model


def describe(options: ServerOptions, config: EngineConfig) -> dict[str, Any]:
    """One line for the log: what is being served."""
    return {
        "model": options.names[0],
        "profile": options.profile.name,
        "time_scale": options.time_scale,
        "max_model_len": config.max_model_len,
        "kv_blocks": config.kv_blocks,
        "kv_role": options.kv_transfer.role if options.kv_transfer else None,
    }
