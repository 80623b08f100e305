"""Charts of Envoy Gateway and of LeaderWorkerSet, from the pinned Go modules that their programs are built from."""

import shutil
import subprocess
from pathlib import Path

from testbed import build
from testbed.errors import TestbedError

_MODULE = "github.com/envoyproxy/gateway"
_LWS_MODULE = "sigs.k8s.io/lws"


def envoy_gateway_chart(target: Path, image: str, pull_policy: str = "IfNotPresent") -> Path:
    """Write the chart into the new folder `target`, for `helm install`, and return it. It brings the Gateway API CRDs.

    The sources hold a template of values.yaml with the image and its pull policy left open. Raises TestbedError.
    """
    source = _module_folder("envoy-gateway", _MODULE) / "charts" / "gateway-helm"
    _copy(source, target)
    values = (source / "values.tmpl.yaml").read_text()
    for name, value in (("GatewayImage", image), ("GatewayImagePullPolicy", pull_policy)):
        if f"${{{name}}}" not in values:
            raise TestbedError(f"{_MODULE}'s values.tmpl.yaml has no {name} any more; adapt testbed.charts")
        values = values.replace(f"${{{name}}}", value)
    (target / "values.yaml").write_text(values)
    return target


def lws_chart(target: Path) -> Path:
    """As `envoy_gateway_chart`, of the LeaderWorkerSet controller; its values set the image. It brings its CRD."""
    return _copy(_module_folder("lws", _LWS_MODULE) / "charts" / "lws", target)


def _copy(source: Path, target: Path) -> Path:
    # Files of Go's module cache are read-only, and so would the copies be.
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    for folder in (target, *(path for path in target.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    return target


def _module_folder(pins: str, module: str) -> Path:
    """Where Go keeps the sources of a module that `go/PINS` requires."""
    look_up = ("list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module)
    folder = _go(pins, *look_up)
    if not folder:
        # The build cache may outlive the module cache.
        _go(pins, "mod", "download", module)
        folder = _go(pins, *look_up)
    return Path(folder)


def _go(pins: str, *arguments: str) -> str:
    try:
        result = subprocess.run(
            ["go", *arguments], cwd=build.GO_ROOT / pins, capture_output=True, text=True, check=True
        )
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        raise TestbedError(f"cannot find the chart in Go's module cache: {error}") from error
    return result.stdout.strip()
