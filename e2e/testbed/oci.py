"""An image from a folder, as an OCI archive, without any builder: for single static programs such as pause."""

import dataclasses
import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclasses.dataclass(frozen=True, slots=True)
class LayerFile:
    """A file (with `content`) or a folder (None) in the image, owned by root."""

    path: str
    mode: int
    content: bytes | None = None


def _member(name: str, mode: int, size: int = 0, folder: bool = False) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode, info.size, info.mtime = mode, size, 0
    info.type = tarfile.DIRTYPE if folder else tarfile.REGTYPE
    return info


def layer(files: Sequence[LayerFile]) -> bytes:
    """A tar of the files; the same files give the same bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for file in files:
            data = file.content or b""
            tar.addfile(_member(file.path.lstrip("/"), file.mode, len(data), file.content is None), io.BytesIO(data))
    return buffer.getvalue()


def write_archive(
    target: Path, name: str, files: Sequence[LayerFile], entrypoint: Sequence[str], user: str = "65532"
) -> None:
    """Write an archive that `ctr images import` reads (OCI image layout, one layer) under the image's full name."""
    blobs: dict[str, bytes] = {}

    def add(data: bytes, media_type: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": f"application/vnd.oci.image.{media_type}", "digest": f"sha256:{digest}", "size": len(data)}

    layer_descriptor = add(layer(files), "layer.v1.tar")
    config = {
        "architecture": _architecture(),
        "os": "linux",
        "config": {"Entrypoint": list(entrypoint), "Env": [_PATH], "User": user},
        "rootfs": {"type": "layers", "diff_ids": [layer_descriptor["digest"]]},
    }
    config_descriptor = add(json.dumps(config).encode(), "config.v1+json")
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config_descriptor,
        "layers": [layer_descriptor],
    }
    manifest_descriptor = add(json.dumps(manifest).encode(), "manifest.v1+json")
    names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rsplit(":", 1)[-1]}
    index = {"schemaVersion": 2, "manifests": [{**manifest_descriptor, "annotations": names}]}
    members = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode()}
    members.update({f"blobs/sha256/{digest}": data for digest, data in blobs.items()})
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_suffix(".partial")
    with tarfile.open(scratch, "w") as tar:
        for path, data in members.items():
            tar.addfile(_member(path, 0o644, len(data)), io.BytesIO(data))
    scratch.replace(target)


def _architecture() -> str:
    import platform

    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
