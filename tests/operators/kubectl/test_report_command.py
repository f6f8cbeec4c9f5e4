"""``kubectl retuned report``: what the operator writes is what people read, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.expect import raises_code
from tests.fakeapi.access import Identity
from tests.fakeapi.server import FakeApi
from tests.operators.kubectl.conftest import ROLES, Cluster, Run

from retuned.errors import UnreadableInput
from retuned.stages.watch import METHOD, Account, Hours
from retuned_operator.kube.resources import CONFIG_MAPS
from retuned_operator.manifests import report
from retuned_operator.manifests.report import KEY, REPORT, read_report, report_map
from retuned_operator.manifests.roles import watching_rules
from retuned_operator.savings import write_reports


def account(target: str = "serving/chat", month: str = "2026-11", **changes: Any) -> Account:
    values: dict[str, Any] = {
        "definition": "rmsnorm_h512",
        "spent_h": 1.5,
        "experiments": 2,
        "saved_h": Hours(lower=10.0, point=12.25, upper=14.0),
        "swaps": 1,
    }
    return Account(target=target, month=month, **(values | changes))


ACCOUNTS = (account(), account("lab/other"), account(month="2026-10", definition="gelu"))


def written(fake: FakeApi, *namespaces: str) -> None:
    assert write_reports(fake.api(), ACCOUNTS, namespaces=namespaces) == ()


def test_the_table_and_the_json_are_those_of_one_machine(cluster: Cluster, run: Run) -> None:
    cluster.target()
    written(cluster.fake, "serving")
    text = run("report", who="eve")
    for part in ("2026-11", "serving/chat", "rmsnorm_h512", "12", "2 experiments, 1 swap", METHOD):
        assert part in text
    assert "lab/other" not in text
    for where in ((), ("-A",), ("-n", "serving")):
        body = run("report", *where, "-o", "json", who="eve")
        assert [(each["month"], each["kernel"]) for each in body["accounts"]] == [
            ("2026-11", "rmsnorm_h512"),
            ("2026-10", "gelu"),
        ]
        assert body["total"]["saved_gpu_hours"] == {"lower": 20.0, "point": 24.5, "upper": 28.0}
        assert (body["left_out"], body["missing"], body["unreadable"]) == (0, [], [])
    assert run("report", "-o", "name") == f"configmap/{REPORT}\n"


def test_a_month_and_a_kernel_are_chosen_and_unknown_ones_are_named(
    cluster: Cluster, run: Run
) -> None:
    written(cluster.fake, "serving")
    body = run("report", "--month", "2026-10", "-o", "json")
    assert [each["kernel"] for each in body["accounts"]] == ["gelu"]
    body = run("report", "--kernel", "rmsnorm_h512", "-o", "json")
    assert [each["month"] for each in body["accounts"]] == ["2026-11"]
    assert "there are gelu" in run("report", "--kernel", "gelv", code=2)
    assert "a year and a month" in run("report", "--month", "10/2026", code=2)


def test_where_nothing_was_written_that_is_said(cluster: Cluster, run: Run) -> None:
    text = run("report")
    assert "namespace serving has no report: the operator writes it every ten minutes" in text
    assert "Nothing was spent and nothing saved yet; the operator adds it up" in text
    assert run("report", "-o", "json")["missing"] == ["serving"]


def test_who_may_not_read_it_is_told_which_role_to_ask_for(cluster: Cluster, run: Run) -> None:
    cluster.fake.access.add("lin", Identity(name="lin"))
    written(cluster.fake, "serving")
    assert "ClusterRole retuned-viewer in namespace serving" in run("report", who="lin", code=1)
    cluster.fake.access.bind("lin", ROLES["retuned-viewer"], namespace="serving")
    assert "serving/chat" in run("report", who="lin")


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "[" * 100_000,
        '{"version": 2}',
        '{"accounts": [{"month": "2026-11"}]}',
        report_map("lab", ACCOUNTS)["data"][KEY],
        report_map("serving", ACCOUNTS)["data"][KEY].replace("12.25", "NaN"),
        report_map("serving", ACCOUNTS)["data"][KEY].replace("12.25", "1e999"),
        report_map("serving", ACCOUNTS)["data"][KEY].replace('"swaps":1', '"swaps":-1'),
    ],
    ids=["none", "empty", "deep", "newer", "half", "of-another", "nan", "endless", "negative"],
)
def test_what_the_operator_has_not_written_is_not_believed(
    cluster: Cluster, run: Run, text: str | None
) -> None:
    body = {
        "metadata": {"name": REPORT, "namespace": "serving"},
        "data": {} if text is None else {KEY: text},
    }
    with raises_code(UnreadableInput, "not-a-report", "configmap serving/retuned-report"):
        read_report(body, namespace="serving")
    cluster.fake.make(CONFIG_MAPS, body)
    answer = run("report", "-o", "json")
    assert answer["accounts"] == []
    assert len(answer["unreadable"]) == 1


def test_only_what_has_changed_is_written_and_that_with_the_operators_rights_alone() -> None:
    with FakeApi(namespaces=("default", "serving", "lab")) as fake:
        fake.access.add("operator", Identity(name="operator"))
        for namespace in ("serving", "lab"):
            fake.access.bind("operator", watching_rules(), namespace=namespace)
        api = fake.api(token="operator")

        def version() -> str:
            found = api.get(CONFIG_MAPS, REPORT, namespace="serving")
            return str(found["metadata"]["resourceVersion"])

        assert write_reports(api, ACCOUNTS, namespaces=("serving", "gone", "lab")) == ("gone",)
        first = version()
        assert write_reports(api, ACCOUNTS, namespaces=("serving",)) == ()
        assert version() == first
        more = (account(spent_h=3.0), *ACCOUNTS[1:])
        assert write_reports(api, more, namespaces=("serving",)) == ()
        assert version() != first
        body = api.get(CONFIG_MAPS, REPORT, namespace="serving")
        assert read_report(body, namespace="serving") == ((more[0], more[2]), 0)


def test_what_finds_no_room_is_counted_and_it_is_the_oldest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many = [account(month=f"{year}-12", definition="k" * 900) for year in range(9999, 8000, -1)]
    body = report_map("serving", many)
    assert len(json.dumps(body)) < 900_000
    found, left_out = read_report(body, namespace="serving")
    assert 0 < left_out == len(many) - len(found)
    assert found == tuple(many[: len(found)])
    monkeypatch.setattr(report, "MAX_BYTES", 10)
    assert read_report(report_map("serving", many), namespace="serving") == ((), len(many))


CLAIM = {"lower": 1.8, "point": 2.0, "upper": 2.2, "confidence": 0.99}
A, B = "sha256:" + "a" * 64, "sha256:" + "b" * 64


def a_proof(environment: str = A, **changes: Any) -> dict[str, Any]:
    return {
        "name": "chat-0",
        "uid": "u-0",
        "epoch": 2,
        "environment": environment,
        "wave": 0,
        "swapped": 1,
        "since": "2026-11-27T09:00:00Z",
        "rule": {"mode": "required"},
        "phase": "done",
        "verdict": "helps",
        "reason": "faster",
        "at": "2026-11-27T09:05:00Z",
        "effect": -0.02,
        "low": -0.03,
        "high": -0.01,
        "pairs": 24,
    } | changes


def proposed(cluster: Cluster, name: str, *proofs: dict[str, Any]) -> None:
    cluster.proposal(
        None,
        name=name,
        phase="Promoted",
        status={"liveProofs": list(proofs)},
        share=0.2,
        speedup=CLAIM,
    )


def test_claims_are_shown_beside_what_live_proofs_of_the_cluster_showed(
    cluster: Cluster, run: Run
) -> None:
    assert "No swap was proven on live traffic yet." in run("report", "--calibration", who="eve")
    proposed(cluster, "swp-a", a_proof())
    text = " ".join(run("report", "--calibration", who="eve").split())
    for part in ("2026-11-27", "rmsnorm_h512", "helps", "-10.0 %", "unknown",
                 "-2.0 % (-3.0 to -1.0)", "0.20", "differs", "1 of 1",
                 "0.20 of the claim was measured"):  # fmt: skip
        assert part in text
    body = run("report", "--calibration", "-o", "json")
    (row,) = body["swaps"]
    assert (row["proposal"], row["differs"], row["predicted"]) == ("swp-a", True, None)
    assert (row["share"], row["speedup"]["point"], row["pairs"]) == (0.2, 2.0, 24)
    assert run("report", "--calibration", "-o", "name") == "swapproposal.retuned.dev/swp-a\n"


def test_the_newest_proof_of_each_environment_counts(cluster: Cluster, run: Run) -> None:
    proofs = (
        a_proof(),
        a_proof(effect=-0.05, low=-0.06, high=-0.04, wave=1, at="2026-11-27T10:05:00Z"),
        a_proof(B, effect=-0.09, low=-0.12, high=-0.08),
        a_proof(wave=2, verdict="too-little-traffic", reason="few-steps", effect=None),
        a_proof(wave=3, verdict="", reason="", at=None, effect=None),
    )
    proposed(cluster, "swp-b", *({k: v for k, v in p.items() if v is not None} for p in proofs))
    body = run("report", "--calibration", "-o", "json")
    assert [each["live"]["effect"] for each in body["swaps"]] == [-0.09, -0.05]
    assert [each["differs"] for each in body["swaps"]] == [False, True]
    assert 0.4 < body["median_ratio"] < 0.9


def test_a_month_and_a_kernel_are_chosen_of_claims_too(cluster: Cluster, run: Run) -> None:
    proposed(cluster, "swp-a", a_proof())
    words = ("report", "--calibration", "-o", "json")
    assert run(*words, "--month", "2026-10")["swaps"] == []
    assert len(run(*words, "--month", "2026-11", "--kernel", "rmsnorm_h512")["swaps"]) == 1
    assert "there are rmsnorm_h512" in run(*words[:2], "--kernel", "rmsnorm", code=2)


def test_a_verdict_of_another_release_hides_no_other(cluster: Cluster, run: Run) -> None:
    proposed(cluster, "swp-a", a_proof())
    proposed(cluster, "swp-b", a_proof(reason="solar-wind"))
    body = run("report", "--calibration", "-o", "json")
    assert [each["proposal"] for each in body["swaps"]] == ["swp-a"]
    assert "swp-b" in body["unreadable"][0]
