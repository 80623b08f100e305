"""What scenarios are written with: kubectl, helm, waiting and diagnostics. Fixtures are in e2e/conftest.py."""

from kit.cluster import Cluster, Images
from kit.commands import CommandError, Helm, Kubectl
from kit.waiting import wait_until

__all__ = ["Cluster", "CommandError", "Helm", "Images", "Kubectl", "wait_until"]
