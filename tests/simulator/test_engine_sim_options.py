"""engine-sim starts with whatever an operator passes to `vllm serve`."""

import json
from pathlib import Path

import pytest

from ballast_api.hardware_profile import HardwareProfileSpec
from ballast_core.profiles import A100_QWEN3_32B, H20_QWEN3_32B
from ballast_sim.engine_sim.options import KvTransfer, OptionError, parse_options

NIXL = '{"kv_connector": "NixlConnector", "kv_role": "%s", "kv_connector_extra_config": {"kv_lease_duration": 7}}'
LEASE = '{"kv_connector":"NixlConnector","kv_connector_extra_config":{"kv_lease_duration":%s}}'


def test_a_long_vllm_command_line_is_understood() -> None:
    """What changes something is taken over; what does not is named in a warning, with or without a value."""
    options, warnings = parse_options(
        [
            "Qwen/Qwen3-32B",
            *("--served-model-name", "qwen", "big", "--port", "9000", "--host", "127.0.0.1"),
            *("--max-model-len", "32k", "--max-num-seqs=128", "--max-num-batched-tokens", "4096", "--block-size", "32"),
            *(
                "--tensor-parallel-size",
                "2",
                "--kv-transfer-config",
                NIXL % "kv_producer",
                "--no-enable-prefix-caching",
            ),
            *("--scheduling-policy", "priority", "--max-num-queued-reqs", "50", "--shutdown-timeout", "30"),
            *("--gpu-memory-utilization", "0.92", "--dtype=bfloat16", "--enforce-eager", "--seed", "3"),
        ],
        {"BALLAST_TIME_SCALE": "2", "VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.7", "VLLM_NIXL_SIDE_CHANNEL_PORT": "5600"},
    )
    config = options.engine_config()
    assert options.names == ("qwen", "big")
    assert (options.port, options.tensor_parallel_size, options.time_scale) == (9000, 2, 2.0)
    assert options.kv_transfer == KvTransfer("kv_producer", "fail", 7.0)
    assert (options.side_channel_host, options.side_channel_port) == ("10.0.0.7", 5600)
    assert options.profile == H20_QWEN3_32B
    assert (config.max_model_len, config.max_num_seqs, config.max_num_batched_tokens) == (32_000, 128, 4096)
    assert (config.block_size, config.kv_blocks) == (32, 190_000 // 32)
    assert (config.policy, config.prefix_caching, config.pulls_kv) == ("priority", False, False)
    assert [warning.split()[0] for warning in warnings] == ["--gpu-memory-utilization", "--dtype", "--enforce-eager"]


def test_the_profile_comes_from_a_flag_or_the_environment(tmp_path: Path) -> None:
    """The flag wins; the environment has a name, the spec of a HardwareProfile, or a file with it, as the operator
    writes it."""
    custom = HardwareProfileSpec.from_core(A100_QWEN3_32B).model_dump(by_alias=True, mode="json")
    environment = {"BALLAST_PROFILE": json.dumps({**custom, "kvTokens": 1600})}
    assert parse_options(["m"], environment)[0].profile.kv_tokens == 1600
    assert parse_options(["m"], environment)[0].profile.d_ms_per_token == A100_QWEN3_32B.d_ms_per_token
    assert parse_options(["m", "--profile", "a100-qwen3-32b"], environment)[0].profile == A100_QWEN3_32B
    assert parse_options(["m"], {"BALLAST_PROFILE": "a100-qwen3-32b"})[0].profile == A100_QWEN3_32B
    file = tmp_path / "profile.json"
    file.write_text(environment["BALLAST_PROFILE"])
    assert parse_options(["m"], {"BALLAST_PROFILE": str(file)})[0].profile.kv_tokens == 1600


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        ([], {}, "model"),
        (["m", "--profile", "tpu"], {}, "--profile: there is no profile 'tpu'; 29 are known, see `ballast profiles`"),
        (["m", "--port", "many"], {}, "--port"),
        (["m", "--max-num-seqs", "0"], {}, "--max-num-seqs: must be 1 or more"),
        (
            ["m", "--max-model-len", "infk"],
            {},
            "--max-model-len: must be a whole number such as 8192 or 8k, not 'infk'",
        ),
        (["m", "--max-model-len", "1.5K"], {}, "--max-model-len: must be a whole number"),
        (["m", "--max-model-len", "9" * 400 + "k"], {}, "--max-model-len: must be a whole number"),
        (["m", "--max-model-len", "10M"], {}, "--max-model-len: 10485760 tokens do not fit the KV cache"),
        (["m", "--max-model-len", "infk"], {}, "--max-model-len: must be a whole number"),
        (["m", "--max-model-len", "1e400k"], {}, "--max-model-len: must be a whole number"),
        (["m", "--lora-load-s", "inf"], {}, "--lora-load-s: must be 0 or more seconds"),
        (["m", "--shutdown-timeout", "nan"], {}, "--shutdown-timeout: must be 0 or more seconds"),
        (["m", "--kv-transfer-config", LEASE % "NaN"], {}, "kv_lease_duration nan must be above 0 seconds"),
        (["m", "--kv-transfer-config", LEASE % "Infinity"], {}, "kv_lease_duration inf must be above 0 seconds"),
        (["m", "--kv-transfer-config", LEASE % "true"], {}, "kv_lease_duration True must be above 0 seconds"),
        (["--gpu-memory-utilization", "0.9", "a/m"], {}, "model: is it '0.9' or 'a/m'? --gpu-memory-utilization is"),
        (["--swap-space", "4", "--cpu-offload-gb", "2", "a/m"], {}, "model: is it '4' or 'a/m'? --swap-space is"),
        (["m", "--time-scale", "0"], {}, "--time-scale: must be between"),
        (["m", "--kv-transfer-config", "{"], {}, "--kv-transfer-config: must be JSON"),
        (["m", "--kv-transfer-config", '{"kv_connector":"Other"}'], {}, "kv_connector 'Other' is not modelled"),
        (["m", "--kv-transfer-config", NIXL % "both"], {}, "kv_role 'both' is none of"),
        (["m"], {"BALLAST_TIME_SCALE": "slow"}, "BALLAST_TIME_SCALE: must be a number"),
        (["m"], {"BALLAST_PROFILE": "/nowhere"}, "BALLAST_PROFILE: cannot read /nowhere: No such file"),
        (["m"], {"BALLAST_PROFILE": "{}"}, "BALLAST_PROFILE: not the JSON of a HardwareProfile"),
        (["m"], {"VLLM_NIXL_SIDE_CHANNEL_PORT": "x"}, "VLLM_NIXL_SIDE_CHANNEL_PORT: must be a port"),
    ],
)
def test_what_cannot_work_is_refused_by_name(arguments: list[str], environment: dict[str, str], message: str) -> None:
    """Flag or variable, and what it should be."""
    with pytest.raises(OptionError) as caught:
        parse_options(arguments, environment)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ["a/m", "--gpu-memory-utilization", "0.9"],
        ["--enforce-eager", "a/m"],
        ["--gpu-memory-utilization=0.9", "a/m", "--enforce-eager"],
        ["--max-num-seqs", "8", "a/m", "--swap-space", "4"],
        ["--enforce-eager", "a/m", "--swap-space", "4"],
    ],
    ids=" ".join,
)
def test_unknown_flags_stand_before_the_model_or_after_it(arguments: list[str]) -> None:
    """With values or without."""
    assert parse_options(arguments, {})[0].model == "a/m"


def test_the_route_that_commands_faults_is_on_loopback_unless_told_otherwise() -> None:
    """And there is none unless asked for."""
    assert parse_options(["m"], {})[0].misbehave_api is None
    assert not parse_options(["m"], {})[0].may_misbehave
    for text, where in {
        "9000": ("127.0.0.1", 9000),
        "0.0.0.0:9000": ("0.0.0.0", 9000),
        "[::1]:0": ("::1", 0),
    }.items():
        assert parse_options(["m", "--misbehave-api", text], {})[0].misbehave_api == where
