"""C2PA: a signature in each image by which anybody can check who made it, and that a model did.

Nothing is asked of a network. No two signatures are alike, so the same image signed twice has other bytes.
"""

import io
import json
import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from imagekiln.steps.errors import BadInput, Missing, first_line
from imagekiln.steps.imaging.codecs import encode_image
from imagekiln.steps.imaging.metadata import TRAINED_ALGORITHMIC_MEDIA, program_version
from imagekiln.steps.job.output import C2paSettings, Encoding, mime_type
from imagekiln.steps.storage.failures import translate_errors

ENVIRONMENT_REFERENCE = "env:"


class C2paSigner:
    """Signs the bytes of images. May be called from several threads at once."""

    def __init__(self, wanted: C2paSettings, encoding: Encoding) -> None:
        """Read certificate and key, and try them on a small picture. Raises BadInput where they do not sign."""
        if find_spec("c2pa") is None:
            raise BadInput(
                "c2pa is set, which needs an extra. Install imagekiln[c2pa], or remove c2pa."
            )
        self._c2pa, self._wanted, self._mime = import_module("c2pa"), wanted, mime_type(encoding)
        chain, key = (
            _read_secret("certificate", wanted.certificate),
            _read_secret("key", wanted.key),
        )
        small = encode_image(np.zeros((8, 8, 3), dtype=np.uint8), encoding)
        self._context = self._open_context(chain, key, check=True)
        self(small)
        self._context = self._open_context(chain, key, check=False)

    def __call__(self, content: bytes) -> bytes:
        """The image with its signature in it. Raises BadInput where the certificate no longer signs."""
        signed = io.BytesIO()
        try:
            with self._c2pa.Builder(_c2pa_manifest(), self._context) as builder:
                builder.sign(self._mime, io.BytesIO(content), signed)
        except self._c2pa.C2paError as error:
            raise self._signing_error(error) from error
        return signed.getvalue()

    def _open_context(self, chain: bytes, key: bytes, check: bool) -> Any:  # noqa: ANN401  # c2pa has no types to speak of
        """What signs. Whether each signature is checked at once makes as much work again."""
        settings = {
            "builder": {"thumbnail": {"enabled": False}},
            "verify": {"verify_after_sign": check},
        }
        try:
            info = self._c2pa.C2paSignerInfo(self._wanted.algorithm.encode(), chain, key, None)
            return self._c2pa.Context.from_dict(settings, self._c2pa.Signer.from_info(info))
        except self._c2pa.C2paError as error:
            raise self._signing_error(error) from error

    def _signing_error(self, error: Exception) -> BadInput:
        said, wanted = first_line(str(error)), self._wanted
        return BadInput(
            f"c2pa: {wanted.certificate} and {wanted.key} do not sign by {wanted.algorithm} ({said}). Correct them."
        )


def _read_secret(setting: str, name: str) -> bytes:
    if not name.startswith(ENVIRONMENT_REFERENCE):
        with translate_errors(f"c2pa.{setting}: {name}"):
            return Path(name).read_bytes()
    variable = name.removeprefix(ENVIRONMENT_REFERENCE)
    if not (content := os.environ.get(variable)):
        raise Missing(
            f"c2pa.{setting}: there is no variable {variable} in the environment. Set it."
        )
    return content.encode()


def _c2pa_manifest() -> str:
    """What is signed beside the pixels: made by a model, with Imagekiln. No prompt, no model's name."""
    name, _, version = program_version().partition(" ")
    generator = {"name": name, "version": version} if version else {"name": name}
    made = {"action": "c2pa.created", "digitalSourceType": TRAINED_ALGORITHMIC_MEDIA}
    assertions = [{"label": "c2pa.actions.v2", "data": {"actions": [made]}}]
    return json.dumps({"claim_generator_info": [generator], "assertions": assertions})
