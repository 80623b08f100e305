"""kubectl and helm, as the user has them."""

import dataclasses
import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

Manifest = Mapping[str, Any]


class CommandError(Exception):
    """A command that failed: its exit status and what it said."""

    def __init__(self, argv: Sequence[str], status: int, stdout: str, stderr: str) -> None:
        super().__init__(f"{' '.join(argv)} ended with {status}: {stderr.strip() or stdout.strip()}"[:4000])
        self.status = status
        self.stdout = stdout
        self.stderr = stderr


def _run(
    argv: Sequence[str], kubeconfig: Path, stdin: str | None, timeout_s: float, check: bool
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    result = subprocess.run(
        argv, input=stdin, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )
    if check and result.returncode:
        raise CommandError(argv, result.returncode, result.stdout, result.stderr)
    return result


@dataclasses.dataclass(frozen=True, slots=True)
class Kubectl:
    """kubectl with a kubeconfig and, where given, a namespace."""

    kubeconfig: Path
    namespace: str | None = None

    def within(self, namespace: str) -> Self:
        """The same for one namespace."""
        return dataclasses.replace(self, namespace=namespace)

    def with_token(self, service_account: str, folder: Path) -> Self:
        """kubectl with a real token of a ServiceAccount of this namespace, and nothing of the administrator's.

        Its kubeconfig is written into `folder`.
        """
        token = self.text("create", "token", service_account, "--duration=1h").strip()
        config: dict[str, Any] = json.loads(self.text("config", "view", "--minify", "--raw", "-o", "json"))
        config["users"] = [{"name": config["contexts"][0]["context"]["user"], "user": {"token": token}}]
        path = folder / f"{service_account}.kubeconfig"
        path.write_text(json.dumps(config))
        return dataclasses.replace(self, kubeconfig=path)

    def run(
        self, *arguments: str, stdin: str | None = None, timeout_s: float = 60.0, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl; raises CommandError when it fails and `check` is set."""
        return _run(self.argv(*arguments), self.kubeconfig, stdin, timeout_s, check)

    def argv(self, *arguments: str) -> list[str]:
        """The command line, for a scenario that starts a process of its own. KUBECONFIG must be set for it."""
        scope = ["--namespace", self.namespace] if self.namespace else []
        return ["kubectl", *scope, *arguments]

    def text(self, *arguments: str, timeout_s: float = 60.0) -> str:
        """Standard output of a call that must succeed."""
        return self.run(*arguments, timeout_s=timeout_s).stdout

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """One object; raises CommandError when it is not there."""
        found: dict[str, Any] = json.loads(self.text("get", kind, name, "-o", "json"))
        return found

    def find(self, kind: str, name: str) -> dict[str, Any] | None:
        """One object, or None when it is not there."""
        text = self.text("get", kind, name, "-o", "json", "--ignore-not-found")
        found: dict[str, Any] | None = json.loads(text) if text.strip() else None
        return found

    def items(self, kind: str, selector: str | None = None) -> list[dict[str, Any]]:
        """All objects of a kind (or several, comma-separated), by label selector where given."""
        chosen = ["--selector", selector] if selector else []
        found: list[dict[str, Any]] = json.loads(self.text("get", kind, *chosen, "-o", "json"))["items"]
        return found

    def items_everywhere(self, kind: str) -> list[dict[str, Any]]:
        """The objects of a kind in all namespaces."""
        found: list[dict[str, Any]] = json.loads(self.text("get", kind, "--all-namespaces", "-o", "json"))["items"]
        return found

    def apply(self, *manifests: Manifest | str, server_side: bool = True) -> str:
        """Apply objects (as mappings, or YAML text); returns what kubectl said."""
        mode = ["--server-side", "--force-conflicts"] if server_side else []
        said = [
            self.run("apply", *mode, "-f", "-", stdin=m if isinstance(m, str) else json.dumps(m)).stdout
            for m in manifests
        ]
        return "".join(said)

    def patch(self, kind: str, name: str, body: Manifest, *arguments: str) -> dict[str, Any]:
        """Merge-patch an object; returns the new one."""
        text = self.text("patch", kind, name, "--type=merge", "-p", json.dumps(body), "-o", "json", *arguments)
        patched: dict[str, Any] = json.loads(text)
        return patched

    def delete(self, kind: str, name: str, timeout_s: float = 120.0) -> None:
        """Delete an object and wait until it is gone; fine when it is not there."""
        self.run("delete", kind, name, "--ignore-not-found", f"--timeout={timeout_s:.0f}s", timeout_s=timeout_s + 10)

    def delete_named(self, kind: str, name: str) -> None:
        """Delete an object that a ServingPool may name: the chart's admission policy is told to let it go."""
        if self.find(kind, name) is not None:
            self.text("annotate", kind, name, "--overwrite", "serving.ballast.dev/allow-deletion=true")
            self.delete(kind, name)

    def exec(self, target: str, *command: str, stdin: str | None = None, timeout_s: float = 60.0) -> str:
        """Output of a command in a pod (`pod/NAME`, `deploy/NAME`)."""
        extra = ["--stdin"] if stdin is not None else []
        return self.run("exec", *extra, target, "--", *command, stdin=stdin, timeout_s=timeout_s).stdout

    def logs(self, target: str, *arguments: str) -> str:
        """Log of a pod or of a workload's first pod."""
        return self.text("logs", target, *arguments)

    def rollout(self, target: str, timeout_s: float = 120.0) -> None:
        """Wait until a workload has rolled out."""
        self.run("rollout", "status", target, f"--timeout={timeout_s:.0f}s", timeout_s=timeout_s + 10)


@dataclasses.dataclass(frozen=True, slots=True)
class Helm:
    """Helm with a kubeconfig and, where given, a namespace."""

    kubeconfig: Path
    namespace: str | None = None

    def within(self, namespace: str) -> Self:
        """The same for one namespace."""
        return dataclasses.replace(self, namespace=namespace)

    def run(self, *arguments: str, timeout_s: float = 180.0, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run helm; raises CommandError when it fails and `check` is set."""
        scope = ["--namespace", self.namespace] if self.namespace else []
        return _run(["helm", *scope, *arguments], self.kubeconfig, None, timeout_s, check)
