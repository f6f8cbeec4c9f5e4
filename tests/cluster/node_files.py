"""The files that a node's programs read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from tests.cluster.names import DOMAIN
from tests.cluster.needs import PLUGINS


def network(folder: Path, *, pods: str) -> Path:
    """Write the network of pods: a bridge on which the node is the gateway; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    leases = {"type": "host-local", "dataDir": str(folder / "leases")}
    bridge: dict[str, Any] = {
        "type": "bridge",
        "bridge": "pods",
        "isGateway": True,
        "hairpinMode": True,
        "ipam": {**leases, "ranges": [[{"subnet": pods}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    conflist = {"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, ports]}
    (folder / "10-pods.conflist").write_text(json.dumps(conflist), "utf-8")
    return folder


def containerd(folder: Path, *, socket: Path, network: Path, pause: str) -> Path:
    """Write containerd's configuration and return it."""
    text = f"""\
version = 2
root = "{folder / "containerd" / "root"}"
state = "{folder / "containerd" / "state"}"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs"]

[grpc]
address = "{socket}"

[plugins."io.containerd.internal.v1.opt"]
path = "{folder / "containerd" / "opt"}"

[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
disable_apparmor = true
restrict_oom_score_adj = true

[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{PLUGINS}"
conf_dir = "{network}"

[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"""
    file = folder / "containerd.toml"
    file.write_text(text, "utf-8")
    return file


def kubelet(
    folder: Path,
    *,
    socket: Path,
    certificate: Path,
    key: Path,
    authority: Path,
    cgroup: str,
    names: str,
) -> Path:
    """Write the kubelet's configuration and return it."""
    body = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "0.0.0.0",  # of the namespace
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(certificate),
        "tlsPrivateKeyFile": str(key),
        "containerRuntimeEndpoint": f"unix://{socket}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "enforceNodeAllocatable": ["pods"],
        "failCgroupV1": False,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        # images are loaded once; a full disk is the machine's, and no reason to delete them
        "evictionHard": {"memory.available": "64Mi"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "clusterDNS": [names],
        "clusterDomain": DOMAIN,
        "resolvConf": "",
        "syncFrequency": "10s",
        "nodeStatusUpdateFrequency": "2s",
        "podLogsDir": str(folder / "pod-logs"),
        "volumePluginDir": str(folder / "kubelet-volume-plugins"),
    }
    file = folder / "kubelet.yaml"
    file.write_text(yaml.safe_dump(body), "utf-8")
    return file
