from __future__ import annotations

import difflib
import json
from contextlib import suppress
from typing import Any

import kubernetes_validate
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.expect import raises_code
from tests.operators.kubectl.conftest import Run
from tests.operators.test_manifests import SIDECAR
from tests.operators.versions import VERSIONS
from tests.operators.webhook.pods import PODS

from retuned.errors import UnreadableInput
from retuned_operator.kubectl.manifests import changed
from retuned_operator.manifests import inject
from retuned_operator.manifests.workloads import templates_of

DEPLOYMENT = """\
# a comment that stays, because nothing changes before it
apiVersion: v1
kind: ConfigMap
metadata: {name: x}
data:
  on: 'off'   # this one too
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: chat
spec:
  selector:
    matchLabels: {app: chat}
  template:
    metadata:
      labels: {app: chat}
      annotations:
        note: "0644"
    spec:
      terminationGracePeriodSeconds: 0x1e
      containers:
      - name: vllm
        image: vllm:1
        args: ["--x", "1e3", "yes", '2026-01-01', ~, on]
        env:
        - name: A
          value: "1"
        - {name: B, value: 'no'}
      volumes:
      - name: cfg
        configMap:
          name: x
          defaultMode: 0644
---
apiVersion: v1
kind: Service
metadata: {name: y}   # and this
"""


BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 30))
SHARED = """\
apiVersion: apps/v1
kind: Deployment
metadata:
  labels: &labels {app: chat}
spec:
  template:
    metadata:
      labels: *labels
    spec:
      initContainers:
      - &one
        name: one
        image: i
        env: &env
        - {name: A, value: "1"}
      containers:
      - name: server
        image: i
        env: *env
      - *one
"""


def done(text: str, **more: Any) -> str:
    return changed(text, settings=SIDECAR, where="stdin", **more).text


def reasons(text: str, **more: Any) -> list[str]:
    found = changed(text, settings=SIDECAR, where="stdin", **more).workloads
    return [str(each.result.reason) for each in found]


def pod_of(text: str) -> Any:
    ((_, template),) = templates_of(yaml.safe_load(text))
    return template


def test_a_difference_shows_only_what_was_added() -> None:
    after = done(DEPLOYMENT)
    lines = list(difflib.unified_diff(DEPLOYMENT.splitlines(), after.splitlines(), n=0))[2:]
    taken = [line for line in lines if line.startswith("-")]
    assert taken == ["-      labels: {app: chat}"]
    assert "+      labels: {app: chat, retuned.dev/inject: 'true'}" in lines
    assert any("PYTHONPATH" in line for line in lines)


def test_twice_is_once() -> None:
    once = done(DEPLOYMENT)
    assert done(once) == once
    assert reasons(once) == ["already-there"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "---\n",
        "# only a comment\n",
        "just text\n",
        "- a\n- list\n",
        "apiVersion: v1\nkind: Service\nmetadata: {name: y}\n---\n\n---\nkind: Other # c\n",
        "apiVersion: other.org/v1\nkind: Deployment\nspec: {template: {spec: {containers: []}}}\n",
        "apiVersion: v1\nkind: Secret\ndata: &x {a: b}\nmore: *x\n",
        "apiVersion: v1\r\nkind: Secret\r\n",
        "{{ a template that is no YAML: [ }\n---\nkind: Service\n",
        "a: |\n  kind: Pod\n  ---\n  text\n",
    ],
)
def test_what_makes_no_pods_comes_out_as_it_came_in(text: str) -> None:
    assert done(text) == text
    assert reasons(text) == []


def wrapped(kind: str, pod: dict[str, Any]) -> dict[str, Any]:
    template = {"metadata": pod["metadata"], "spec": pod["spec"]}
    about = {"kind": kind, "metadata": {"name": "x"}}
    selector = {"matchLabels": pod["metadata"]["labels"]}
    if kind == "CronJob":
        job = {"spec": {"template": template}}
        return {
            "apiVersion": "batch/v1",
            **about,
            "spec": {"schedule": "0 0 * * *", "jobTemplate": job},
        }
    if kind == "Job":
        return {"apiVersion": "batch/v1", **about, "spec": {"template": template}}
    spec: dict[str, Any] = {"template": template, "selector": selector}
    if kind == "StatefulSet":
        spec["serviceName"] = "x"
    return {"apiVersion": "apps/v1", **about, "spec": spec}


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"])
@pytest.mark.parametrize("name", sorted(PODS))
def test_workloads_are_changed_as_the_webhook_changes_their_pods(kind: str, name: str) -> None:
    pod = yaml.safe_load(yaml.safe_dump(PODS[name]))
    if kind in ("Job", "CronJob"):
        pod["spec"]["restartPolicy"] = "Never"
    body = wrapped(kind, pod)
    after = yaml.safe_load(done(yaml.safe_dump(body)))  # with aliases: labels are in two places
    ((_, template),) = templates_of(after)
    before = {"metadata": pod["metadata"], "spec": pod["spec"]}
    assert template == inject(before, settings=SIDECAR).pod
    kubernetes_validate.validate(after, VERSIONS[-1], strict=True)


def test_items_of_a_list_and_pods_of_other_projects_are_changed() -> None:
    pod = PODS["vllm"]
    leader: dict[str, Any] = {"apiVersion": "leaderworkerset.x-k8s.io/v1"}
    leader["kind"] = "LeaderWorkerSet"
    template = {"metadata": pod["metadata"], "spec": pod["spec"]}
    both = {"leaderTemplate": template, "workerTemplate": template}
    leader["spec"] = {"leaderWorkerTemplate": both}
    body = {"apiVersion": "v1", "kind": "List", "items": [pod, {"kind": "Other"}, leader]}

    class Plain(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    text = yaml.dump(body, Dumper=Plain)
    assert reasons(text) == ["None", "None", "None"]
    items = yaml.safe_load(done(text))["items"]
    assert items[0] == inject(pod, settings=SIDECAR).pod
    assert items[1] == {"kind": "Other"}


def test_json_comes_out_as_json() -> None:
    text = json.dumps(PODS["vllm"], indent=1)
    assert json.loads(done(text)) == inject(PODS["vllm"], settings=SIDECAR).pod


def test_target_and_container_are_given_where_no_annotation_names_them() -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "spec": {"containers": [{"name": "a", "image": "a"}, {"name": "b", "image": "b"}]},
    }
    text = yaml.safe_dump(pod)
    assert reasons(text) == ["no-container"]
    after = yaml.safe_load(done(text, target="chat", container="b"))
    assert after["metadata"]["annotations"] == {
        "retuned.dev/target": "chat",
        "retuned.dev/container": "b",
    }
    assert "env" in after["spec"]["containers"][1]
    said = pod | {"metadata": {"annotations": {"retuned.dev/container": "a"}}}
    after = yaml.safe_load(done(yaml.safe_dump(said), container="b"))
    assert "env" in after["spec"]["containers"][0]


def test_what_an_alias_shares_is_changed_in_one_place_only() -> None:
    after = yaml.safe_load(done(SHARED, container="server"))
    before = yaml.safe_load(SHARED)
    assert after["metadata"] == before["metadata"]
    pod, was = after["spec"]["template"]["spec"], before["spec"]["template"]["spec"]
    assert after["spec"]["template"]["metadata"]["labels"]["retuned.dev/inject"] == "true"
    assert pod["initContainers"][2] == was["initContainers"][0]
    assert pod["containers"][1] == was["containers"][1]
    assert pod["containers"][0]["env"][-1] == {"name": "A", "value": "1"}
    assert len(pod["containers"][0]["env"]) > 1


def test_dashes_that_end_a_value_stay() -> None:
    text = "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - name: a\n    image: x---"
    assert yaml.safe_load(done(text))["spec"]["containers"][0]["image"] == "x---"


def test_empty_metadata_is_filled() -> None:
    text = "apiVersion: v1\nkind: Pod\nmetadata:\nspec:\n  containers:\n  - name: a\n    env:\n"
    after = yaml.safe_load(done(text, target="t"))
    assert after["metadata"]["labels"] == {"retuned.dev/inject": "true"}
    assert after["spec"]["containers"][0]["env"][0]["name"] == "PYTHONPATH"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (f"apiVersion: v1\nkind: Pod\n{BOMB}", "aliases"),
        ("apiVersion: v1\nkind: Pod\nspec: {containers: [{name: a, name: b}]}\n", "twice"),
        ("apiVersion: v1\nkind: Pod\nspec:\n  <<: {a: b}\n  containers: []\n", "merged"),
        ('{"apiVersion": "v1", "kind": "Pod", "spec": {"a": 1, "a": 2}}', "twice"),
        ("a: b\n---\nkind: Pod\na: [\n", "stdin:5"),
        ("kind: Pod\na: \x00\n", "#x0000"),
        ("kind: Pod\na: " + "[" * 500, "nested"),
        ("&x {kind: List, items: [*x]}\n", "nested"),
    ],
)
def test_what_cannot_be_changed_safely_is_refused_with_its_place(text: str, says: str) -> None:
    with raises_code(UnreadableInput, "not-yaml", says):
        done(text)


scalars = st.sampled_from(
    ["on", "yes", "0644", "1e3", "22:22", "2026-01-01", "~", "'1'", '"x"', "0x1f", "1_000", ".5"]
)


@settings(max_examples=50, deadline=None)
@given(st.lists(scalars, min_size=1, max_size=6), st.booleans())
def test_every_value_keeps_its_spelling(values: list[str], indented: bool) -> None:
    pad = "  " if indented else ""
    plain = [value for value in values if ":" not in value]  # in braces a colon gets quotes
    lines = ["apiVersion: v1", "kind: Pod", "spec:", "  other:"]
    lines += [f"  {pad}- {value}" for value in values]
    lines += ["  containers:", f"  {pad}- name: a", f"  {pad}  env:"]
    lines += [f"  {pad}  {pad}- {{name: E{n}, value: {v}}}" for n, v in enumerate(plain)]
    before = "\n".join(lines) + "\n"
    after = done(before).splitlines()
    assert [line for line in before.splitlines() if line not in after] == []


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=60) | st.text(alphabet="a:-[]{}&*!|>'\"#%@`,?\n <0", max_size=60))
def test_no_text_does_more_than_be_refused(text: str) -> None:
    with suppress(UnreadableInput):
        assert done(text) == text


ASKED = ("inject", "-f", "-", "--image", "registry/sidecar:1", "--agent-url", "https://agent:8443")


def test_the_command_prints_all_documents_and_says_what_it_did(run: Run) -> None:
    text = run(*ASKED, given=DEPLOYMENT)
    assert "kind: Service" in text
    assert "Deployment chat: sidecar put in" in text


def test_a_workload_that_cannot_take_it_is_printed_and_is_an_answer_of_no(run: Run) -> None:
    windows = DEPLOYMENT.replace("      volumes:", "      os: {name: windows}\n      volumes:")
    text = run(*ASKED, given=windows, code=1)
    assert "[windows-pod]" in text
    assert "kind: Service" in text


def test_a_pod_that_says_no_is_no_trouble(run: Run) -> None:
    refusing = DEPLOYMENT.replace('note: "0644"', 'retuned.dev/inject: "false"')
    assert "[not-asked]" in run(*ASKED, given=refusing)


def test_settings_come_from_a_file_and_options_beat_it(run: Run, tmp_path: Any) -> None:
    path = tmp_path / "sidecar.yaml"
    path.write_text("image: from-file\nagentUrl: https://a\ncpu: 50m\n")
    source = tmp_path / "in.yaml"
    source.write_text(DEPLOYMENT)
    args = ("inject", "-f", str(source), "--settings", str(path))
    text = run(*args, "--image", "from-option")
    assert "cpu: '50m'" in text
    assert "image: from-option" in text
    path.write_text("image: x\nagentUrl: https://a\ncpuu: 1\n")
    assert "did you mean cpu" in run(*args, code=3)
    path.write_text("image: x\nagentUrl: http://a\n")
    assert "https" in run(*args, code=3)


def test_without_image_and_address_it_says_which_options(run: Run) -> None:
    assert "--agent-url" in run("inject", "-f", "-", given=DEPLOYMENT, code=2)
    assert "cannot be read" in run(*ASKED[:2], "/nowhere/x", *ASKED[3:], code=3)
