"""`ballast adopt`: Deployments as a ServingPool. It is valid, says what differs, and undoes the operator's own work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from ballast_api.errors import InvalidInput
from ballast_api.loading import parse_resource
from ballast_cli.adopting.convert import Adopted, adopt
from ballast_cli.adopting.words import CommandLine, command_line
from ballast_cli.main import app
from ballast_operator.kinds import Manifest
from ballast_operator.planning.plan import plan
from tests.support.operator_builders import observed, pool, profile, serving_pool

TEMPLATE = {
    "spec": {
        "tolerations": [{"key": "gpu", "operator": "Exists"}],
        "containers": [
            {
                "name": "engine",
                "resources": {"requests": {"cpu": "24"}},
                "volumeMounts": [{"name": "x", "mountPath": "/x"}],
            },
            {"name": "logs", "image": "registry.test/logs:1"},
        ],
        "volumes": [{"name": "x", "emptyDir": {}}],
    }
}
MODELS: dict[str, Manifest] = {
    "plain": serving_pool(),
    "words": serving_pool(
        pool("prefill", "Prefill", hardware="a100", args=["--max-num-seqs", "9"], env=[{"name": "A", "value": "1"}]),
        pool("decode", "Decode", image="registry.test/engine:2", tensorParallelSize=4),
        model={"name": "org/model", "servedNames": ["a", "b"], "maxModelLen": 4096},
        engine={
            "image": "registry.test/engine:1",
            "args": ["--seed", "7", "--enable-lora"],
            "env": [{"name": "B", "value": "2"}],
            "imagePullPolicy": "Always",
        },
    ),
    "template": serving_pool(pool("all", "Flexible", template=TEMPLATE)),
    "connector": serving_pool(
        model={"name": "/weights/m", "volume": {"claim": "w", "mountPath": "/weights"}},
        engine={"image": "i:1", "port": 9000, "kvConnector": {"config": {"kv_buffer_device": "cpu"}}},
        gateway={"settings": {"limits": {"drainTimeoutS": 60.0}, "kvEvents": {"enabled": True, "port": 6000}}},
    ),
    "agents": serving_pool(gateway={"face": "Both"}),
}


def deployments(manifest: Manifest) -> list[Manifest]:
    """Those of the engines, as the operator writes them."""
    applied = plan(observed(manifest)).apply
    return [each for each in applied if each["kind"] == "Deployment" and each["metadata"]["name"] != "chat-gateway"]


@pytest.mark.parametrize("name", MODELS)
def test_adopting_what_the_operator_made_gives_what_it_was_made_of(name: str) -> None:
    """The adopted ServingPool renders the same Deployments, to the last field."""
    made = deployments(MODELS[name])
    adopted = adopt([*made, profile("a100"), profile("h20")]).manifest
    adopted["metadata"] |= {key: MODELS[name]["metadata"][key] for key in ("uid", "generation", "namespace")}
    if name == "agents":
        adopted["spec"]["gateway"] = {"face": "Both"}  # no InferencePool says so here
    assert adopted["spec"]["pools"][0]["hardware"] in ("a100", "h20")
    assert deployments(adopted) == made


def llm_d() -> list[Manifest]:
    """Two Deployments as llm-d's guides have them, with their pool, route and scaler."""
    text = (Path(__file__).parent / "adopt" / "llm-d.yaml").read_text()
    return [each for each in yaml.safe_load_all(text) if each]


def said(adopted: Adopted, of: str) -> str:
    """Fit and words of what begins so."""
    return "; ".join(f"{each.fit}: {each.said}" for each in adopted.findings if each.of.startswith(of))


def test_llm_ds_deployments_become_pools_by_role() -> None:
    """Roles by label, ports by InferencePool, the rest by the command line; guesses are called so."""
    adopted = adopt(llm_d())
    parse_resource(adopted.manifest)
    spec = adopted.manifest["spec"]
    prefill, decode = spec["pools"]
    assert adopted.manifest["metadata"] == {"name": "llama", "namespace": "llm"}
    assert spec["model"] == {"name": "meta-llama/Llama-3.1-8B-Instruct", "maxModelLen": 32000}
    assert (prefill["role"], prefill["hardware"], prefill["replicas"]) == ("Prefill", "h100-llama3-8b", 4)
    assert (decode["role"], decode["hardware"]) == ("Decode", "h200-llama3-8b-tp2")
    assert decode["autoscaling"] == {"minReplicas": 1, "maxReplicas": 6}
    assert spec["engine"]["args"] == ["--gpu-memory-utilization=0.9"]
    assert prefill["args"] == ["--enforce-eager"]
    assert spec["gateway"] == {"face": "Picker", "hostnames": ["llm.example.com"]}
    assert prefill["template"]["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    assert {each["name"] for each in decode["template"]["spec"].get("containers", [])} <= {"engine"}
    assert said(adopted, "pool prefill: hardware").startswith("guessed")
    assert "agent takes its place" in said(adopted, "pool decode: container routing-proxy")
    assert "--max-num-seqs 1024" in said(adopted, "pool prefill: limits")
    assert "old Services" in said(adopted, "pool prefill: labels")
    assert "import endpoint-picker-config" in said(adopted, "its picker")
    assert "the target EnginePool llama-decode" in said(adopted, "HorizontalPodAutoscaler decode")
    assert "left" in said(adopted, "Deployment web")
    steps = "\n".join(adopted.steps)
    assert "kind: InferencePool, name: llama-gateway}" in steps
    assert "weight 0 for llama-gateway" in steps


@pytest.mark.parametrize(("value", "length"), [("16000", 16_000), ("16k", 16_000), ("16K", 16_384), ("12.5k", 12_500)])
def test_lengths_are_read_as_vllm_reads_them(value: str, length: int) -> None:
    """Thousands and 1,024s; the field of the ServingPool has the number."""
    spec = adopt(_with_arguments("--max-model-len", value)).manifest["spec"]
    assert spec["model"]["maxModelLen"] == length
    assert not any(value in entry.get("args", []) for entry in spec["pools"])


def test_short_options_behind_one_that_has_a_field_are_kept() -> None:
    """`-q` is vLLM's quantization, and `-tp` is written in either way; a number below 0 is a value."""
    adopted = adopt(_with_arguments("--max-model-len", "8192", "-q", "awq", "-tp=2", "-O3", "--seed", "-1"))
    (prefill, _) = adopted.manifest["spec"]["pools"]
    assert prefill["args"] == ["-q", "awq", "-O3", "--seed", "-1"]
    assert "2 x " in said(adopted, "pool prefill: hardware")


@pytest.mark.parametrize(
    ("option", "value", "field", "stays"),
    [
        ("max-model-len", "auto", "model.maxModelLen", True),
        ("max-model-len", "-1", "model.maxModelLen", True),
        ("tensor-parallel-size", "$(GPUS)", "tensorParallelSize", True),
        ("shutdown-timeout", "$(PATIENCE)", "drainTimeoutS", True),
        ("kv-events-config", "$(EVENTS)", "gateway.settings.kvEvents", True),
        ("port", "$(PORT)", "engine.port", False),
        ("kv-transfer-config", "$(CONNECTOR)", "engine.kvConnector", False),
    ],
)
def test_an_option_that_no_field_can_say_is_named_and_stays_where_it_may(
    option: str, value: str, field: str, stays: bool
) -> None:
    """vLLM takes the last one, so it has its effect; ports and connectors must be those that Ballast knows."""
    adopted = adopt(_with_arguments(f"--{option}", value))
    (prefill, _) = adopted.manifest["spec"]["pools"]
    assert (prefill.get("args") == [f"--{option}", value]) is stays
    account = said(adopted, f"pool prefill: --{option}")
    assert account.startswith(f"check: {value} is no ")
    assert account.endswith(field)
    assert said(adopted, "--max-model-len") == ""


def _with_arguments(*words: str) -> list[Manifest]:
    """llm-d's Deployments; prefill pods have only these arguments, and decode pods no length of their own."""
    objects = llm_d()
    prefill, decode = (each["spec"]["template"]["spec"]["containers"][0] for each in objects[:2])
    prefill["args"] = ["--model", "meta-llama/Llama-3.1-8B-Instruct", *words]
    decode["args"] = [each for each in decode["args"] if not each.startswith("--max-model-len")]
    return objects


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ({"command": ["vllm", "serve", "org/m"], "args": ["--seed=7"]}, ("org/m", ("vllm",))),
        ({"args": ["--model", "org/m", "--seed", "7"]}, ("org/m", ("vllm",))),
        (
            {"command": ["python3", "-m", "vllm.entrypoints.openai.api_server"], "args": ["--model=org/m"]},
            ("org/m", ("vllm",)),
        ),
        ({"command": ["/bin/sh", "-c"], "args": ["exec vllm serve org/m \\\n  --seed 7\n"]}, ("org/m", ("vllm",))),
        ({"command": ["ballast", "engine-sim"], "args": ["serve", "org/m"]}, ("org/m", ("ballast", "engine-sim"))),
        ({"command": ["sh", "-c", "pip install x && vllm serve org/m"]}, "shell script"),
        ({"command": ["sleep"], "args": ["1"]}, "no vLLM"),
        ({"args": ["--seed", "7"]}, "names no model"),
    ],
)
def test_a_command_line_is_understood_or_said_not_to_be(container: Manifest, expected: Any) -> None:
    """vLLM's ways to be started."""
    found = command_line(container)
    if isinstance(found, CommandLine):
        assert (found.model, found.command) == expected
    else:
        assert expected in found


def test_what_cannot_be_one_serving_pool_is_refused_with_the_way_out() -> None:
    """Nothing to adopt, two models, a name whose children are there."""
    with pytest.raises(InvalidInput, match="none has a vLLM engine"):
        adopt([])
    other = serving_pool(model={"name": "org/other"})
    with pytest.raises(InvalidInput, match=r"several models.*--selector"):
        adopt([*deployments(serving_pool()), *deployments(other)])
    with pytest.raises(InvalidInput, match="llama-prefill, which exist"):
        adopt([_renamed(each) for each in llm_d()], name="llama")
    assert adopt([_renamed(each) for each in llm_d()]).manifest["metadata"]["name"] == "llama-ballast"


def test_a_route_of_others_is_left_alone_and_headers_become_the_match() -> None:
    """Only routes that lead to the engines count; a header that every request carries is the pool's."""
    objects = llm_d()
    (route,) = [each for each in objects if each["kind"] == "HTTPRoute"]
    header = {"name": "x-tier", "value": "gold"}
    by_model = {"name": "x-gateway-model-name", "value": "m"}
    rule = {**route["spec"]["rules"][0], "matches": [{"headers": [header, by_model]}]}
    others = {"hostnames": ["web.test"], "rules": [{"backendRefs": [{"kind": "InferencePool", "name": "other"}]}]}
    changed = [
        *(each for each in objects if each is not route),
        {**route, "spec": {**route["spec"], "rules": [rule]}},
        {**route, "metadata": {"name": "web"}, "spec": others},
    ]
    adopted = adopt(changed)
    gateway = adopted.manifest["spec"]["gateway"]
    assert gateway["hostnames"] == ["llm.example.com"]
    assert gateway["match"] == {"headers": [header], "byModel": True}
    assert "HTTPRoute web" not in "\n".join(adopted.steps)


def test_odd_manifests_are_refused_in_words() -> None:
    """No traceback: numbers that are none, JSON that is none, no image."""
    odd = llm_d()[:2]
    container = odd[0]["spec"]["template"]["spec"]["containers"][0]
    container["args"] = [
        "--model=meta-llama/Llama-3.1-8B-Instruct",
        "-tp",
        "$(TP)",
        "--kv-transfer-config",
        "{",
        "--kv-events-config=x",
        "--port=a",
    ]
    assert adopt(odd).manifest["spec"]["pools"][0]["hardware"] == "h100-llama3-8b"
    del container["image"]
    with pytest.raises(InvalidInput, match=r"engine\.image"):
        adopt(odd)


def _renamed(each: Manifest) -> Manifest:
    name = each["metadata"]["name"].replace("ms-", "")
    return {**each, "metadata": {**each["metadata"], "name": name}}


def test_the_command_prints_a_manifest_and_its_account_apart(tmp_path: Path) -> None:
    """Standard output is for `kubectl apply -f -`; a List and a selector are understood."""
    path = tmp_path / "all.yaml"
    path.write_text(yaml.safe_dump({"kind": "List", "apiVersion": "v1", "items": llm_d()}))
    result = CliRunner().invoke(app, ["adopt", "-f", str(path), "-o", "yaml", "--name", "mine"])
    assert result.exit_code == 0, result.stderr
    assert yaml.safe_load(result.stdout)["metadata"]["name"] == "mine"
    assert "To switch over:" in result.stderr
    none = CliRunner().invoke(app, ["adopt", "-f", str(path), "-l", "app=nothing"])
    assert (none.exit_code, none.stdout) == (2, "")
    assert "none has a vLLM engine" in none.stderr


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("0.metadata.labels", ["app"], "metadata.labels: must be a mapping of fields"),
        ("0.spec.replicas", "two", "spec.replicas: must be a whole number"),
        ("0.spec.template", None, "spec.template: is missing; add it"),
        ("0.spec.template.metadata.labels", ["a"], "spec.template.metadata.labels: must be a mapping of fields"),
        ("0.spec.template.spec.nodeSelector", ["a"], "spec.template.spec.nodeSelector: must be a mapping of fields"),
        ("0.spec.template.spec.containers.0.env", ["B"], "containers[0].env[0]: must be a mapping of fields"),
        ("0.spec.template.spec.containers.0.volumeMounts", [{"name": "x"}], "mountPath: is missing; add it"),
        ("0.spec.template.spec.containers.0.resources", ["x"], "containers[0].resources: must be a mapping of fields"),
        ("3.spec.targetPorts", 8000, "InferencePool llama: spec.targetPorts: must be a list"),
        ("4.spec.rules", ["x"], "HTTPRoute llama: spec.rules[0]: must be a mapping of fields"),
        ("5.spec.maxReplicas", "6", "HorizontalPodAutoscaler decode: spec.maxReplicas: must be a whole number"),
    ],
)
def test_a_manifest_of_another_shape_is_refused_by_its_field(
    tmp_path: Path, path: str, value: object, problem: str
) -> None:
    """As the API server would, which has not seen a file; with a selector, too, that reads labels first."""
    objects: Any = llm_d()
    *fields, last = path.split(".")
    inner: Any = objects
    for field in fields:
        inner = inner[int(field) if isinstance(inner, list) else field]
    inner[last] = value
    result = _adopt_file(tmp_path, objects, "-l", "app=llama")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: ")
    assert problem in result.stderr


def test_a_serving_pool_that_cannot_be_is_called_by_its_name(tmp_path: Path) -> None:
    """One line for one wrong number: the other pool is not called missing."""
    (prefill, *_) = llm_d()
    prefill["spec"]["replicas"] = -1
    prefill["spec"]["template"]["metadata"]["labels"]["llm-d.ai/role"] = "both"
    result = _adopt_file(tmp_path, [prefill], "--name", "mine")
    assert result.stderr == "error: ServingPool mine: spec.pools[0].replicas: must be 0 or more, not -1\n"


def _adopt_file(folder: Path, objects: list[Manifest], *arguments: str) -> Result:
    path = folder / "objects.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    return CliRunner().invoke(app, ["adopt", "-f", str(path), *arguments])
