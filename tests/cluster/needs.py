"""What a machine needs for a cluster with a real node, and what this one lacks."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.cluster.namespace import Namespace
from tests.plane.control_plane import Failed, tools

PACKAGES = {
    "buildah": ("buildah",),
    "conntrack": ("conntrack",),
    "containerd": ("containerd", "ctr"),
    "debootstrap": ("debootstrap",),
    "gcc": ("cc",),
    "iproute2": ("ip",),
    "iptables": ("iptables",),
    "runc": ("runc",),
    "util-linux": ("nsenter", "setpriv", "unshare"),
}
"""Debian's packages and the programs that are used of each."""
PLUGINS = Path("/usr/lib/cni")
"""Where Debian's containernetworking-plugins lie."""
FILES = {
    "containernetworking-plugins": PLUGINS / "bridge",
    "libc6-dev": Path("/usr/include/stdio.h"),
}
"""Packages without programs, and a file of each."""


def lacks() -> tuple[str, ...]:
    """Return what is missing here, each as something that one can do; empty if nothing is."""
    if sys.platform != "linux":
        return ("a Linux machine: namespaces and cgroups are its own",)
    missing = [] if os.geteuid() == 0 else ["root: run it with sudo"]
    packages = missing_packages()
    if packages:
        missing.append(f"Debian's packages: scripts/cluster-packages installs {' '.join(packages)}")
    if "overlay" not in Path("/proc/filesystems").read_text("utf-8"):
        missing.append("overlayfs in the kernel: modprobe overlay")
    if tools() is None:
        missing.append("Kubernetes: make cluster-tools")
    return tuple(missing) or _refused()


def missing_packages() -> tuple[str, ...]:
    """Return Debian's packages that are not installed here, by name."""
    packages = [
        package
        for package, programs in PACKAGES.items()
        if any(shutil.which(program) is None for program in programs)
    ]
    packages += [package for package, file in FILES.items() if not file.exists()]
    return tuple(sorted(packages))


def _refused() -> tuple[str, ...]:
    """Try to make what a node lives in: root in a container often may not."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with Namespace(Path(folder)):
                return ()
        except (Failed, OSError) as error:
            return (f"namespaces, links and cgroups that root may make: {error}",)
