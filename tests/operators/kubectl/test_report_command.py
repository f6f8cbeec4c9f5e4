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
