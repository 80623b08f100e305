"""Debian packages that the cluster and the image builder run on."""

import dataclasses
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from testbed.errors import TestbedError


@dataclasses.dataclass(frozen=True, slots=True)
class Package:
    """A Debian package and one file of it that shows that it is installed."""

    name: str
    shows: str


PACKAGES = (
    Package("etcd-server", "etcd"),
    Package("containerd", "containerd"),
    Package("runc", "runc"),
    Package("containernetworking-plugins", "/usr/lib/cni/ptp"),
    Package("conntrack", "conntrack"),
    Package("nftables", "nft"),
    Package("iptables", "iptables"),
    Package("ipset", "ipset"),
    Package("iproute2", "ip"),
    Package("openssl", "openssl"),
    Package("util-linux", "unshare"),
    Package("procps", "sysctl"),
    Package("buildah", "buildah"),
    Package("debootstrap", "debootstrap"),
    Package("prometheus", "promtool"),
)

# Debian keeps administrators' programs where a user's PATH may not look.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", "/usr/local/sbin"])


def find_program(name: str) -> str:
    """Absolute path of a program; raises TestbedError that says how to install it."""
    found = shutil.which(name, path=SEARCH_PATH)
    if found is None:
        raise TestbedError(
            f"{name} is not installed; run `make testbed-build` as root on Debian, or use `make e2e-kind`"
        )
    return found


def missing_packages() -> list[str]:
    """Names of the packages that are not installed."""
    return [
        package.name
        for package in PACKAGES
        if not (
            Path(package.shows).exists()
            if package.shows.startswith("/")
            else shutil.which(package.shows, path=SEARCH_PATH)
        )
    ]


LOCK_WAIT_S = 600.0
"""How long another apt may run before this one gives up."""
LOCK_POLL_S = 2.0


def _run(command: list[str], environment: dict[str, str], say: Callable[[str], None]) -> None:
    """apt waits by itself for dpkg's lock alone; the lock of its lists is asked for again here."""
    until = time.monotonic() + LOCK_WAIT_S
    waits = False
    while True:
        argv = [command[0], "-o", f"DPkg::Lock::Timeout={LOCK_WAIT_S:.0f}", *command[1:]]
        result = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        if not result.returncode:
            return
        if "Could not get lock" not in result.stderr or time.monotonic() > until:
            raise TestbedError(f"{' '.join(command)} failed:\n{result.stderr.strip()[-2000:]}")
        if not waits:
            say("    another apt runs; waiting for it")
        waits = True
        time.sleep(LOCK_POLL_S)


def install(say: Callable[[str], None]) -> None:
    """Install what is missing with apt-get, starting no service. Raises TestbedError when that is not possible."""
    absent = missing_packages()
    if not absent:
        return
    wanted = " ".join(absent)
    if shutil.which("apt-get") is None:
        raise TestbedError(f"this is not Debian or Ubuntu: install {wanted} by hand, or use `make e2e-kind`")
    if os.geteuid() != 0:
        raise TestbedError(f"missing packages: run `sudo apt-get install --no-install-recommends {wanted}`")
    say(f"==> installing {wanted}")
    # RUNLEVEL=1 and systemd's offline switch keep packages from starting their services.
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1", "SYSTEMD_OFFLINE": "1"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *absent],
    ):
        _run(command, environment, say)
    still = missing_packages()
    if still:
        raise TestbedError(f"apt-get installed nothing usable for {' '.join(still)}")
