"""A search package in a process of its own: what it may ask, what it sees, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lab.evolve.stub_packages import opening, stub_python

from retuned.adapters import backend_driver
from retuned.adapters.backend_link import MAX_BODY_BYTES, Link, read_chat
from retuned.adapters.backend_process import BackendProcess
from retuned.errors import Refused, TemporaryError
from retuned.lab.generators.evolve.package import (
    BackendFailed,
    ModelAsked,
    Opening,
    ProgramAsked,
    Worth,
)
from retuned.ports import ChatAnswer

ZERO = "sha256:" + "0" * 64
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stub_python(tmp_path_factory.mktemp("stub") / "venv")


@pytest.fixture
def package(python: Path, tmp_path: Path) -> Iterator[BackendProcess]:
    made = BackendProcess("openevolve", python, folder=tmp_path / "own")
    yield made
    made.close()


def said(text: str) -> ChatAnswer:
    return ChatAnswer(
        request=ZERO, text=text, finish="stop", prompt_tokens=5, completion_tokens=2, usd=0.0
    )


def model_asked(package: BackendProcess, how: str | Opening) -> ModelAsked:
    package.start(opening(how) if isinstance(how, str) else how)
    asked = package.next()
    assert isinstance(asked, ModelAsked)
    return asked


def text_of(asked: ModelAsked) -> str:
    return asked.request.messages[-1].content


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_for_death(*pids: int) -> None:
    deadline = time.monotonic() + 120.0
    while any(map(alive, pids)):
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.01)


def test_answers_and_worths_reach_a_package_until_it_ends(package: BackendProcess) -> None:
    asked = model_asked(package, "good")
    assert text_of(asked) == "start"
    assert asked.request.max_tokens == 100
    for number in range(2):
        assert isinstance(asked, ModelAsked)
        package.say(asked, said(f"program {number}"))
        program = package.next()
        assert isinstance(program, ProgramAsked)
        assert program.text == f"program {number}"
        package.tell(program, Worth(metrics={"combined_score": 1.5}, artifacts={"verdict": "ok"}))
        following = package.next()
        if number == 0:
            assert isinstance(following, ModelAsked)
            assert json.loads(text_of(following)) == [{"combined_score": 1.5}, {"verdict": "ok"}]
            asked = following
        else:
            assert following is None


def test_a_package_that_dies_says_its_last_words(package: BackendProcess) -> None:
    package.start(opening("die"))
    with pytest.raises(BackendFailed, match="frobnicate is not") as caught:
        package.next()
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert caught.value.code == "backend-failed"


def test_a_package_that_prints_for_ever_ends_at_its_limit(package: BackendProcess) -> None:
    package.start(opening("flood"))
    with pytest.raises(BackendFailed, match="died with status"):
        package.next()


def test_a_package_that_says_nothing_is_ended_with_all_it_started(
    package: BackendProcess,
) -> None:
    asked = model_asked(package, "hang")
    pids = [int(pid) for pid in text_of(asked).split()]
    package._silence_s = 0.5
    package.say(asked, said("go on"))
    with pytest.raises(BackendFailed, match="said nothing"):
        package.next()
    assert all(map(alive, pids))
    package.close()
    wait_for_death(*pids)
    package.close()  # twice does no harm


def test_a_package_that_asks_in_no_known_form_is_not_asked_again(package: BackendProcess) -> None:
    package.start(opening("nonsense"))
    with pytest.raises(BackendFailed, match="form"):
        package.next()


def test_a_package_sees_no_secret_and_has_limits(
    package: BackendProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_KEY", "s3cr3t-of-the-endpoint")
    monkeypatch.setenv("OPENAI_API_KEY", "s3cr3t-of-another")
    seen = json.loads(text_of(model_asked(package, "look")))
    assert "s3cr3t" not in json.dumps(seen)
    assert not {"MODEL_KEY", "OPENAI_API_KEY", "PYTHONPATH"} & set(seen["environment"])
    assert package._link is not None
    assert package._link.token not in json.dumps(seen)  # not in arguments or variables
    assert seen["files"] == 64 * 2**20
    folder = Path(seen["folder"])
    assert folder.stat().st_mode & 0o777 == 0o700
    package.close()
    assert not folder.exists()


def test_a_refusal_reaches_the_package_as_one(package: BackendProcess) -> None:
    asked = model_asked(package, "good")
    package.say(asked, Refused("the budget is spent"))
    with pytest.raises(BackendFailed, match="402"):
        package.next()


def test_an_interpreter_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(BackendFailed, match="cannot be started"):
        BackendProcess("openevolve", tmp_path / "none", folder=tmp_path / "own").start(
            opening("good")
        )


def test_an_interpreter_without_the_package_is_said(python: Path, tmp_path: Path) -> None:
    package = BackendProcess("skydiscover", python, folder=tmp_path / "own")
    package.start(opening("good"))
    with pytest.raises(BackendFailed, match="No module named 'skydiscover'"):
        package.next()
    package.close()


def test_the_plans_end_ends_the_wait(python: Path, tmp_path: Path) -> None:
    package = BackendProcess("openevolve", python, folder=tmp_path / "own", left_s=lambda: -1.0)
    package.start(opening("hang"))

    def wait_on() -> None:
        while True:
            asked = package.next()
            assert isinstance(asked, ModelAsked)
            package.say(asked, said("go on"))

    with pytest.raises(TemporaryError, match="time is over"):
        wait_on()
    package.close()


def test_a_package_that_was_not_started_says_nothing(package: BackendProcess) -> None:
    with pytest.raises(BackendFailed, match="not started"):
        package.next()


LAB = """
import sys, time
from pathlib import Path
from tests.lab.evolve.stub_packages import opening
from retuned.adapters.backend_process import BackendProcess
package = BackendProcess("openevolve", Path(sys.argv[1]), folder=Path(sys.argv[2]))
package.start(opening("hang"))
print(package.next().request.messages[-1].content, flush=True)
time.sleep(1000)
"""


def test_a_killed_lab_leaves_no_search_behind(python: Path, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    command = [sys.executable, "-c", LAB, str(python), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as lab:
        assert lab.stdout is not None
        child, grandchild = lab.stdout.readline().split()
        lab.kill()
    wait_for_death(int(child))
    os.kill(int(grandchild), signal.SIGKILL)  # the stub's own, which does not load our evaluator
    (folder / "left").touch()
    package = BackendProcess("openevolve", python, folder=folder)
    package.start(opening("die"))  # the next run clears what the killed one left
    assert not (folder / "left").exists()
    package.close()
    assert not folder.exists()


def post(link: Link, path: str, data: bytes, **headers: str) -> int:
    request = urllib.request.Request(link.url + path, data=data, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_whoever_does_not_know_the_word_is_turned_away() -> None:
    link = Link()
    right = {"authorization": f"Bearer {link.token}"}
    try:
        assert post(link, "/evaluate", b"{}") == 401
        assert post(link, "/evaluate", b"{}", authorization="Bearer " + "x" * 43) == 401
        assert post(link, "/evaluate", b"{}", authorization="Bearer \xe4") == 401
        assert post(link, "/elsewhere", b"{}", **right) == 404
        assert post(link, "/evaluate", b"[]", **right) == 400
        assert post(link, "/evaluate", b"[" * 9_999, **right) == 400
        for length in (str(MAX_BODY_BYTES + 1), "9" * 30, "-1", "many"):
            assert post(link, "/evaluate", b"", **{"content-length": length}, **right) == 413
        assert link.next(0.0) is None
    finally:
        link.close()


@pytest.mark.parametrize(
    "messages", [None, [], "text", [1], [{"role": "user"}], [{"content": [1]}], [{}] * 65]
)
def test_what_is_no_question_is_none(messages: object) -> None:
    assert read_chat({"messages": messages}, most_tokens=5) is None


def test_nobody_but_the_system_speaks_with_authority_and_no_answer_is_too_long() -> None:
    messages = [{"role": role, "content": "x"} for role in ("system", "assistant", "tool", None)]
    for wanted, given in ((3, 3), (99, 10), (-1, 10), (True, 10), ("7", 10)):
        request = read_chat({"messages": messages, "max_tokens": wanted}, most_tokens=10)
        assert request is not None
        assert [m.role for m in request.messages] == ["system", "user", "user", "user"]
        assert request.max_tokens == given


def test_halves_of_characters_do_not_travel() -> None:
    request = read_chat({"messages": [{"role": "user", "content": "a\ud800b"}]}, most_tokens=5)
    assert request is not None
    assert request.messages[0].content == "a?b"


def test_a_folder_that_cannot_be_made_is_said(python: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    package = BackendProcess("openevolve", python, folder=tmp_path / "file" / "own")
    with pytest.raises(BackendFailed, match="cannot be started"):
        package.start(opening("good"))


def test_the_driver_needs_nothing_of_ours() -> None:
    text = Path(backend_driver.__file__).read_text("utf-8")
    assert "import retuned" not in text
    assert "from retuned" not in text
