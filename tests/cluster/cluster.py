"""A real Kubernetes with one real node, as processes of this machine.

The control plane is that of tests/plane; the node (containerd, runc, bridge, kube-proxy, kubelet)
lives in namespaces of its own. ``with Cluster(folder, programs) as cluster`` begins with a node
that is ready and offers accelerators that nothing stands behind; at the end nothing is left but the
folder. What is not like a production cluster: no network policies are enforced, and pods reach
nothing outside.
"""

from __future__ import annotations

import json
import signal
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from tests.cluster import node_files
from tests.cluster.access import Access
from tests.cluster.images import PAUSE, images
from tests.cluster.names import Names, finder
from tests.cluster.namespace import WITH_PARENT, Namespace
from tests.plane.control_plane import ControlPlane, Failed, Place

NODE = "node1"
GPUS = {"amd.com/gpu": "8"}
MODEL = {"amd.com/gpu.product-name": "MI300X"}
"""Labels of the node, as AMD's labeller writes them."""
_READY_S = 300.0


class Cluster(Access):
    """One cluster in one folder.

    Parameters
    ----------
    folder
        Empty and on a disk that overlayfs takes as its upper half: not itself an overlay.
    programs
        What `tests.plane.control_plane.tools` returns.
    """

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder.resolve()
        self.programs = programs
        self.node = Namespace(self.folder / "node")
        self._plane: ControlPlane | None = None
        self._names: Names | None = None

    @property
    def plane(self) -> ControlPlane:
        """The control plane, for kubeconfigs, kubectl and the audit log."""
        assert self._plane is not None, "asked before it was started"
        return self._plane

    @property
    def socket(self) -> Path:
        """Where containerd answers."""
        return self.folder / "containerd.sock"

    def __enter__(self) -> Self:
        try:
            self.node.__enter__()
            self._start_plane()
            self._start_names()
            self._start_containerd()
            self._start_proxy()
            self._start_kubelet()
            self._await_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the node, then the control plane."""
        try:
            self.node.close()
        finally:
            if self._names is not None:
                self._names.__exit__()
                self._names = None
            if self._plane is not None:
                # the API server would wait for answers to a node that is gone
                self._plane.stop(with_signal=signal.SIGKILL)

    # --- what a test does with it -----------------------------------------------------------------

    def load(self, archive: Path) -> None:
        """Give the node an image from a file; pods use it with ``imagePullPolicy: Never``."""
        self._ctr("images", "import", str(archive), within_s=600)

    def by_digest(self, image: str) -> str:
        """Return the name by digest of a loaded image, as if a registry had given it.

        Pods that name it so report this digest as what they run.
        """
        listed = self._ctr("images", "list", f"name=={image}").splitlines()[1:]
        (digest,) = {word for line in listed for word in line.split() if "sha256:" in word}
        name = f"{image.rpartition(':')[0]}@{digest}"
        self._ctr("images", "tag", "--force", image, name)
        return name

    def kill(self, pod: str, container: str, *, namespace: str) -> None:
        """Kill a container's first process from outside, as the kernel does for want of memory."""
        status = self.get("pod", pod, "-n", namespace)["status"]
        listed = [*status.get("initContainerStatuses", ()), *status["containerStatuses"]]
        (found,) = [each["containerID"] for each in listed if each["name"] == container]
        self._ctr("tasks", "kill", "--signal=SIGKILL", found.removeprefix("containerd://"))

    @contextmanager
    def without_kubelet(self) -> Iterator[None]:
        """Have no kubelet for a block; its pods go on, and who ends there stays ended."""
        self.node.stop("kubelet")
        try:
            yield
        finally:
            self._run_kubelet()

    # --- its parts --------------------------------------------------------------------------------

    def _start_plane(self) -> None:
        addresses = self.node.addresses
        place = Place(
            address=addresses.machine,
            services=addresses.services,
            first_service=addresses.first_service,
            kubelets=True,
            before=WITH_PARENT,
        )
        folder = self.folder / "plane"
        folder.mkdir()
        self._plane = ControlPlane(folder, self.programs, place=place)
        self._plane.__enter__()
        self.admin = self._plane.admin()

    def _start_names(self) -> None:
        pair = self.plane.authority.user("dns", groups=("system:masters",))
        context = ssl.create_default_context(cafile=str(self.plane.authority.certificate))
        context.load_cert_chain(pair.certificate, pair.key)
        find = finder(self.plane.url, context)
        self._names = Names(self.node.addresses.machine, find).__enter__()

    def _start_containerd(self) -> None:
        addresses = self.node.addresses
        network = node_files.network(self.folder / "cni", pods=addresses.pods)
        configuration = node_files.containerd(
            self.folder, socket=self.socket, network=network, pause=PAUSE
        )
        self.node.start("containerd", "containerd", f"--config={configuration}")
        self._await(lambda: self._answers("version"), "containerd")
        with images() as kept:
            pause = kept.pause()
        self.load(pause)

    def _start_proxy(self) -> None:
        kubeconfig = self.plane.kubeconfig("system:kube-proxy")
        self.node.start(
            "kube-proxy",
            str(self.programs / "kube-proxy"),
            f"--kubeconfig={kubeconfig}",
            "--proxy-mode=iptables",
            f"--cluster-cidr={self.node.addresses.pods}",
            f"--hostname-override={NODE}",
            "--healthz-bind-address=127.0.0.1:10256",
            "--metrics-bind-address=127.0.0.1:10249",
            "--iptables-min-sync-period=100ms",
            # the machine's connection table is not ours to size
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        )

    def _start_kubelet(self) -> None:
        pair = self.plane.authority.server(NODE, hosts=(NODE, self.node.addresses.node))
        self._kubelet_configuration = node_files.kubelet(
            self.folder,
            socket=self.socket,
            certificate=pair.certificate,
            key=pair.key,
            authority=self.plane.authority.certificate,
            cgroup=self.node.cgroup,
            names=self.node.addresses.machine,
        )
        self._kubelet_kubeconfig = self.plane.kubeconfig(
            f"system:node:{NODE}", groups=("system:nodes",)
        )
        self._run_kubelet()

    def _run_kubelet(self) -> None:
        self.node.start(
            "kubelet",
            str(self.programs / "kubelet"),
            f"--config={self._kubelet_configuration}",
            f"--kubeconfig={self._kubelet_kubeconfig}",
            f"--hostname-override={NODE}",
            f"--node-ip={self.node.addresses.node}",
            f"--root-dir={self.folder / 'kubelet'}",
        )

    def _await_ready(self) -> None:
        def ready() -> bool:
            nodes = self.get("nodes")["items"]
            return any(
                each["type"] == "Ready" and each["status"] == "True"
                for node in nodes
                for each in node["status"].get("conditions", ())
            )

        self._await(ready, "kubelet")
        labels = [f"{name}={value}" for name, value in MODEL.items()]
        self.kubectl("label", "node", NODE, *labels)
        patch = json.dumps({"status": {"capacity": GPUS, "allocatable": GPUS}})
        self.kubectl("patch", "node", NODE, "--subresource=status", "--type=merge", "-p", patch)

    def _answers(self, *arguments: str) -> bool:
        try:
            self._ctr(*arguments)
        except Failed:
            return False
        return True

    def _ctr(self, *arguments: str, within_s: float = 240) -> str:
        words = (f"--address={self.socket}", "--namespace=k8s.io", *arguments)
        return self.node.run("ctr", *words, within_s=within_s)

    def _await(self, seen: Callable[[], bool], program: str) -> None:
        end = time.monotonic() + _READY_S
        while not seen():
            if self.node.ended(program):
                raise Failed(f"{program} ended by itself:\n{self.node.tail(program)}")
            if time.monotonic() > end:
                raise Failed(f"{program} is not ready:\n{self.node.tail(program)}")
            time.sleep(0.1)
