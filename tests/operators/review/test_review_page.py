"""The operator's page: whom it believes, what they see, and that the API server decides."""

from __future__ import annotations

import base64
import errno
import html
import json
import os
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.expect import raises_code, raises_naming
from tests.operators.controllers.test_live_proofs import able, begun, reports
from tests.operators.controllers.test_swaps import reached
from tests.operators.kubectl.conftest import Cluster
from tests.operators.review.conftest import HOST, SECRET, Page, proxied

from retuned.api.proposal import ProposalPhase
from retuned.errors import UnreadableInput, UsageError
from retuned.report.proof_figures import kernel_words
from retuned.stages.drift import DriftAction, DriftReport
from retuned.stages.profile import Signature, SignatureStat, WorkloadProfile
from retuned.stages.trace import ShapeSource
from retuned.stages.watch.proof import KernelTime
from retuned.store.envelopes import seal
from retuned_operator.kube.resources import DECISIONS, PODS, PROPOSALS, Obj
from retuned_operator.manifests.roles import speaking_rules
from retuned_operator.review.proxy_auth import Proxy
from retuned_operator.review.settings import review_settings
from retuned_operator.store import experiments
from retuned_operator.store.reports import DRIFT, PROFILE

NAME = "serving/swp-0123456789abcdef0123"


def said(cluster: Cluster) -> list[Obj]:
    return list(cluster.fake.api().list(DECISIONS, namespace="serving").items)


def test_an_approval_is_written_by_the_api_server_in_the_persons_own_name(page: Page) -> None:
    page.cluster.target()
    page.cluster.proposal(page.cluster.policy())
    inbox = page.get("/")
    assert "1 waiting for a decision" in inbox.text
    assert "prod-eu" in inbox.text
    shown = page.get(f"/proposals/{NAME}")
    assert "kubectl retuned approve" in shown.text
    assert "the policy asks for it" in shown.text, "a reason is wanted"
    answer = page.say(NAME, "approve", comment="numbers look right")
    assert answer.status_code == 303, answer.text
    (word,) = said(page.cluster)
    spec = word["spec"]
    assert (spec["user"], spec["groups"], spec["channel"]) == (
        "ada",
        ["gpu-platform"],
        "review-page",
    )
    assert spec["comment"] == "numbers look right"
    assert spec["policyGeneration"] == 1
    assert "<strong>Approved</strong> by ada" in page.get(f"/proposals/{NAME}").text
    assert page.say(NAME, "approve", comment="numbers look right").status_code == 303
    assert len(said(page.cluster)) == 1, "the same word twice is one"


def test_without_a_reason_that_the_policy_asks_for_nothing_is_written(page: Page) -> None:
    page.cluster.proposal(page.cluster.policy())
    answer = page.say(NAME, "approve")
    assert answer.status_code == 422
    assert "asks for a reason" in answer.text
    assert said(page.cluster) == []


def test_the_page_says_what_a_live_proof_will_do_until_the_swap_begins(page: Page) -> None:
    found = page.cluster.proposal(page.cluster.policy(liveProof={"maxDuration": "12m"}))
    assert "at most 12 minutes" in page.get(f"/proposals/{NAME}").text
    place = page.cluster.fake.api().get(PROPOSALS, found.metadata.name, namespace="serving")
    page.cluster.fake.set_status(PROPOSALS, place, phase="Promoted")
    assert "at most 12 minutes" not in page.get(f"/proposals/{NAME}").text


def test_who_may_only_look_is_refused_by_the_api_server(page: Page) -> None:
    page.cluster.proposal(page.cluster.policy())
    shown = page.get(f"/proposals/{NAME}", who="eve")
    assert shown.status_code == 200
    assert "you are not a member" in shown.text
    answer = page.say(NAME, "approve", who="eve", comment="let me")
    assert answer.status_code == 409
    assert "may not create swapdecisions" in answer.text
    assert said(page.cluster) == []


def test_who_may_not_list_proposals_sees_none_and_learns_no_name(page: Page) -> None:
    page.cluster.proposal(page.cluster.policy())
    page.store.add(DRIFT, "serving/chat/x", {"id": "x", "report": report()}, phase="new")
    inbox = page.get("/", who="mallory")
    assert inbox.status_code == 200
    assert "You may see no proposals" in inbox.text
    assert "swp-" not in inbox.text
    assert page.get(f"/proposals/{NAME}", who="mallory").status_code == 404
    assert "rmsnorm" not in page.get("/drift", who="mallory").text
    assert page.get("/drift/serving/chat/x", who="mallory").status_code == 404
    assert page.get("/drift/serving/chat/x", who="ada").status_code == 200


def report() -> dict[str, object]:
    found = DriftReport(
        detected=True,
        action=DriftAction.RETUNE,
        reasons=(),
        distance=0.2,
        window_start_ns=1_772_000_000 * 10**9,
        sentence="rmsnorm now runs at M=512",
    )
    return found.model_dump(mode="json")


def test_a_person_whom_the_operator_may_not_speak_for_decides_nothing(page: Page) -> None:
    page.cluster.proposal(page.cluster.policy())
    page.cluster.fake.access.bind("mallory", page_roles("retuned-approver"))
    answer = page.say(NAME, "reject", who="mallory", comment="no")
    assert answer.status_code in (409, 503)
    assert "Nothing was decided" in answer.text
    assert said(page.cluster) == []


def page_roles(name: str) -> list[dict[str, object]]:
    from tests.operators.kubectl.conftest import ROLES

    return list(ROLES[name])


def test_a_rejection_an_abort_and_a_rollback_are_words_too(page: Page) -> None:
    found = page.cluster.proposal(page.cluster.policy())
    answer = page.say(NAME, "reject", who="grace", comment="no")
    assert answer.status_code == 303, answer.text
    place = page.cluster.fake.api().get(PROPOSALS, found.metadata.name, namespace="serving")
    page.cluster.fake.set_status(PROPOSALS, place, phase="Promoted")
    shown = page.get(f"/proposals/{NAME}", who="grace")
    assert "Roll back" in shown.text
    assert 'value="approve"' not in shown.text
    assert page.say(NAME, "rollback", who="grace", comment="odd answers").status_code == 303
    kinds = sorted(word["spec"]["decision"] for word in said(page.cluster))
    assert kinds == ["Abort", "Reject"]


def test_a_proposal_of_the_same_name_with_another_artifact_is_not_what_was_shown(
    page: Page,
) -> None:
    policy = page.cluster.policy()
    page.cluster.proposal(policy)
    path = f"/proposals/{NAME}"
    text = page.get(path).text
    artifact = text.partition('name="artifact" value="')[2].partition('"')[0]
    api = page.cluster.fake.api()
    api.delete(PROPOSALS, NAME.partition("/")[2], namespace="serving")
    page.cluster.proposal(policy, artifact={"digest": "sha256:" + "5" * 64})
    fields = {"act": "approve", "comment": "x", "artifact": artifact}
    for key in ("token", "policy"):
        fields[key] = text.partition(f'name="{key}" value="')[2].partition('"')[0]
    answer = page.post(path, fields)
    assert answer.status_code == 409
    assert "not the one that you were shown" in answer.text
    assert said(page.cluster) == []


def test_an_expired_proposal_is_not_approved(page: Page) -> None:
    found = page.cluster.proposal(page.cluster.policy())
    page.clock.set_wall(found.spec.expires_at + timedelta(hours=1))
    shown = page.get(f"/proposals/{NAME}")
    assert "It has expired." in shown.text
    answer = page.say(NAME, "approve", comment="late")
    assert answer.status_code == 410
    assert said(page.cluster) == []


@pytest.mark.parametrize(
    "headers",
    [
        [("x-forwarded-user", "ada"), ("x-forwarded-groups", "gpu-platform")],
        proxied("ada", secret="guess-guess-guess"),
        [*proxied("ada"), ("x-forwarded-user", "grace")],
        [*proxied("ada"), ("x-retuned-proxy-secret", "other-secret-here")],
        [("x-retuned-proxy-secret", SECRET)],
        proxied("system:admin"),
        proxied("System:kube-controller-manager"),
        proxied("ad\u00e4".encode().decode("latin-1")),
    ],
    ids=[
        "no-secret",
        "wrong",
        "two-users",
        "two-secrets",
        "nobody",
        "admin",
        "system",
        "not-ascii",
    ],
)
def test_nobody_is_believed_without_the_proxys_proof_and_one_plain_name(
    page: Page, headers: list[tuple[str, str]]
) -> None:
    page.cluster.proposal(page.cluster.policy())
    answer = page.ask("GET", "/", headers=headers)
    assert answer.status_code == 403
    assert "swp-" not in answer.text


def test_a_request_from_elsewhere_is_nobody_even_with_the_secret(page: Page) -> None:
    page.client = ("10.0.4.7", 1)
    assert page.get("/").status_code == 403


def test_basic_authorization_carries_the_secret_as_well(page: Page) -> None:
    coded = base64.b64encode(f"ada:{SECRET}".encode()).decode()
    headers = [("authorization", f"Basic {coded}"), ("x-forwarded-user", "ada")]
    assert page.ask("GET", "/", headers=headers).status_code == 200


def test_groups_that_the_page_may_not_speak_for_are_left_aside(page: Page) -> None:
    page.cluster.proposal(page.cluster.policy())
    headers = [
        ("x-retuned-proxy-secret", SECRET),
        ("x-forwarded-user", "ada"),
        ("x-forwarded-groups", "system:masters, gpu-platform,cluster-admins"),
    ]
    text = page.ask("GET", f"/proposals/{NAME}", headers=headers).text
    assert "you are none of them" not in text, "gpu-platform counts"


def test_another_host_and_a_form_of_another_site_are_refused(page: Page) -> None:
    page.cluster.proposal(page.cluster.policy())
    assert page.ask("GET", "/", headers=proxied("ada"), host="evil.example").status_code == 421
    assert page.ask("GET", "/healthz", headers=(), host="10.0.0.1").status_code == 200
    headers = [*proxied("ada"), ("origin", "https://evil.example")]
    answer = page.ask("POST", f"/proposals/{NAME}", headers=headers, data={"act": "approve"})
    assert answer.status_code == 403
    assert said(page.cluster) == []


def test_cookies_are_for_https_and_this_host_alone(page: Page) -> None:
    page.cluster.proposal(page.cluster.policy())
    cookie = page.get(f"/proposals/{NAME}").headers["set-cookie"]
    assert cookie.startswith("__Host-retuned-review=")
    for needed in ("Secure", "HttpOnly", "SameSite=strict", "Path=/"):
        assert needed in cookie


def test_swaps_and_drift_of_the_cluster_have_their_pages(page: Page) -> None:
    history = [
        {"from": "Approved", "to": "Canary", "at": "2026-03-02T12:00:00Z"},
        {"from": "Canary", "to": "Watching", "at": "2026-03-02T13:00:00Z"},
    ]
    page.cluster.proposal(page.cluster.policy(), phase="Watching", status={"history": history})
    swaps = page.get("/swaps").text
    assert swaps.index("Canary to Watching") < swaps.index("Approved to Canary")
    page.store.add(DRIFT, "serving/chat/x", {"id": "x", "report": report()}, phase="new")
    page.store.add(PROFILE, "serving/chat/x", {"id": "x", "profile": {}}, phase="new")
    assert "rmsnorm now runs at M=512" in page.get("/drift").text
    assert "is not kept any more" in page.get("/drift/serving/chat/x").text


def test_the_history_of_a_proposal_has_the_verdicts_of_its_live_proofs(page: Page) -> None:
    asked = {"epoch": 2, "wave": 0, "swapped": 1, "since": "2026-03-02T12:00:00Z", "rule": {}}
    sentence = "harms (slower): steps take 3.0 % longer"
    proofs = [
        {"name": "chat-0", "uid": "u0", "verdict": "harms", "sentence": sentence}
        | asked
        | {"at": "2026-03-02T12:10:00Z"},
        {"name": "chat-1", "uid": "u1"} | asked,
    ]
    status = {"liveProofs": proofs}
    page.cluster.proposal(page.cluster.policy(), phase="RollingBack", status=status)
    shown = page.get(f"/proposals/{NAME}").text
    assert "live-proof-harms" in shown
    assert f"chat-0: {sentence}" in shown
    assert "chat-1" not in shown, "what runs has no verdict yet"


def test_a_proposal_shows_the_kernel_in_place_of_its_newest_pods(page: Page) -> None:
    asked = {"epoch": 2, "wave": 0, "swapped": 1, "since": "2026-03-02T12:00:00Z", "rule": {}}
    kernel = {"lengths": [512], "launches": 8.0, "offSeconds": 2.4e-3, "onSeconds": 1.2e-3}
    account = {"stepSeconds": -9e-3, "kernelSeconds": -9.6e-3, "kernels": [kernel]}
    proofs = [
        {"name": f"chat-{n}", "uid": f"u{n}"} | asked | {"verdict": "helps", "account": account}
        for n in range(6)
    ]
    proofs[5] |= {"account": {"stepSeconds": -9e-3}}  # a sidecar of an older release
    page.cluster.proposal(page.cluster.policy(), phase="Promoting", status={"liveProofs": proofs})
    shown = html.unescape(page.get(f"/proposals/{NAME}").text)
    assert "<h3>Live proof</h3>" in shown
    assert shown.count(": Change per step with the swap") == 4, "the newest"
    words = kernel_words(KernelTime(lengths=(512,), launches=8.0, off_s=2.4e-3, on_s=1.2e-3))
    assert "at 512: 2,400 us without the swap, 1,200 us with it (2.00x)" in words
    assert shown.count(words) == 3
    assert "chat-2: Change per step" in shown
    assert "chat-5: Change per step" in shown
    assert "chat-1: Change per step" not in shown


@pytest.fixture(scope="module")
def document() -> bytes:
    """Return the pairs of a gain of 3 %, as the operator of a cluster keeps them."""
    proven = begun()
    able(proven, reports(-0.03))
    reached(proven, ProposalPhase.PROMOTED)
    return proven.ledger.proofs[0]


def shown_with(page: Page, *evidence: str) -> str:
    asked = {"epoch": 2, "wave": 0, "swapped": 1, "since": "2026-03-02T12:00:00Z", "rule": {}}
    proofs = [
        {"name": f"chat-{n}", "uid": f"u{n}"} | asked | {"verdict": "helps", "evidence": digest}
        for n, digest in enumerate(evidence)
    ]
    page.cluster.proposal(page.cluster.policy(), phase="Promoting", status={"liveProofs": proofs})
    answer = page.get(f"/proposals/{NAME}")
    assert answer.status_code == 200
    assert "What changes" in answer.text
    return html.unescape(answer.text)


def test_a_proposal_shows_the_pairs_of_its_newest_pods(page: Page, document: bytes) -> None:
    digest = page.store.put_blob(seal(document, notary=page.notary))
    shown = shown_with(page, digest, digest, digest)
    for n, count in ((0, 0), (1, 1), (2, 1)):
        assert shown.count(f"chat-{n}: Change of step time by pair") == count
        assert shown.count(f"chat-{n}: Evidence (E-value) by pair") == count
    pairs = json.loads(document)["reported"]["claim"]["pairs"]
    sham = sum(each["kind"] == "sham" and each["void"] is None for each in pairs)
    assert f"{sham} sham pairs, " in shown


def _reversed(body: Any) -> None:
    body["reported"]["claim"]["verdict"] = "harms"


def _judged_otherwise(body: Any) -> None:
    body["judged"] |= {"verdict": "not-concluded", "reason": "contradicted"}


def _without_pairs(body: Any) -> None:
    body["reported"]["claim"] = None


def _of_another_version(body: Any) -> None:
    del body["judged"]


@pytest.mark.parametrize(
    "change", [_reversed, _judged_otherwise, _without_pairs, _of_another_version]
)
def test_pairs_that_contradict_their_verdict_are_not_shown(
    page: Page, document: bytes, change: Callable[[Any], None]
) -> None:
    body = json.loads(document)
    change(body)
    digest = page.store.put_blob(seal(json.dumps(body).encode(), notary=page.notary))
    assert "Change of step time by pair" not in shown_with(page, digest)


def test_pairs_that_are_unsigned_or_gone_are_not_shown(page: Page, document: bytes) -> None:
    unsigned, gone = page.store.put_blob(document), "sha256:" + 64 * "0"
    assert "Change of step time by pair" not in shown_with(page, unsigned, gone)


def test_pairs_that_cannot_be_read_now_leave_the_page(
    page: Page, document: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = page.store.put_blob(seal(document, notary=page.notary))

    def unreadable(*_: Any, **__: Any) -> None:
        raise UnreadableInput("blob-unreadable", where="blobs", message="input/output error")

    monkeypatch.setattr(experiments, "payload_of", unreadable)
    assert "Change of step time by pair" not in shown_with(page, digest)


def test_numbers_in_a_void_pair_do_not_reach_the_picture(page: Page, document: bytes) -> None:
    body = json.loads(document)
    first = next(each for each in body["reported"]["claim"]["pairs"] if each["kind"] == "sham")
    first |= {"void": "abandoned", "d": 800.0, "scale": 800.0, "d_busy": 800.0}
    digest = page.store.put_blob(seal(json.dumps(body).encode(), notary=page.notary))
    shown = shown_with(page, digest)
    assert "chat-0: Change of step time by pair" in shown
    assert "800" not in shown[shown.index("Live proof") : shown.index("Change of step time")]


def test_the_history_of_a_proposal_has_its_canary_replicas(page: Page) -> None:
    kept = {
        "environment": "sha256:" + 64 * "e",
        "template": "sha256:" + 64 * "7",
        "since": "2026-03-02T12:00:00Z",
        "rule": {"mode": "required"},
        "sentence": "canary replicas: pair 2 of 16; 2 replicas in use",
    }
    page.cluster.proposal(page.cluster.policy(), phase="Proving", status={"replicas": kept})
    shown = page.get(f"/proposals/{NAME}").text
    assert "canary-replicas-running" in shown
    assert "pair 2 of 16; 2 replicas in use" in shown


def test_what_accelerators_did_stands_beside_a_drift_and_what_no_sidecar_says_does_not(
    page: Page,
) -> None:
    hot = [{"gpu": "amd-0", "throttled": ["thermal"]}]
    page.store.add(DRIFT, "serving/chat/x", {"report": report(), "gpus": hot}, phase="noted")
    wrong = [{"gpu": "<i>"}]
    page.store.add(DRIFT, "serving/chat/y", {"report": report(), "gpus": wrong}, phase="noted")
    said = page.get("/drift").text
    assert said.count("Beside it: amd-0 is throttled (thermal).") == 1
    assert "Beside it: amd-0 is throttled (thermal)." in page.get("/drift/serving/chat/x").text
    assert "Beside it" not in page.get("/drift/serving/chat/y").text


def test_what_accelerators_did_in_an_experiment_stands_with_how_sure_its_win_is(page: Page) -> None:
    hot = "as it began, amd-0 is throttled (thermal)"
    page.cluster.proposal(page.cluster.policy(), experimentRef="exp-1")
    assert "beside it" not in page.get(f"/proposals/{NAME}").text
    page.cluster.experiment("Succeeded", reason="proposed", detail=hot)
    assert f"{hot} (what may have changed the numbers" in page.get(f"/proposals/{NAME}").text


def test_hours_of_a_swap_are_reckoned_with_the_accelerators_that_pods_request(page: Page) -> None:
    page.cluster.target()
    page.cluster.proposal(page.cluster.policy())
    wanted = {"name": "server", "resources": {"limits": {"amd.com/gpu": "8"}}}
    for name in ("chat-0", "chat-1"):
        about = {"name": name, "namespace": "serving", "labels": {"app": "chat"}}
        page.cluster.fake.make(PODS, {"metadata": about, "spec": {"containers": [wanted]}})
    seen = WorkloadProfile(
        window_start_ns=0, window_ns=100, observed_ns=100, counted=True,
        stats=(SignatureStat(signature=Signature(kernel="k"), launches=1, gpu_time_ns=400,
                             median_ns=400),),
    )  # fmt: skip
    body = {"profile": seen.model_dump(mode="json"), "of_gpus": 8}
    page.store.add(PROFILE, "serving/chat/w", body, phase="new")
    said = page.get(f"/proposals/{NAME}").text
    assert "16 GPUs, kernels running 50.0% of the time" in said


def test_a_window_is_drawn_beside_the_one_that_its_pod_told_before(page: Page) -> None:
    for id, share, before in (("w1", 0.9, ""), ("w2", 0.4, "serving/chat/w1")):
        kept = {"id": id, "profile": window_of(share), "before": before}
        page.store.add(PROFILE, f"serving/chat/{id}", kept, phase="new")
        body = {"id": id, "report": report()}
        page.store.add(DRIFT, f"serving/chat/{id}", body, phase="new")
    first, second = (page.get(f"/drift/serving/chat/{id}").text for id in ("w1", "w2"))
    assert "Where the kernel time goes" in first
    assert second.count("<figure") == first.count("<figure") + 1


def window_of(share: float) -> dict[str, object]:
    """Return a window in which one of two kernels has a share of the time."""
    stats = tuple(
        SignatureStat(
            signature=Signature(kernel=kernel, dims=((16, 4096),), dtypes=("bfloat16",)),
            launches=1000,
            gpu_time_ns=int(part * 10**9),
            median_ns=10_000,
            shape_source=ShapeSource.CAPTURE,
            shape_confidence=1.0,
        )
        for kernel, part in (("rmsnorm", share), ("rope", 1.0 - share))
    )
    found = WorkloadProfile(
        window_start_ns=1_772_000_000 * 10**9,
        window_ns=10**10,
        observed_ns=10**10,
        stats=stats,
        counted=True,
    )
    return found.model_dump(mode="json")


def test_plots_of_drift_are_of_one_server_and_lead_to_the_others(page: Page) -> None:
    for target in ("chat", "code"):
        key = f"serving/{target}/x"
        page.store.add(DRIFT, key, {"id": target, "report": report()}, phase="new")
    first = page.get("/drift").text
    (link,) = re.findall(r'href="(/drift\?server=[^"]+)"', first)
    other = page.get(html.unescape(link)).text
    chosen = [re.findall(r'<strong aria-current="true">([^<]+)<', each) for each in (first, other)]
    assert sorted(chosen) == [["serving/chat"], ["serving/code"]]
    assert all("1 windows" in re.sub(r"\s+", " ", each) for each in (first, other))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "hosts"),
        ({"hosts": []}, "hosts"),
        ({"hosts": ["Upper.example"]}, "hosts.0"),
        ({"hosts": [HOST], "groups": ["system:masters"]}, "groups"),
        ({"hosts": [HOST], "userHeader": "X\r\nY"}, "userHeader"),
        ({"hosts": [HOST], "surprise": 1}, "surprise"),
    ],
)
def test_settings_that_are_wrong_are_named(given: dict[str, object], why: str) -> None:
    with raises_naming(UsageError, why):
        review_settings(given)


def test_a_proxy_that_nothing_proves_is_no_setting() -> None:
    with raises_naming(UsageError, "secret", "addresses"):
        Proxy()
    with raises_naming(UsageError, "secret", "16 bytes"):
        Proxy(secret=b"short")
    with raises_naming(UsageError, "'10.0.3.0/240'"):
        Proxy(addresses=("10.0.3.0/240",))


def test_a_secret_that_cannot_be_read_ends_the_start(tmp_path: Path) -> None:
    from retuned_operator.review.settings import _secret

    with raises_code(UnreadableInput, "secret-unreadable", os.strerror(errno.ENOENT)):
        _secret(tmp_path / "none")
    (tmp_path / "empty").write_text("\n")
    with raises_code(UnreadableInput, "secret-unreadable", "4096 bytes"):
        _secret(tmp_path / "empty")


def test_the_role_names_everybody_whom_it_may_speak_for() -> None:
    users, groups = speaking_rules(("ada",), ("sre",))
    assert users["resourceNames"] == ["ada"]
    assert groups["resourceNames"] == ["sre"]
    assert speaking_rules((), ()) == []
    (any_user,) = speaking_rules((), (), any_user=True)
    assert "resourceNames" not in any_user
