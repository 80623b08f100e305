"""How logs name objects: in words for people, in fields for log stores (`--log-format json`)."""

from __future__ import annotations

from ballast_operator.kinds import Manifest


def reference(manifest: Manifest) -> str:
    """`Deployment team/chat-decode`; cluster-scoped objects have no namespace."""
    metadata = manifest["metadata"]
    where = f"{metadata['namespace']}/" if "namespace" in metadata else ""
    return f"{manifest['kind']} {where}{metadata['name']}"


def log_fields(manifest: Manifest, **more: str) -> dict[str, str]:
    """Fields of a log line about an object."""
    metadata = manifest["metadata"]
    return {
        "object_kind": manifest["kind"],
        "object_namespace": metadata.get("namespace", ""),
        "object_name": metadata["name"],
        **more,
    }
