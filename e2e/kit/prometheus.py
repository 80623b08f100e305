"""A real Prometheus beside the cluster, which scrapes pods through the API server.

Debian's is built without Kubernetes' service discovery. So pods are found here, once, and handed to it as a file with
the very labels that the discovery gives: the relabelling of the shipped configuration works on them as in a cluster.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from ballast_cli.demo.ports import free_port
from kit.cluster import Cluster
from kit.waiting import wait_until

MANIFEST = Path(__file__).resolve().parents[2] / "manifests" / "monitoring" / "prometheus.yaml"
SCRAPES_EACH = "2s"


class Prometheus:
    """Debian's `prometheus` with the relabelling of `manifests/monitoring`, and these rules. A context manager."""

    def __init__(self, cluster: Cluster, folder: Path, rules: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self._folder = folder
        self._rules = rules
        self._port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    @staticmethod
    def installed() -> bool:
        """Whether it is there."""
        return shutil.which("prometheus") is not None

    def __enter__(self) -> Self:
        proxy = free_port()
        self._run("proxy.log", *self._cluster.kubectl.argv("proxy", f"--port={proxy}", "--accept-hosts=.*"))
        (self._folder / "ballast-rules.yaml").write_text(yaml.safe_dump(dict(self._rules)))
        config = self._folder / "prometheus.yml"
        targets = self._folder / "targets.json"
        targets.write_text(json.dumps(_targets(self._cluster.kubectl.items_everywhere("pods"))))
        config.write_text(yaml.safe_dump(_through(proxy, targets)))
        self._run(
            "prometheus.log",
            "prometheus",
            f"--config.file={config}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        )
        wait_until(self._is_ready, 60, "Prometheus is ready")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def targets(self) -> dict[str, str]:
        """Pods that are scraped, with their health."""
        found = self._ask("targets", state="active")["activeTargets"]
        return {each["labels"]["pod"]: each["health"] for each in found}

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series that it gives now, without those that are no number."""
        found: list[dict[str, Any]] = self._ask("query", query=expression)["result"]
        return [each for each in found if not math.isnan(float(each["value"][1]))]

    def firing(self) -> dict[str, dict[str, str]]:
        """Alerts that fire now, with their labels."""
        found = self._ask("alerts")["alerts"]
        return {each["labels"]["alertname"]: each["labels"] for each in found if each["state"] == "firing"}

    def broken_rules(self) -> list[str]:
        """Rules whose evaluation failed, with the reason."""
        groups = self._ask("rules")["groups"]
        return [
            f"{rule['name']}: {rule['lastError']}" for each in groups for rule in each["rules"] if rule.get("lastError")
        ]

    def _ask(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            return json.load(answer)["data"]

    def _is_ready(self) -> bool:
        for process in self._processes:
            assert process.poll() is None, self._logs()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _logs(self) -> str:
        return "\n".join(path.read_text()[-3000:] for path in sorted(self._folder.glob("*.log")))

    def _run(self, log: str, *command: str) -> None:
        with (self._folder / log).open("wb") as out:
            environment = {**os.environ, "KUBECONFIG": str(self._cluster.kubeconfig)}
            self._processes.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out))


def _targets(pods: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What role `pod` of Kubernetes' service discovery gives: a target for each port of each container."""
    found = []
    for pod in pods:
        metadata, status = pod["metadata"], pod["status"]
        of_pod = {"namespace": metadata["namespace"], "pod_name": metadata["name"], "pod_phase": status["phase"]}
        for kind in ("label", "annotation"):
            of_pod |= {f"pod_{kind}_{_word(key)}": value for key, value in metadata.get(f"{kind}s", {}).items()}
        for container in pod["spec"]["containers"]:
            for port in container.get("ports", ()):
                number = str(port["containerPort"])
                labels = {**of_pod, "pod_container_port_number": number, "pod_container_init": "false"}
                named = {f"__meta_kubernetes_{key}": value for key, value in labels.items()}
                found.append({"targets": [f"{status.get('podIP', '')}:{number}"], "labels": named})
    return found


def _word(key: str) -> str:
    return re.sub(r"\W", "_", key)


def _through(proxy: int, targets: Path) -> dict[str, Any]:
    """The shipped configuration, quicker, with API server and pods behind `kubectl proxy` on this port."""
    config: dict[str, Any] = yaml.safe_load(MANIFEST.read_text())
    config["global"] = {"scrape_interval": SCRAPES_EACH, "evaluation_interval": SCRAPES_EACH}
    (job,) = config["scrape_configs"]
    del job["kubernetes_sd_configs"]
    job["file_sd_configs"] = [{"files": [str(targets)]}]
    pod = [f"__meta_kubernetes_{what}" for what in ("namespace", "pod_name", "pod_container_port_number")]
    path = "/api/v1/namespaces/$1/pods/$2:$3/proxy/metrics"
    job["relabel_configs"] += [
        {"source_labels": pod, "regex": "(.+);(.+);(.+)", "replacement": path, "target_label": "__metrics_path__"},
        {"source_labels": pod[:2], "regex": "(.+);(.+)", "replacement": "$1/$2", "target_label": "instance"},
        {"target_label": "__address__", "replacement": f"127.0.0.1:{proxy}"},
    ]
    return config
