"""Images for the node, made on this machine: there is no registry to pull them from.

A base is made once by debootstrap. It, and buildah's layers, are kept outside the checkout in
``$RETUNED_IMAGES``, or else ``$XDG_CACHE_HOME/retuned/images``. Everything runs in a mount
namespace of its own, so that no mount of buildah's storage stays behind.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.namespace import WITH_PARENT
from tests.plane.control_plane import ROOT, Failed

REGISTRY = "localhost"
"""What names begin with, so that nobody looks for them elsewhere."""
BASE = f"{REGISTRY}/base:bookworm"
BASE_PYTHON = (3, 11)
"""The one of bookworm."""
PAUSE = f"{REGISTRY}/pause:1"
TARGETS = ("sidecar", "operator", "experiment", "server")
_ALONE = (*WITH_PARENT, "unshare", "--mount", "--propagation=private", "--")
_MIRROR = "http://deb.debian.org/debian"
_BUILD_S = 1500.0
_PAUSE_C = """\
/* Holds a pod's namespaces open, and buries orphans of containers that share its processes. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void on_child(int number) {
    (void)number;
    while (waitpid(-1, 0, WNOHANG) > 0) {
    }
}

static void on_stop(int number) {
    (void)number;
    _exit(0);
}

int main(void) {
    signal(SIGCHLD, on_child);
    signal(SIGINT, on_stop);
    signal(SIGTERM, on_stop);
    while (1) {
        pause();
    }
}
"""


def cache() -> Path:
    """Return the folder that is kept between runs."""
    below = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("RETUNED_IMAGES") or Path(below, "retuned", "images"))


class Images:
    """The images of this checkout in a storage of our own.

    Parameters
    ----------
    folder
        Kept between runs; one user at a time.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        configuration = folder / "storage.conf"
        configuration.write_text(
            '[storage]\ndriver = "overlay"\n'
            f'graphroot = "{folder / "storage"}"\nrunroot = "{folder / "run"}"\n',
            "utf-8",
        )
        self._environment = {
            **os.environ,
            "CONTAINERS_STORAGE_CONF": str(configuration),
            "BUILDAH_ISOLATION": "chroot",
            "IMAGE_ENGINE": "buildah",
            "IMAGE_PREFIX": f"{REGISTRY}/retuned/",
        }

    def build(
        self, targets: Sequence[str] = TARGETS, *, tag: str, torch: str = "none"
    ) -> Mapping[str, str]:
        """Build images of the checkout and return their names by target.

        Parameters
        ----------
        targets
            Of the Dockerfile.
        tag
            Of the images.
        torch
            The Dockerfile's argument ``TORCH``.
        """
        self.base()
        more = {"BASE_IMAGE": BASE, "IMAGE_TAG": tag, "TORCH": torch}
        said = self._run(str(ROOT / "scripts" / "images"), *targets, more=more)
        return dict(zip(targets, said.split(), strict=True))

    def pause(self) -> Path:
        """Return the archive of the image that holds a pod's namespaces, `PAUSE`."""
        archive = self._folder / "pause.tar"
        if not archive.exists():
            with tempfile.TemporaryDirectory(dir=self._folder) as work:
                source, program = Path(work, "pause.c"), Path(work, "pause")
                source.write_text(_PAUSE_C, "utf-8")
                self._run("cc", "-O2", "-static", "-o", str(program), str(source))
                self._from_scratch(PAUSE, copied=program, to="/pause", entry='["/pause"]')
                self.archive(PAUSE, Path(work, "new.tar")).rename(archive)
        return archive

    def bytes_of(self, image: str) -> int:
        """Return how large an image is on a disk; layers it shares are counted, too."""
        container = self._run("buildah", "from", "--pull-never", image).strip()
        try:
            said = self._run("sh", "-c", f'du -sb "$(buildah mount {container})"')
        finally:
            self._run("buildah", "rm", container)
        return int(said.split()[0])

    def archive(self, image: str, file: Path) -> Path:
        """Write an image to a file that containerd imports, and return the file."""
        where = f"docker-archive:{file}:{image}"  # layers as they are: gzip costs more than disk
        self._run("buildah", "push", "--quiet", image, where)
        return file

    def base(self) -> str:
        """Make the image that all others stand on, if it is not there, and return its name."""
        if self._has(BASE):
            return BASE
        with tempfile.TemporaryDirectory(dir=self._folder) as work:
            tree = Path(work, "tree")
            self._run("debootstrap", "--variant=minbase", "bookworm", str(tree), _MIRROR)
            for each in ("var/cache/apt/archives", "var/lib/apt/lists"):
                self._run("find", str(tree / each), "-type", "f", "-delete")
            self._from_scratch(BASE, copied=tree, to="/", entry="[]")
        return BASE

    def with_packages(self, image: str, *, debian: Sequence[str], python: Path, to: str) -> None:
        """Make an image of packages of Debian and of a folder of Python's, if it is not there."""
        if not self._has(image):
            names = " ".join(debian)
            apt = f"apt-get update && apt-get install --yes --no-install-recommends {names}"
            with self._changed(self.base(), image) as container:
                tidy = "rm -rf /var/cache/apt /var/lib/apt/lists"
                self._run("buildah", "run", container, "sh", "-c", f"{apt} && {tidy}")
                self._run("buildah", "copy", "--quiet", container, str(python), to)

    def with_folder(self, image: str, *, base: str, copied: Path, to: str) -> None:
        """Make an image of another one and a folder."""
        with self._changed(base, image) as container:
            self._run("buildah", "copy", "--quiet", container, str(copied), to)

    def _from_scratch(self, image: str, *, copied: Path, to: str, entry: str) -> None:
        with self._changed("scratch", image) as container:
            self._run("buildah", "copy", "--quiet", container, str(copied), to)
            self._run("buildah", "config", f"--entrypoint={entry}", container)

    @contextmanager
    def _changed(self, base: str, image: str) -> Iterator[str]:
        """Give a container of an image, and make another image of it at the end of the block."""
        pull = [] if base == "scratch" else ["--pull-never"]
        container = self._run("buildah", "from", *pull, base).strip()
        try:
            yield container
            self._run("buildah", "commit", "--quiet", container, image)
        finally:
            self._run("buildah", "rm", container)

    def _has(self, image: str) -> bool:
        command = [*_ALONE, "buildah", "inspect", "--type=image", image]
        found = subprocess.run(command, capture_output=True, env=self._environment, check=False)
        return found.returncode == 0

    def _run(self, *argv: str, more: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            [*_ALONE, *argv],
            capture_output=True,
            text=True,
            env={**self._environment, **(more or {})},
            timeout=_BUILD_S,
            check=False,
        )
        if done.returncode != 0:
            raise Failed(f"{' '.join(argv)}:\n{done.stderr[-4000:]}")
        return str(done.stdout)


def archives(folder: Path, *, tag: str, torch: str) -> Mapping[str, Path]:
    """Build the checkout's images and return their archives in a folder, by target.

    Parameters
    ----------
    folder
        Where the archives are written; gigabytes.
    tag, torch
        As in `Images.build`.
    """
    with images() as kept:
        names = kept.build(TARGETS, tag=tag, torch=torch)
        return {
            target: kept.archive(name, folder / f"{target}.tar") for target, name in names.items()
        }


@contextmanager
def images() -> Iterator[Images]:
    """Give the images to one user at a time; a second one waits."""
    folder = cache()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Images(folder)
