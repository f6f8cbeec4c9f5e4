"""The Dockerfile keeps its promises, as far as they can be read: nothing is built here.

What only a build shows (sizes, users, a root that cannot be written) is in tests/cluster.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.tunables.hosts import DELIVERED

from retuned_operator.manifests.server_container import DELIVERED as SERVER_CODE

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
IMAGES = ("experiment", "operator", "server", "sidecar")


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a Dockerfile, its lines joined."""

    stage: str
    name: str
    text: str


def instructions() -> list[Instruction]:
    return list(_parsed((ROOT / "Dockerfile").read_text("utf-8")))


def _parsed(text: str) -> Iterator[Instruction]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    stage = ""
    for line in filter(None, map(str.strip, joined.splitlines())):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            found = re.search(r" AS (\S+)$", rest)
            assert found is not None, f"a stage without a name: {rest}"
            stage = found[1]
        yield Instruction(stage, name, rest)


def parents() -> dict[str, str]:
    return {each.stage: each.text.split()[0] for each in instructions() if each.name == "FROM"}


def ancestry(stage: str) -> list[str]:
    """Return a stage and those it stands on, itself first."""
    known = parents()
    chain = [stage]
    while (parent := known[chain[-1]]) in known:
        chain.append(parent)
    return chain


def locked(name: str) -> set[str]:
    text = (REQUIREMENTS / f"{name}.txt").read_text("utf-8")
    return set(re.findall(r"^([A-Za-z0-9._-]+)==", text, re.MULTILINE))


def versions(name: str) -> set[str]:
    text = (REQUIREMENTS / f"{name}.txt").read_text("utf-8")
    return set(re.findall(r"^([A-Za-z0-9._-]+==\S+)", text, re.MULTILINE))


# --- what is in which image -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sidecar", "operator"])
def test_no_lock_of_an_image_brings_pytorch_along(name: str) -> None:
    heavy = {"torch", "triton", "cuda-bindings", "pandas", "river", "pytest", "mypy"}
    assert not locked(name) & heavy
    assert not [each for each in locked(name) if each.startswith("nvidia-c")]


def test_only_the_operator_brings_the_kubernetes_client_along() -> None:
    assert "kubernetes" in locked("operator")
    assert "kubernetes" not in locked("sidecar") | locked("build")


def test_images_have_the_versions_that_are_tested() -> None:
    for name in ("sidecar", "operator"):
        assert not versions(name) - versions("dev"), name


def test_every_locked_package_has_hashes_and_no_index() -> None:
    for name in ("build", "sidecar", "operator"):
        text = (REQUIREMENTS / f"{name}.txt").read_text("utf-8")
        entries = re.split(r"^(?=[A-Za-z0-9._-]+==)", text, flags=re.MULTILINE)[1:]
        assert entries
        assert all("--hash=sha256:" in entry for entry in entries), name
        assert "index" not in re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)


def test_the_sidecar_is_made_of_its_own_lock_alone() -> None:
    copied = [
        each.text
        for each in instructions()
        if each.name == "COPY" and each.stage in ancestry("sidecar")
    ]
    stages = {found[1] for text in copied if (found := re.search(r"--from=(\S+)", text))}
    assert stages == {"sidecar-packages", "code"}
    assert not [text for text in copied if "--from=" not in text]
    system = [each.text for each in instructions() if each.stage in ancestry("sidecar")]
    assert not [text for text in system if "g++" in text or "TORCH" in text]


def test_the_container_of_a_server_gets_what_the_tests_of_its_host_run_with() -> None:
    (build,) = (
        each.text for each in instructions() if each.stage == "code" and "/child" in each.text
    )
    assert "cp -r /delivery/retuned /child/" in build
    copied = set(re.findall(r"site-packages/retuned/(\w+(?:\.py)?)", build))
    assert copied == set(DELIVERED)
    delivered = [
        each.stage
        for each in instructions()
        if each.name == "COPY" and each.text == f"--from=code /child {SERVER_CODE}"
    ]
    assert delivered == ["experiment"]


# --- how they are built ---------------------------------------------------------------------------


def test_there_are_four_images_on_one_base() -> None:
    assert set(IMAGES) <= set(parents())
    outside = {parent for parent in parents().values() if parent not in parents()}
    assert outside == {"${BASE_IMAGE}"}
    default = next(each.text for each in instructions() if each.text.startswith("BASE_IMAGE="))
    assert re.search(r":[\w.-]+$", default), "a base without a tag is another one every month"
    assert not default.endswith(":latest")


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_runs_as_a_user_that_is_not_root_and_has_a_number(image: str) -> None:
    users = [
        each.text
        for stage in reversed(ancestry(image))
        for each in instructions()
        if each.stage == stage and each.name == "USER"
    ]
    assert users
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", users[-1]), "runAsNonRoot needs a number"


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_starts_without_a_shell(image: str) -> None:
    started = [each for each in instructions() if each.stage == image and each.name in
               ("ENTRYPOINT", "CMD")]  # fmt: skip
    assert any(each.name == "ENTRYPOINT" for each in started)
    assert all(each.text.startswith("[") for each in started)


@pytest.mark.parametrize("image", IMAGES)
def test_dependencies_come_before_the_code_that_changes(image: str) -> None:
    sources = [
        found[1]
        for stage in reversed(ancestry(image))
        for each in instructions()
        if each.stage == stage and each.name == "COPY"
        if (found := re.search(r"--from=(\S+)", each.text))
    ]
    packages = [index for index, source in enumerate(sources) if source.endswith("-packages")]
    code = [index for index, source in enumerate(sources) if source == "code"]
    assert packages
    assert code
    assert max(packages) < min(code)


def test_no_dependency_is_installed_after_code_was_copied() -> None:
    copied: set[str] = set()
    for each in instructions():
        if each.name == "COPY" and re.search(r"^(daemon|operators)\b", each.text):
            copied.add(each.stage)
        if each.name == "RUN" and set(ancestry(each.stage)) & copied:
            assert "--requirement" not in each.text


def test_nothing_is_installed_that_no_lock_names() -> None:
    runs = [each.text for each in instructions() if each.name == "RUN"]
    installs = [
        command
        for text in runs
        for command in re.split(r"&&|;;|\bin\b", text)
        if re.search(r"\bpip\b.* install\b", command)
    ]
    assert len(installs) >= 5
    for command in installs:
        assert "--require-hashes" in command or {"--no-deps", "--no-index"} <= set(command.split())


def test_debian_packages_come_alone_and_leave_no_lists() -> None:
    runs = [each.text for each in instructions() if "apt-get" in each.text]
    assert runs
    for text in runs:
        assert "--no-install-recommends" in text
        assert "apt-get update" in text, "a list from an older layer is a list of yesterday"
        assert "rm -rf /var/cache/apt /var/lib/apt/lists" in text
        assert "upgrade" not in text


def test_only_what_is_named_is_copied_and_nothing_is_fetched_by_address() -> None:
    for each in instructions():
        assert each.name != "ADD", each.text
        if each.name == "COPY" and "--from=" not in each.text:
            first = each.text.split()[0]
            assert first not in (".", "./", "*"), each.text
            assert all((ROOT / name).exists() for name in each.text.split()[:-1]), each.text


def test_what_is_secret_is_never_an_argument_of_the_build() -> None:
    named = [each.text.partition("=")[0] for each in instructions() if each.name in ("ARG", "ENV")]
    assert not [
        name for name in named if re.search("TOKEN|SECRET|PASSWORD|INDEX|PROXY", name, re.I)
    ]


def test_no_file_of_the_checkout_is_sent_that_no_instruction_copies() -> None:
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*", "everything is left out first"
    sent = {line[1:].split("/")[0] for line in rules if line.startswith("!")}
    copied = {
        name.split("/")[0]
        for each in instructions()
        if each.name == "COPY" and "--from=" not in each.text
        for name in each.text.split()[:-1]
    }
    assert sent == copied


# --- the program that builds them -----------------------------------------------------------------


def run_images(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts" / "images", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        timeout=240,
        check=False,
    )


def test_an_image_that_is_none_is_refused_with_those_that_are() -> None:
    done = run_images("sidecar", "everything", PATH="/usr/bin:/bin")
    assert done.returncode == 2
    assert all(image in done.stderr for image in (*IMAGES, "everything"))


def test_a_machine_without_an_engine_is_told_what_to_install(tmp_path: Path) -> None:
    for program in ("bash", "dirname", "env"):
        (tmp_path / program).symlink_to(f"/usr/bin/{program}")
    done = run_images("sidecar", PATH=str(tmp_path))
    assert done.returncode == 4
    assert "buildah" in done.stderr


def test_the_engine_gets_settings_of_the_installer_as_a_secret_and_not_as_an_argument(
    tmp_path: Path,
) -> None:
    fake = tmp_path / "docker"
    fake.write_text(
        '#!/bin/sh\nprintf "%s\\n" "$@" > "$SEEN"\n'
        'for each in "$@"; do\n'
        '  case $each in id=pip,src=*) cat "${each#id=pip,src=}" >> "$SEEN.pip";; esac\n'
        "done\n"
    )
    fake.chmod(0o755)
    seen = tmp_path / "seen"
    done = run_images(
        "operator",
        PATH=f"{tmp_path}:/usr/bin:/bin",
        IMAGE_ENGINE="docker",
        IMAGE_TAG="7",
        BASE_IMAGE="somewhere/base:1",
        PIP_INDEX_URL="https://user:word@mirror.example/simple",
        SEEN=str(seen),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "localhost/retuned/operator:7\n"
    given = seen.read_text()
    assert "BASE_IMAGE=somewhere/base:1" in given.splitlines()
    assert "mirror.example" not in given
    assert "index-url = https://user:word@mirror.example/simple" in Path(f"{seen}.pip").read_text()
    assert "mirror.example" not in done.stderr
