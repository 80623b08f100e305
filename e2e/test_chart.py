"""The chart by real Helm: lint, render, refuse nonsense, install, upgrade itself and its CRDs."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
import yaml

from kit import Cluster, CommandError, wait_until
from kit.release import CHART, NAMESPACE, Release

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

CRD = "servingpools.serving.ballast.dev"
NEW_WORDS = "GPUs that all instances together may use"


def test_lint_finds_nothing(cluster: Cluster) -> None:
    """`helm lint --strict`."""
    said = cluster.helm.run("lint", "--strict", str(CHART)).stdout
    assert "1 chart(s) linted, 0 chart(s) failed" in said


def test_templates_render_to_objects_that_the_api_server_takes(cluster: Cluster, release: Release) -> None:
    """A server-side dry run of every rendered object, in a namespace that enforces Pod Security "restricted"."""
    text = cluster.helm.within(NAMESPACE).run("template", "other", str(CHART), "--set=crds.enabled=false").stdout
    kinds = {document["kind"] for document in yaml.safe_load_all(text) if document}
    assert {"Deployment", "ServiceAccount", "ClusterRole", "ClusterRoleBinding"} <= kinds
    result = release.kubectl.run("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=text)
    assert "would violate PodSecurity" not in result.stderr


@pytest.mark.parametrize(("value", "off"), [("true", False), ("false", True)])
def test_network_policies_can_be_left_to_the_administrator(cluster: Cluster, value: str, off: bool) -> None:
    """The operator is told so by its command line."""
    text = cluster.helm.run("template", "ballast", str(CHART), "--set", f"networkPolicies={value}").stdout
    assert ("--no-network-policies" in text) is off


def test_who_may_reach_the_admin_port_reaches_the_operator(cluster: Cluster) -> None:
    """As one argument, and the operator itself is among them."""
    peers = '[{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]'
    values = ("--namespace", "here", f"--set-json=gateway.adminFrom={peers}")
    documents = yaml.safe_load_all(cluster.helm.run("template", "ballast", str(CHART), *values).stdout)
    (operator,) = [each for each in documents if each and each["kind"] == "Deployment"]
    (given,) = [
        each.partition("=")[2]
        for each in operator["spec"]["template"]["spec"]["containers"][0]["args"]
        if each.startswith("--gateway-admin-from=")
    ]
    named, own = json.loads(given)
    assert named == json.loads(peers)[0]
    assert own["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "here"}
    assert own["podSelector"]["matchLabels"].items() <= operator["spec"]["template"]["metadata"]["labels"].items()


_APIS = ("monitoring.coreos.com/v1/PodMonitor", "monitoring.coreos.com/v1/PrometheusRule")
_GRAFANA = "grafana.integreatly.org/v1beta1/GrafanaDashboard"


@pytest.mark.parametrize("apis", [(), (*_APIS, _GRAFANA)], ids=["plain", "operators"])
def test_what_is_observed_with_is_there_where_its_apis_are(cluster: Cluster, apis: tuple[str, ...]) -> None:
    """Dashboards always; PodMonitors in place of annotations, rules and GrafanaDashboards where those kinds are."""
    values = (
        "--set=crds.enabled=false",
        "--set=monitoring.runbooks=https://wiki/ballast",
        *(f"-a={api}" for api in apis),
    )
    text = cluster.helm.run("template", "ballast", str(CHART), *values).stdout
    objects = [each for each in yaml.safe_load_all(text) if each]
    boards = [each for each in objects if each["metadata"].get("labels", {}).get("grafana_dashboard") == "1"]
    assert [json.loads(body)["tags"] for each in boards for body in each["data"].values()] == [["ballast"]] * 5
    kinds = Counter(each["kind"] for each in objects)
    wanted = {"PodMonitor": 2, "PrometheusRule": 1, "GrafanaDashboard": 5} if apis else {}
    assert {kind: kinds[kind] for kind in ("PodMonitor", "PrometheusRule", "GrafanaDashboard")} == {
        "PodMonitor": 0, "PrometheusRule": 0, "GrafanaDashboard": 0, **wanted,
    }  # fmt: skip
    assert ("--gateway-scrape-annotations" in text) is not bool(apis)
    assert ("prometheus.io/scrape" in text) is not bool(apis)
    for each in objects:
        if each["kind"] == "PrometheusRule":
            (_, alerts) = each["spec"]["groups"]
            urls = [rule["annotations"]["runbook_url"] for rule in alerts["rules"]]
            assert all(url.startswith("https://wiki/ballast#ballast") for url in urls)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("logLevel=loud", "logLevel"),
        ("image.pullPolicy=Sometimes", "pullPolicy"),
        ("watchNamespace=default", "watchNamespace"),
        ("crds.keep=maybe", "keep"),
    ],
    ids=lambda value: str(value).split("=", maxsplit=1)[0],
)
def test_values_that_make_no_sense_are_refused_by_name(cluster: Cluster, setting: str, named: str) -> None:
    """values.schema.json: unknown keys and wrong values, with the key in the message."""
    with pytest.raises(CommandError) as caught:
        cluster.helm.run("template", "ballast", str(CHART), "--set", setting)
    assert named in caught.value.stderr


def test_an_upgrade_brings_new_settings_and_newer_crds(release: Release, tmp_path: Path) -> None:
    """From an older chart: the operator changes and the CRD too, which Helm would not do for its own `crds/` folder."""
    older = shutil.copytree(CHART, tmp_path / "ballast")
    (template,) = older.glob("templates/crds/*servingpools.yaml")
    text = template.read_text()
    assert NEW_WORDS in text
    template.write_text(text.replace(NEW_WORDS, "As an older chart had it."))
    release.upgrade(chart=older)
    assert "As an older chart had it." in release.kubectl.text("get", "crd", CRD, "-o", "json")
    release.upgrade("logLevel=debug", "podLabels.upgraded=once")
    deployment = release.kubectl.get("deployment", "ballast")
    assert deployment["spec"]["template"]["metadata"]["labels"]["upgraded"] == "once"
    now = release.kubectl.text("get", "crd", CRD, "-o", "json")
    assert NEW_WORDS in now
    assert "As an older chart had it." not in now
    release.upgrade()


def test_of_two_operators_one_works_and_the_other_takes_over(release: Release) -> None:
    """The Lease names the one that works; when its pod goes, the other one's name is there."""
    kubectl, pods = release.kubectl, "app.kubernetes.io/component=operator"

    def holder() -> str:
        held = str(kubectl.get("lease", "ballast")["spec"].get("holderIdentity") or "")
        return held.partition("_")[0]

    release.upgrade("replicas=2")
    kubectl.rollout("deployment/ballast")
    wait_until(lambda: len(kubectl.items("pods", pods)) == 2, 60, "two operators run")
    names = {pod["metadata"]["name"] for pod in kubectl.items("pods", pods)}
    wait_until(lambda: holder() in names, 60, "one of them leads")
    first = holder()
    (other,) = names - {first}
    assert "this operator leads" not in kubectl.logs(f"pod/{other}")
    kubectl.delete("pod", first)
    wait_until(lambda: holder() not in ("", first), 60, "another one leads")
    assert "this operator leads" in kubectl.logs(f"pod/{holder()}")
    release.upgrade()


def test_kubernetes_own_roles_reach_our_resources(release: Release, module_namespace: str) -> None:
    """Who may edit a namespace may edit its ServingPools; who may view it may see them."""
    kubectl = release.cluster.kubectl.within(module_namespace)
    for role in ("view", "edit", "admin"):
        kubectl.run("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}")
    expected = {
        ("view", "get"): "yes",
        ("view", "create"): "no",
        ("edit", "patch"): "yes",
        ("admin", "delete"): "yes",
    }
    for (role, verb), answer in expected.items():

        def answered(role: str = role, verb: str = verb, answer: str = answer) -> bool:
            kinds = ("servingpools", "schedulingpolicies", "servicelevelobjectives")
            said = {kubectl.run("auth", "can-i", verb, kind, f"--as={role}", check=False).stdout for kind in kinds}
            return {each.strip() for each in said} == {answer}

        wait_until(answered, 30, f"{role} may {verb}: {answer}")


def test_the_operator_may_do_no_more_than_it_needs(release: Release) -> None:
    """Its ServiceAccount cannot look for Secrets, run commands in pods, or grant itself more."""
    subject = f"--as=system:serviceaccount:{NAMESPACE}:ballast"
    for verb, kind in (
        ("list", "secrets"),
        ("watch", "secrets"),
        ("delete", "secrets"),
        ("create", "pods/exec"),
        ("create", "clusterroles"),
        ("delete", "nodes"),
    ):
        answer = release.kubectl.run("auth", "can-i", verb, kind, subject, "--all-namespaces", check=False)
        assert answer.stdout.strip() == "no", (verb, kind)
    answer = release.kubectl.run("auth", "can-i", "patch", "deployments", subject, "--all-namespaces", check=False)
    assert answer.stdout.strip() == "yes"
