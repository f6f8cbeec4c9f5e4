from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from hypothesis import given, settings
from hypothesis import strategies as st

from retuned_operator.webhook.certificates import (
    CA_LIFE,
    KNOWN_BEFORE_USE,
    LIFE,
    Material,
    read_material,
    renewed,
    write_material,
)

NOW = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)
NAMES = ("retuned-webhook.retuned.svc", "retuned-agent.retuned.svc")


def loaded(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def believed(bundle: bytes, served: bytes) -> bool:
    """Whether somebody who has the bundle believes what is served."""
    for each in x509.load_pem_x509_certificates(bundle):
        try:
            loaded(served).verify_directly_issued_by(each)
        except (InvalidSignature, ValueError):
            continue
        return True
    return False


def test_from_nothing_comes_an_authority_and_a_certificate_for_the_names() -> None:
    made = renewed(None, NAMES, now=NOW)
    served = loaded(made.serving.certificate)
    names = served.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert tuple(names.get_values_for_type(x509.DNSName)) == NAMES
    assert believed(made.bundle(), made.serving.certificate)
    basic = loaded(made.authority.certificate).extensions
    assert basic.get_extension_for_class(x509.BasicConstraints).value.ca is True
    assert served.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False


def test_nothing_is_renewed_that_is_not_due() -> None:
    made = renewed(None, NAMES, now=NOW)
    assert renewed(made, NAMES, now=NOW + LIFE / 2) == made


def test_a_certificate_is_renewed_when_a_third_of_its_life_is_left() -> None:
    made = renewed(None, NAMES, now=NOW)
    later = renewed(made, NAMES, now=NOW + LIFE * 2 / 3 + timedelta(hours=1))
    assert later.authority == made.authority
    assert later.serving != made.serving
    assert believed(made.bundle(), later.serving.certificate)


def test_other_names_are_another_certificate_of_the_same_authority() -> None:
    made = renewed(None, NAMES, now=NOW)
    other = renewed(made, ("other.retuned.svc",), now=NOW)
    assert other.authority == made.authority
    assert other.serving != made.serving


def test_a_new_authority_is_known_before_it_is_used_and_the_old_one_after() -> None:
    made = renewed(None, NAMES, now=NOW)
    late = NOW + CA_LIFE * 2 / 3 + timedelta(hours=1)
    known = renewed(made, NAMES, now=late)
    assert known.authority == made.authority
    assert known.next is not None
    assert known.next.certificate in known.bundle()
    used = renewed(known, NAMES, now=late + KNOWN_BEFORE_USE)
    assert used.authority == known.next
    assert used.former == made.authority.certificate
    assert believed(known.bundle(), used.serving.certificate)
    assert believed(used.bundle(), known.serving.certificate)
    ended = renewed(used, NAMES, now=NOW + CA_LIFE + timedelta(days=1))
    assert ended.former == b""


def test_a_clock_that_went_back_by_years_gives_a_certificate_that_is_good_now() -> None:
    made = renewed(None, NAMES, now=NOW)
    back = renewed(made, NAMES, now=NOW - timedelta(days=800))
    assert loaded(back.serving.certificate).not_valid_before_utc <= NOW - timedelta(days=800)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(min_value=1, max_value=60), min_size=20, max_size=30))
def test_whoever_read_the_bundle_at_one_look_believes_what_is_served_until_the_next(
    days: list[int],
) -> None:
    now, kept = NOW, renewed(None, NAMES, now=NOW)
    for each in days:
        later = now + timedelta(days=each)
        following = renewed(kept, NAMES, now=later)
        assert believed(kept.bundle(), following.serving.certificate)
        assert loaded(following.serving.certificate).not_valid_after_utc > later
        now, kept = later, following


@settings(max_examples=20, deadline=None)
@given(st.integers(min_value=0, max_value=2000))
def test_what_is_served_is_always_good_at_that_moment(hours_a_step: int) -> None:
    now, kept = NOW, renewed(None, NAMES, now=NOW)
    for _ in range(30):
        now += timedelta(hours=hours_a_step)
        kept = renewed(kept, NAMES, now=now)
        served = loaded(kept.serving.certificate)
        assert served.not_valid_before_utc <= now < served.not_valid_after_utc
        assert believed(kept.bundle(), kept.serving.certificate)


def test_what_is_written_is_read_again() -> None:
    made = renewed(None, NAMES, now=NOW)
    assert read_material(write_material(made)) == made
    known = renewed(made, NAMES, now=NOW + CA_LIFE * 2 / 3 + timedelta(hours=1))
    assert read_material(write_material(known)) == known


def broken(material: Material, **changes: bytes) -> dict[str, bytes]:
    return write_material(material) | {k.replace("_", "."): v for k, v in changes.items()}


def test_a_secret_that_is_empty_cut_or_mixed_up_is_nothing() -> None:
    made, other = renewed(None, NAMES, now=NOW), renewed(None, NAMES, now=NOW)
    assert read_material({}) is None
    assert read_material(broken(made, tls_crt=b"")) is None
    assert read_material(broken(made, tls_key=other.serving.key)) is None
    assert read_material(broken(made, ca_crt=made.authority.certificate[:80])) is None
    assert read_material(broken(made, tls_crt=b"x" * 200_000)) is None


def test_a_certificate_of_another_authority_is_not_served() -> None:
    made, other = renewed(None, NAMES, now=NOW), renewed(None, NAMES, now=NOW)
    data = broken(made, tls_crt=other.serving.certificate, tls_key=other.serving.key)
    mixed = read_material(data)
    assert mixed is not None
    mended = renewed(mixed, NAMES, now=NOW)
    assert believed(mended.bundle(), mended.serving.certificate)


def test_keys_show_in_no_message() -> None:
    made = renewed(None, NAMES, now=NOW)
    assert "PRIVATE" not in repr(made)


def test_python_takes_the_pair(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("pair")
    made = renewed(None, NAMES, now=NOW)
    serialization.load_pem_private_key(made.serving.key, password=None)
    (folder / "crt").write_bytes(made.serving.certificate)
    (folder / "key").write_bytes(made.serving.key)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(folder / "crt", folder / "key")
