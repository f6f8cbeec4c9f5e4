"""Our own authority and its certificates, for clusters without cert-manager.

`renewed` decides which are due; keys are the only randomness, and the time is an argument. A new
authority is published before it is used, and an old one stays published until it ends, so that the
cluster trusts the certificate in use at all times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFE = timedelta(days=730)
"""Life of an authority."""
LIFE = timedelta(days=90)
"""Life of a serving certificate."""
KNOWN_BEFORE_USE = timedelta(hours=24)
"""How long an authority is published before it signs what is served; kubelets and sidecars read
its bundle again within minutes."""
_SKEW = timedelta(minutes=10)
"""How far clocks may differ."""
_MAX_PEM = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate and its key, PEM."""

    certificate: bytes
    """The certificate."""
    key: bytes
    """Its private key; never logged."""

    def __repr__(self) -> str:
        return "Pair(...)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """All that is kept."""

    authority: Pair
    """Signs what is served."""
    serving: Pair
    """What is served."""
    next: Pair | None = None
    """The authority after this one, published and not used yet."""
    former: bytes = b""
    """Certificate of the authority before this one; empty once it has ended."""

    def bundle(self) -> bytes:
        """Return the certificates of all authorities that may be met, PEM."""
        known = [self.authority.certificate, self.next.certificate if self.next else b""]
        return b"".join([*known, self.former])


def renewed(material: Material | None, names: Sequence[str], *, now: datetime) -> Material:
    """Return what ought to be kept now; the same where nothing is due.

    Parameters
    ----------
    material
        What is kept; None where there is nothing, or nothing that can be used.
    names
        DNS names that are served, the first one first.
    now
        Moment, with a zone.
    """
    if material is None or _end(material.authority) <= now:
        authority = _authority(now)
        return Material(authority=authority, serving=_serving(authority, names, now))
    if material.former and _ends(material.former) <= now:
        material = replace(material, former=b"")
    if material.next is not None and now >= _begin(material.next) + KNOWN_BEFORE_USE:
        former = material.authority.certificate
        material = replace(material, authority=material.next, next=None, former=former)
    if material.next is None and _is_late(material.authority, now):
        material = replace(material, next=_authority(now))
    if _serves(material, names) and not _is_late(material.serving, now):
        return material
    return replace(material, serving=_serving(material.authority, names, now))


def read_material(data: Mapping[str, bytes]) -> Material | None:
    """Return what a Secret keeps; None where it is empty or cannot be used."""
    try:
        pairs = [
            Pair(certificate=_certified(data[f"{name}.crt"]), key=_private(data[f"{name}.key"]))
            for name in ("ca", "tls", *(["next-ca"] if data.get("next-ca.crt") else []))
        ]
        former = _certified(data["former-ca.crt"]) if data.get("former-ca.crt") else b""
        if not all(map(_belong, pairs)):
            return None
    except (KeyError, ValueError, TypeError):
        return None
    authority, serving, *more = pairs
    return Material(
        authority=authority, serving=serving, next=more[0] if more else None, former=former
    )


def write_material(material: Material) -> dict[str, bytes]:
    """Return the data of the Secret; keys that are not there any more are empty."""
    after = material.next
    return {
        "ca.crt": material.authority.certificate,
        "ca.key": material.authority.key,
        "tls.crt": material.serving.certificate,
        "tls.key": material.serving.key,
        "next-ca.crt": after.certificate if after else b"",
        "next-ca.key": after.key if after else b"",
        "former-ca.crt": material.former,
    }


def _authority(now: datetime) -> Pair:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"retuned {now:%Y-%m-%d}")])
    built = (
        _begun(name, name, key=key, life=CA_LIFE, now=now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    return _pair(built.sign(key, hashes.SHA256()), key)


def _serving(authority: Pair, names: Sequence[str], now: datetime) -> Pair:
    signer = _loaded(authority.certificate)
    signing = _key(authority.key)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    life = min(LIFE, signer.not_valid_after_utc - now)
    built = (
        _begun(subject, signer.subject, key=key, life=life, now=now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()),
            critical=False,
        )
    )
    return _pair(built.sign(signing, hashes.SHA256()), key)


def _begun(
    subject: x509.Name,
    issuer: x509.Name,
    *,
    key: ec.EllipticCurvePrivateKey,
    life: timedelta,
    now: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _serves(material: Material, names: Sequence[str]) -> bool:
    """Whether what is served is for these names, and signed by the authority in use."""
    served = _loaded(material.serving.certificate)
    try:
        served.verify_directly_issued_by(_loaded(material.authority.certificate))
        said = served.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (InvalidSignature, ValueError, TypeError, x509.ExtensionNotFound):
        return False
    return said.get_values_for_type(x509.DNSName) == list(names)


def _is_late(pair: Pair, now: datetime) -> bool:
    """Whether less than a third of its life is left, or it has not begun."""
    begin, end = _begin(pair), _end(pair)
    return now < begin - _SKEW or end - now < (end - begin) / 3


def _begin(pair: Pair) -> datetime:
    return _loaded(pair.certificate).not_valid_before_utc + _SKEW


def _end(pair: Pair) -> datetime:
    return _ends(pair.certificate)


def _ends(certificate: bytes) -> datetime:
    return _loaded(certificate).not_valid_after_utc


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    return Pair(
        certificate=certificate.public_bytes(serialization.Encoding.PEM),
        key=key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
    )


def _loaded(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def _key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("expected an elliptic curve's key")
    return key


def _certified(pem: bytes) -> bytes:
    if len(pem) > _MAX_PEM:
        raise ValueError("a certificate is smaller")
    _loaded(pem)
    return pem


def _private(pem: bytes) -> bytes:
    if len(pem) > _MAX_PEM:
        raise ValueError("a key is smaller")
    _key(pem)
    return pem


def _belong(pair: Pair) -> bool:
    return _loaded(pair.certificate).public_key() == _key(pair.key).public_key()
