"""The kube-apiserver and the pydantic models judge alike: the same objects, the same fields, the same defaults.

Everything is a dry run: the server validates and fills in defaults, nothing is kept. tests/api holds the other half.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from ballast_api.crds import crd_name
from ballast_api.resources import ALL, KINDS
from kit import Cluster, wait_until
from tests.support.api_server_judge import Post, disagreements, sweep_disagreements

ROOT = Path(__file__).resolve().parents[1]
CRDS = ROOT / "crds"
TRACES = ROOT.parent / "shared" / "traces"
RECOMMENDED_TRACES = ("azure23_conv_w1.csv.gz", "mooncake_conversation_w1.jsonl.gz", "servegen_r1_w1.csv.gz")
DEFINITION = "customresourcedefinition"


@pytest.fixture(scope="module")
def definitions(cluster: Cluster) -> Iterator[None]:
    """Our CRDs: those that are installed, or ours for as long as this module runs."""
    names = [crd_name(model) for model in ALL]
    missing = [name for name in names if cluster.kubectl.find(DEFINITION, name) is None]
    try:
        if missing:
            cluster.kubectl.text("apply", "--server-side", "-f", str(CRDS))
        for name in names:
            wait_until(partial(_is_established, cluster, name), 60, f"{name} is established")
        yield
    finally:
        for name in missing:
            cluster.kubectl.delete(DEFINITION, name)


def _is_established(cluster: Cluster, name: str) -> bool:
    """`kubectl wait` cannot be asked: it fails where the server has not written any condition yet."""
    conditions = cluster.kubectl.get(DEFINITION, name).get("status", {}).get("conditions") or []
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


@pytest.fixture(scope="module")
def post(cluster: Cluster, definitions: None) -> Iterator[Post]:
    """Sends an object to the real server, by way of `kubectl proxy`: that takes any kubeconfig."""
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    proxy = subprocess.Popen(
        cluster.kubectl.argv("proxy", "--port=0"), env=environment, stdout=subprocess.PIPE, text=True
    )
    assert proxy.stdout is not None
    try:
        address = proxy.stdout.readline().split()[-1]  # Starting to serve on 127.0.0.1:PORT
        with httpx.Client(base_url=f"http://{address}", timeout=30.0) as http:
            yield lambda path, body: _answer(http.post(path, json=body))
    finally:
        proxy.terminate()
        proxy.wait(timeout=10)
        proxy.stdout.close()


def _answer(response: httpx.Response) -> tuple[int, dict[str, Any]]:
    return response.status_code, response.json()


def test_the_server_finds_the_schemas_structural(cluster: Cluster, definitions: None) -> None:
    """A schema that is not gets a condition, and neither pruning nor defaults."""
    for model in ALL:
        conditions = cluster.kubectl.get(DEFINITION, crd_name(model))["status"]["conditions"]
        assert {c["type"]: c["status"] for c in conditions} == {"NamesAccepted": "True", "Established": "True"}


def test_every_mutation_gets_the_verdict_of_the_table(post: Post) -> None:
    """Accepted or refused, the field that is named, the words of our rules, the defaults."""
    assert disagreements(post) == []


def test_junk_in_every_field_gets_the_verdict_of_the_models(post: Post) -> None:
    """Every field of every kind with every kind of value: what one judge refuses, the other refuses."""
    assert sweep_disagreements(post) == []


def test_the_quickstart_is_accepted(cluster: Cluster, definitions: None) -> None:
    """As a user applies it."""
    said = cluster.kubectl.text("apply", "--server-side", "--dry-run=server", "-f", str(ROOT / "manifests/quickstart"))
    assert said.count("serverside-applied (server dry run)") == 5


@pytest.mark.rotating(3)
@pytest.mark.parametrize("traffic", ["chat", *RECOMMENDED_TRACES])
def test_what_recommend_answers_is_accepted_and_its_figures_come_again(
    cluster: Cluster, definitions: None, tmp_path: Path, traffic: str
) -> None:
    """The API server takes every manifest of the answer; `simulate` prints the answer's figures from them."""
    source = ("--workload", traffic)
    if traffic in RECOMMENDED_TRACES:
        if not (TRACES / traffic).exists():
            pytest.skip(f"needs {traffic} of ../shared/traces")
        source = ("--trace", str(TRACES / traffic))
    manifests, report, again = tmp_path / "recommended.yaml", tmp_path / "report.json", tmp_path / "again.json"
    asked = ("--budget", "a100=4,h20=8", "--slo", "ttft=2,tpot=0.05", "--limit", "60", "--seed", "0")
    _ballast("recommend", *source, *asked, "--output", str(manifests), "--json", str(report))
    kinds = [item["kind"] for item in yaml.safe_load_all(manifests.read_text())]
    assert kinds[-2:] == ["SchedulingPolicy", "ServingPool"]
    said = cluster.kubectl.text("apply", "--server-side", "--dry-run=server", "-f", str(manifests))
    assert said.count("serverside-applied (server dry run)") == len(kinds)

    (told,) = [line for line in manifests.read_text().splitlines() if line.startswith("# Again: ")]
    command = shlex.split(told.removeprefix("# Again: "))
    _ballast(*command[1:], "--json", str(again))
    (row,) = json.loads(again.read_text())
    best = json.loads(report.read_text())["candidates"][0]["runs"][0]
    for figure in ("requests", "attainment", "ttft_s", "tpot_s", "goodput_rps", "shape"):
        assert row[figure] == best[figure]


def _ballast(*arguments: str) -> None:
    """As a user. Status 1 says that the best that there is does not meet the SLO."""
    command = [str(Path(sys.executable).with_name("ballast")), *arguments]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ran.returncode in (0, 1), ran.stderr


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_kubectl_explain_knows_every_field(cluster: Cluster, definitions: None, kind: str) -> None:
    """Descriptions reach the user's terminal."""
    text = cluster.kubectl.text("explain", f"{KINDS[kind].plural}.spec", "--recursive=false")
    assert "DESCRIPTION" in text
    assert "<no description>" not in text
