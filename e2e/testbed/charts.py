"""Others' own charts, from the pinned Go modules that their programs are built from."""

import shutil
import subprocess
from pathlib import Path

from testbed import build
from testbed.errors import TestbedError

_ENVOY_GATEWAY = "github.com/envoyproxy/gateway"


def envoy_gateway_chart(target: Path, image: str, pull_policy: str = "IfNotPresent") -> Path:
    """Write the chart into the new folder `target`, for `helm install`, and return it. It brings the Gateway API CRDs.

    The sources hold a template of values.yaml with the image and its pull policy left open. Raises TestbedError.
    """
    source = _module_folder("envoy-gateway", _ENVOY_GATEWAY) / "charts" / "gateway-helm"
    # Files of Go's module cache are read-only, and so would the copies be.
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    for folder in (target, *(path for path in target.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    values = (source / "values.tmpl.yaml").read_text()
    for name, value in (("GatewayImage", image), ("GatewayImagePullPolicy", pull_policy)):
        if f"${{{name}}}" not in values:
            raise TestbedError(f"{_ENVOY_GATEWAY}'s values.tmpl.yaml has no {name} any more; adapt testbed.charts")
        values = values.replace(f"${{{name}}}", value)
    (target / "values.yaml").write_text(values)
    return target


def leader_worker_set_chart() -> Path:
    """The chart of LeaderWorkerSet's controller, which brings the CRD. Raises TestbedError."""
    return _module_folder("leader-worker-set", "sigs.k8s.io/lws") / "charts" / "lws"


def _module_folder(pinned_in: str, module: str) -> Path:
    """Sources of a module that a folder under `go/` pins."""
    where = ("list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module)
    folder = _go(pinned_in, *where)
    if not folder:
        # The build cache may outlive the module cache.
        _go(pinned_in, "mod", "download", module)
        folder = _go(pinned_in, *where)
    return Path(folder)


def _go(pinned_in: str, *arguments: str) -> str:
    try:
        result = subprocess.run(
            ["go", *arguments], cwd=build.GO_ROOT / pinned_in, capture_output=True, text=True, check=True
        )
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise TestbedError(f"cannot find the chart in Go's module cache: {error}") from error
    return result.stdout.strip()
