"""A certificate chain to sign images with, and the verification of signed images."""

import io
import json
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


def verified(content: bytes, kind: str) -> dict[str, Any]:
    """The active manifest of a signed image, whose signature is verified against the bytes."""
    with import_module("c2pa").Reader(kind, io.BytesIO(content)) as reader:
        report = json.loads(reader.json())
    # No trust list has a test's own certificate. Any other problem would be listed too.
    codes = [status["code"] for status in report["validation_status"]]
    assert codes == ["signingCredential.untrusted"]
    manifest: dict[str, Any] = report["manifests"][report["active_manifest"]]
    return manifest


def write(folder: Path, days: int = 30) -> dict[str, str]:
    """Write a certificate and a key, valid from yesterday on, and return the settings of `c2pa`."""
    root = generate_private_key(SECP256R1())
    leaf = generate_private_key(SECP256R1())
    chain = (_certificate("signer", leaf, root, days), _certificate("root", root, root, days))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "chain.pem").write_bytes(
        b"".join(certificate.public_bytes(Encoding.PEM) for certificate in chain)
    )
    (folder / "key.pem").write_bytes(
        leaf.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    return {"certificate": str(folder / "chain.pem"), "key": str(folder / "key.pem")}


def _certificate(
    name: str, key: EllipticCurvePrivateKey, issuer: EllipticCurvePrivateKey, days: int
) -> x509.Certificate:
    ca = key is issuer
    start = datetime.now(UTC) - timedelta(days=1)
    usage = x509.KeyUsage(
        digital_signature=not ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name("root"))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca, None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False
        )
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION]), critical=False
        )
        .sign(issuer, hashes.SHA256())
    )


def _name(name: str) -> x509.Name:
    names = {NameOID.COMMON_NAME: name, NameOID.ORGANIZATION_NAME: "Imagekiln's tests"}
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in names.items()])
