"""Fixtures of the scenarios. They run on any cluster that KUBECONFIG names: `make e2e` starts one, without Docker."""

import os
import re
import secrets
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from kit import Cluster, Kubectl
from kit.diagnostics import describe
from kit.release import Release, install

_ARTIFACTS = Path(__file__).resolve().parents[1] / ".cache" / "e2e"
_REPORTS = pytest.StashKey[dict[str, pytest.TestReport]]()
_DIAGNOSTICS = pytest.StashKey[str]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep each phase's report, so that fixtures know at their end whether the test failed."""
    report = yield
    item.stash.setdefault(_REPORTS, {})[report.when] = report
    diagnostics = item.stash.get(_DIAGNOSTICS, None)
    if report.when == "teardown" and diagnostics:
        report.sections.append(("cluster", diagnostics))
    return report


def _missing(reason: str) -> None:
    """No cluster is a reason to skip on a user's machine, and a failure in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    """The cluster that KUBECONFIG names."""
    found = Cluster.from_environment()
    if found is None:
        _missing("no KUBECONFIG; `make e2e` starts a cluster and runs the scenarios in it")
    assert found is not None
    for program in ("kubectl", "helm"):
        if shutil.which(program) is None:
            _missing(f"{program} is not on PATH; `make testbed-build` builds it")
    return found


@pytest.fixture(scope="session")
def release(cluster: Cluster) -> Iterator[Release]:
    """Ballast on the cluster, by its chart; removed at the end, its CRDs too."""
    installed = install(cluster)
    yield installed
    installed.uninstall()


def _fresh_namespace(cluster: Cluster) -> str:
    name = f"e2e-{secrets.token_hex(4)}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted", "serving.ballast.dev/e2e": "true"}
    cluster.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    return name


def _remove_namespace(cluster: Cluster, name: str) -> None:
    """Pods go first and at once: a namespace with pods of a long grace period looks again only after half of it.

    ReplicaSets go with their Deployments: the garbage collector, which pauses while CRDs come and go, may be too late
    to keep them from making such pods anew.
    """
    kubectl = cluster.kubectl.within(name)
    for kind in ("servingpools.serving.ballast.dev", "deployments,jobs", "replicasets"):
        kubectl.run("delete", kind, "--all", "--wait=false", check=False)
    kubectl.run("delete", "pods", "--all", "--now", "--timeout=60s", timeout_s=70, check=False)
    cluster.kubectl.delete("namespace", name)


@pytest.fixture(scope="module")
def module_namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """Like `namespace`, for the tests of one module together."""
    name = _fresh_namespace(cluster)
    failures = request.session.testsfailed
    yield name
    if request.session.testsfailed > failures:
        _keep_diagnostics(cluster.kubectl.within(name), request.node)
    _remove_namespace(cluster, name)


@pytest.fixture
def namespace(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A fresh namespace with Pod Security "restricted", deleted at the end; a failed test's logs are kept."""
    name = _fresh_namespace(cluster)
    yield name
    kubectl = cluster.kubectl.within(name)
    reports = request.node.stash.get(_REPORTS, {})
    if any(report.failed for report in reports.values()):
        _keep_diagnostics(kubectl, request.node)
    _remove_namespace(cluster, name)


@pytest.fixture
def kubectl(cluster: Cluster, namespace: str) -> Kubectl:
    """kubectl in the test's own namespace."""
    return cluster.kubectl.within(namespace)


def _keep_diagnostics(kubectl: Kubectl, item: pytest.Item | pytest.Collector) -> None:
    text = describe(kubectl)
    _ARTIFACTS.mkdir(parents=True, exist_ok=True)
    target = _ARTIFACTS / (re.sub(r"[^A-Za-z0-9._-]+", "-", item.nodeid) + ".txt")
    target.write_text(text)
    item.stash[_DIAGNOSTICS] = f"kept in {target}\n{text[-6000:]}"
