"""What happened in a namespace, for the report of a failed scenario."""

from kit.commands import Kubectl

_LOG_LINES = 200


def describe(kubectl: Kubectl) -> str:
    """Objects, events and logs of kubectl's namespace; never raises for what cannot be had."""
    parts = [
        _section(kubectl, "get", "all,configmaps,poddisruptionbudgets", "-o", "wide"),
        _section(kubectl, "get", "events", "--sort-by=.lastTimestamp"),
    ]
    pods = kubectl.run("get", "pods", "-o", "name", check=False).stdout.split()
    for pod in pods:
        parts.append(_section(kubectl, "describe", pod))
        parts.append(_section(kubectl, "logs", pod, "--all-containers", "--prefix", f"--tail={_LOG_LINES}"))
        parts.append(_section(kubectl, "logs", pod, "--all-containers", "--previous", f"--tail={_LOG_LINES}"))
    return "\n".join(part for part in parts if part)


def _section(kubectl: Kubectl, *arguments: str) -> str:
    result = kubectl.run(*arguments, check=False)
    # A container that never restarted has no previous log: an error there is no news.
    text = result.stdout if "--previous" in arguments else result.stdout + result.stderr
    return f"--- kubectl {' '.join(arguments)}\n{text}" if text.strip() else ""
