"""The whole operator serves the page, with the agent API's certificate and the chart's settings."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx
import pytest
import yaml
from tests.fakeapi.server import FakeApi
from tests.operators import examples
from tests.operators.program.test_program import (
    ACCOUNT,
    _authority,
    eventually,
    fake,
    running,
    settings,
)

from retuned_operator.kube.resources import PROPOSALS
from retuned_operator.manifests.roles import people_roles, speaking_rules
from retuned_operator.settings import Settings, load_settings

pytestmark = pytest.mark.slow
__all__ = ["fake", "settings"]
SECRET = "correct-horse-battery"
HOST = "tuning.example.com"


@pytest.fixture
def with_page(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    file = tmp_path / "operator.yaml"
    (tmp_path / "secret").write_text(SECRET)
    review = {
        "hosts": [HOST],
        "place": "prod-eu",
        "secretFile": str(tmp_path / "secret"),
        "groups": ["sre"],
    }
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | {"review": review}))
    monkeypatch.setenv("RETUNED_OPERATOR_REVIEW_PORT", "0")
    return load_settings(file)


def test_people_see_through_the_proxy_what_the_operator_watches(
    fake: FakeApi, with_page: Settings, tmp_path: Path
) -> None:
    viewer = next(r for r in people_roles() if r["metadata"]["name"] == "retuned-viewer")
    fake.access.bind("sre", viewer["rules"])
    fake.access.bind(ACCOUNT, speaking_rules(("ada",), ("sre",)))
    headers = {
        "host": HOST,
        "x-retuned-proxy-secret": SECRET,
        "x-forwarded-user": "ada",
        "x-forwarded-groups": "sre",
    }
    with running(fake, with_page, []) as operator:
        fake.make(PROPOSALS, examples.a_swap(expiresAt="2099-01-01T00:00:00Z"))
        port = eventually(lambda: operator.review_port)
        authority = ssl.create_default_context(cafile=_authority(fake, tmp_path))
        with httpx.Client(
            base_url=f"https://localhost:{port}", verify=authority, timeout=60.0
        ) as http:
            assert http.get("/healthz").text == "ok\n"
            assert http.get("/", headers={"host": HOST}).status_code == 403

            def listed() -> bool:
                found = [http.get(path, headers=headers).text for path in ("/", "/past")]
                return any("serving/swp-1" in text for text in found)

            eventually(listed)
            shown = http.get("/proposals/serving/swp-1", headers=headers)
            assert shown.status_code == 200
            assert "prod-eu" in shown.text
            assert "NOT VERIFIED" in shown.text, "its evidence is in nobody's store"
