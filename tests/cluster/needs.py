"""What a machine needs for a cluster with a real node, and what this one lacks."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from tests.plane.control_plane import tools

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


def lacks() -> tuple[str, ...]:
    """Return what is missing here, each as something that one can do; empty if nothing is."""
    if sys.platform != "linux":
        return ("a Linux machine: namespaces and cgroups are its own",)
    missing = [] if os.geteuid() == 0 else ["root: run it with sudo"]
    packages = [
        package
        for package, programs in PACKAGES.items()
        if any(shutil.which(program) is None for program in programs)
    ]
    if not (PLUGINS / "bridge").exists():
        packages.append("containernetworking-plugins")
    if packages:
        missing.append(f"Debian's packages: apt install {' '.join(sorted(packages))}")
    if "overlay" not in Path("/proc/filesystems").read_text("utf-8"):
        missing.append("overlayfs in the kernel: modprobe overlay")
    if tools() is None:
        missing.append("Kubernetes: make cluster-tools")
    return tuple(missing)
