"""Sign images by C2PA, so that anybody can verify the signer, and that a model made them.

Signing needs no network. Signatures differ each time, so the same image signed twice has different
bytes.
"""

import io
import json
import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from imagekiln.steps.errors import BadInput, Missing, NotInstalled, first_line
from imagekiln.steps.imaging.codecs import encode_image
from imagekiln.steps.imaging.metadata import TRAINED_ALGORITHMIC_MEDIA, program_version
from imagekiln.steps.job.output import C2paSettings, Encoding, mime_type
from imagekiln.steps.storage.failures import translate_errors

ENVIRONMENT_REFERENCE = "env:"
ALGORITHMS_OF_CURVES = {"secp256r1": b"es256", "secp384r1": b"es384", "secp521r1": b"es512"}
NOT_INSTALLED = (
    "c2pa: the library is not installed. Type: pip install 'imagekiln[c2pa]', or remove c2pa."
)


class C2paSigner:
    """Signs encoded images. Thread-safe."""

    def __init__(self, settings: C2paSettings, encoding: Encoding) -> None:
        """Read certificate and key, and sign a small image to test them.

        Raises BadInput if that fails, NotInstalled without the library c2pa.
        """
        if find_spec("c2pa") is None:
            raise NotInstalled(NOT_INSTALLED)
        self._c2pa = import_module("c2pa")
        self._settings = settings
        self._media_type = mime_type(encoding)

        chain = _read_secret("certificate", settings.certificate)
        key = _read_secret("key", settings.key)
        small = encode_image(np.zeros((8, 8, 3), dtype=np.uint8), encoding)
        # Verifying takes as long as signing: once is enough.
        self._context = self._open_context(chain, key, verify=True)
        self(small)
        self._context = self._open_context(chain, key, verify=False)

    def __call__(self, content: bytes) -> bytes:
        """Sign the image file `content`. Raises BadInput if the certificate no longer works."""
        signed = io.BytesIO()
        try:
            with self._c2pa.Builder(_c2pa_manifest(), self._context) as builder:
                builder.sign(self._media_type, io.BytesIO(content), signed)
        except self._c2pa.C2paError as error:
            raise self._explain(error) from error
        return signed.getvalue()

    def _open_context(self, chain: bytes, key: bytes, verify: bool) -> Any:  # noqa: ANN401  # c2pa has no types to speak of
        settings = {
            "builder": {"thumbnail": {"enabled": False}},
            "verify": {"verify_after_sign": verify},
        }
        try:
            info = self._c2pa.C2paSignerInfo(_key_algorithm(key), chain, key, None)
            return self._c2pa.Context.from_dict(settings, self._c2pa.Signer.from_info(info))
        except (self._c2pa.C2paError, ValueError, TypeError, LookupError) as error:
            raise self._explain(error) from error

    def _explain(self, error: Exception) -> BadInput:
        settings = self._settings
        return BadInput(
            f"c2pa: {settings.certificate} and {settings.key} do not sign images "
            f"({first_line(str(error))}). Correct c2pa.certificate or c2pa.key."
        )


def _key_algorithm(content: bytes) -> bytes:
    """Return a private key's algorithm. Raises ValueError, LookupError if it is not supported."""
    # Comes with c2pa, which is an extra.
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(content, None)
    if isinstance(key, RSAPrivateKey):
        return b"ps256"
    if isinstance(key, Ed25519PrivateKey):
        return b"ed25519"
    curve = key.curve.name if isinstance(key, EllipticCurvePrivateKey) else type(key).__name__
    return ALGORITHMS_OF_CURVES[curve]


def _read_secret(setting: str, reference: str) -> bytes:
    """Read the file or environment variable that the setting refers to."""
    if not reference.startswith(ENVIRONMENT_REFERENCE):
        with translate_errors(f"c2pa.{setting}: {reference}"):
            return Path(reference).read_bytes()
    variable = reference.removeprefix(ENVIRONMENT_REFERENCE)
    content = os.environ.get(variable)
    if not content:
        raise Missing(f"c2pa.{setting}: the environment variable {variable} is not set. Set it.")
    return content.encode()


def _c2pa_manifest() -> str:
    """Build the signed manifest: made by a model with Imagekiln. It has no prompt and no model."""
    name, _, version = program_version().partition(" ")
    generator = {"name": name}
    if version:
        generator["version"] = version
    action = {"action": "c2pa.created", "digitalSourceType": TRAINED_ALGORITHMIC_MEDIA}
    manifest = {
        "claim_generator_info": [generator],
        "assertions": [{"label": "c2pa.actions.v2", "data": {"actions": [action]}}],
    }
    return json.dumps(manifest)
