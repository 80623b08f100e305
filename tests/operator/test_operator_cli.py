"""`ballast operator` without a cluster: an error in one line, and the end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kubernetes.config import kube_config
from typer.testing import CliRunner

from ballast_cli.main import app
from ballast_operator.api.api_failure import ApiFailure
from ballast_operator.api.cluster import load_credentials

BALLAST = Path(sys.executable).with_name("ballast")


def run(*arguments: str, kubeconfig: Path) -> subprocess.CompletedProcess[str]:
    """`ballast operator`, outside of any pod."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("KUBE", "BALLAST"))}
    return subprocess.run(
        [str(BALLAST), "operator", *arguments],
        env={**environment, "KUBECONFIG": str(kubeconfig), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_without_a_cluster_it_ends_with_one_line(tmp_path: Path) -> None:
    """No traceback, exit status 1."""
    path = tmp_path / "kubeconfig"
    path.write_text("[1, 2")
    result = run("--gateway-image", "image:1", kubeconfig=path)
    assert result.returncode == 1
    assert "no cluster to talk to" in result.stderr
    assert "KUBECONFIG" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("content", [None, "", "nonsense", "[1, 2", "{clusters: 3}"], ids=str)
def test_a_kubeconfig_that_is_no_use_is_named(
    content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Absent, empty or malformed, outside of any pod. The client reads KUBECONFIG once, when it is imported."""
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))
    with pytest.raises(ApiFailure, match="no cluster to talk to") as caught:
        load_credentials()
    assert "KUBECONFIG" in str(caught.value)


def test_the_gateways_image_must_be_given(tmp_path: Path) -> None:
    """The message names the option and the variable."""
    result = run(kubeconfig=tmp_path / "none")
    assert result.returncode == 2
    assert "--gateway-image" in result.stderr
    assert "BALLAST_GATEWAY_IMAGE" in result.stderr


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--gateway-image", "image 1", "must be one word without spaces, not 'image 1'"),
        ("--gateway-image-pull-secret", "a/b", "must be lower-case letters, digits, '-' and '.'"),
        ("--namespace", "A_B", "must be lower-case letters, digits and '-'"),
        ("--lease", "A_B/ballast", "must be lower-case letters, digits and '-'"),
        ("--metrics-port", "8080", "8080 is --health-port; give each its own"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name(option: str, value: str, said: str) -> None:
    """Before a cluster is looked for: else it would be met later, in a pod or in the API server's words."""
    result = CliRunner().invoke(app, ["operator", "--gateway-image", "image:1", option, value])
    assert result.exit_code == 2
    assert f"Invalid value for {option}: {said}" in result.stderr
