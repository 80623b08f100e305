"""`ballast explain scaling POOL`: a ServingPool's decisions, read with kubectl's credentials."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.scaled_fleet import Fleet
from tests.support.store_server import served

BALLAST = Path(sys.executable).with_name("ballast")


def asked(kubeconfig: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own: the Kubernetes client reads KUBECONFIG once."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "BALLAST"))}
    return subprocess.run(
        [str(BALLAST), "explain", "scaling", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=kubeconfig.parent,
        timeout=60,
        env={**environment, "KUBECONFIG": str(kubeconfig), "COLUMNS": "200"},
    )


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Of a cluster with one ServingPool that has grown, in namespace `team`."""
    fleet = Fleet()
    fleet.rate_rps = 40.0
    fleet.round(12)
    with served(fleet.store) as url:
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": {}}],
        }
        path = tmp_path_factory.mktemp("kube") / "config.yaml"
        path.write_text(yaml.safe_dump(content))
        yield path


@pytest.mark.rotating(3)
def test_a_servingpools_decisions_are_printed_with_what_came_of_them(kubeconfig: Path) -> None:
    said = asked(kubeconfig, "chat")
    assert said.returncode == 0, said.stderr
    assert "ScaledUp at 2027-01-15T08:00:15Z" in said.stdout
    assert "from prefill 1P, decode 1D to prefill " in said.stdout
    assert "later: 40 requests/s came, 40 were forecast" in said.stdout
    assert said.stdout == asked(kubeconfig, "chat", "--namespace", "team").stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("other",), "namespace team holds no decision for a ServingPool other"),
        (("chat", "-n", "elsewhere"), "namespace elsewhere holds no decision for a ServingPool chat"),
        (("missing.json",), "missing.json: cannot be read"),
    ],
)
def test_where_there_is_no_decision_one_line_says_so(kubeconfig: Path, words: tuple[str, ...], problem: str) -> None:
    said = asked(kubeconfig, *words)
    assert (said.returncode, len(said.stderr.splitlines())) == (2, 1)
    assert problem in said.stderr


def test_without_a_cluster_one_line_says_so(tmp_path: Path) -> None:
    said = asked(tmp_path / "none.yaml", "chat")
    assert (said.returncode, len(said.stderr.splitlines())) == (2, 1)
    assert "no file is called chat, and the cluster was not read" in said.stderr
