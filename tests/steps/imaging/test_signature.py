"""C2PA: what is signed reads back with its own reader, and keys stay where they are."""

import io
import json
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.imaging import c2pa as c2pa_module
from imagekiln.steps.imaging.c2pa import C2paSigner
from imagekiln.steps.imaging.codecs import decode_image, encode_image
from imagekiln.steps.imaging.metadata import TRAINED_ALGORITHMIC_MEDIA
from imagekiln.steps.job.output import C2paSettings, Encoding, Jpeg, Png, mime_type
from imagekiln.steps.job.reader import validate_job
from tests import certificates
from tests.encodings import KINDS, noise, said

c2pa = import_module("c2pa")  # it has no types to speak of


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory) -> C2paSettings:
    return C2paSettings(**certificates.write(tmp_path_factory.mktemp("certificates")))  # type: ignore[arg-type]


def verified(content: bytes, kind: str) -> dict[str, Any]:
    """The active manifest, after its signature was checked against the bytes."""
    with c2pa.Reader(kind, io.BytesIO(content)) as reader:
        told = json.loads(reader.json())
    # Nobody trusts a certificate of a test's own; anything else that is wrong would be listed beside it.
    assert [each["code"] for each in told["validation_status"]] == ["signingCredential.untrusted"]
    found: dict[str, Any] = told["manifests"][told["active_manifest"]]
    return found


@pytest.mark.parametrize("encoding", KINDS, ids=said)
def test_a_signed_image_says_that_a_model_made_it(encoding: Encoding, wanted: C2paSettings) -> None:
    content = encode_image(noise(16, 16), encoding)
    signed = C2paSigner(wanted, encoding)(content)
    found = verified(signed, mime_type(encoding))
    assert found["signature_info"]["common_name"] == "signer"
    assert found["claim_generator_info"][0]["name"] == "Imagekiln"
    (assertion,) = found["assertions"]
    assert [action["digitalSourceType"] for action in assertion["data"]["actions"]] == [
        TRAINED_ALGORITHMIC_MEDIA
    ]
    assert np.array_equal(decode_image(signed), decode_image(content)), (
        "the pixels are as they were"
    )


def test_a_changed_pixel_breaks_the_signature(wanted: C2paSettings) -> None:
    signed = bytearray(C2paSigner(wanted, Png(level=0))(encode_image(noise(16, 16), Png(level=0))))
    signed[-100] ^= 1
    with c2pa.Reader("image/png", io.BytesIO(bytes(signed))) as reader:
        assert "assertion.dataHash.mismatch" in {
            each["code"] for each in json.loads(reader.json())["validation_status"]
        }


def test_several_threads_may_sign_at_once(wanted: C2paSettings) -> None:
    sign, content = C2paSigner(wanted, Jpeg()), encode_image(noise(64, 64), Jpeg())
    with ThreadPoolExecutor(4) as pool:
        signed = list(pool.map(sign, [content] * 40))
    assert len(set(signed)) == 40, "no two signatures are alike"
    for each in signed:
        verified(each, "image/jpeg")


def test_certificate_and_key_may_come_from_the_environment(
    wanted: C2paSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_CHAIN", Path(wanted.certificate).read_text())
    monkeypatch.setenv("OUR_KEY", Path(wanted.key).read_text())
    sign = C2paSigner(C2paSettings(certificate="env:OUR_CHAIN", key="env:OUR_KEY"), Png())
    verified(sign(encode_image(noise(8, 8), Png())), "image/png")
    monkeypatch.delenv("OUR_KEY")
    with pytest.raises(
        BadInput, match=r"c2pa\.key: there is no variable OUR_KEY in the environment\. Set it\."
    ):
        C2paSigner(C2paSettings(certificate="env:OUR_CHAIN", key="env:OUR_KEY"), Png())


def test_what_cannot_sign_is_refused_before_any_image_is_made(
    wanted: C2paSettings, tmp_path: Path
) -> None:
    other = certificates.write(tmp_path / "other")
    expired = certificates.write(tmp_path / "expired", days=0)
    (tmp_path / "no.pem").write_text("no PEM at all")
    for settings in (
        {"certificate": wanted.certificate, "key": other["key"]},
        {"certificate": wanted.certificate, "key": str(tmp_path / "no.pem")},
        {"certificate": str(tmp_path / "no.pem"), "key": wanted.key},
        {"certificate": wanted.certificate, "key": wanted.key, "algorithm": "ps256"},
        expired,
    ):
        with pytest.raises(
            BadInput, match=r"^c2pa: .* do not sign by \w+ \(.+\)\. Correct them\.$"
        ) as caught:
            C2paSigner(C2paSettings(**settings), Png())  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
        assert "PRIVATE" not in str(caught.value)
    with pytest.raises(BadInput, match=r"c2pa\.key: .*nowhere\.pem: no such file"):
        C2paSigner(
            C2paSettings(certificate=wanted.certificate, key=str(tmp_path / "nowhere.pem")), Png()
        )


def test_without_the_extra_it_is_said_what_to_install(
    wanted: C2paSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(c2pa_module, "find_spec", lambda _: None)
    with pytest.raises(
        BadInput, match=r"c2pa is set, which needs an extra\. Install imagekiln\[c2pa\]"
    ):
        C2paSigner(wanted, Png())


@pytest.mark.parametrize("setting", ["key", "certificate"])
def test_a_key_in_the_job_itself_is_refused_and_not_repeated(
    setting: str, wanted: C2paSettings
) -> None:
    values = wanted.model_dump() | {setting: "-----BEGIN PRIVATE KEY-----\nsecret\n"}
    smallest = {
        "name": "a",
        "prompts": "p",
        "output": "o",
        "model": {"id": "bundled:shapes"},
        "c2pa": values,
    }
    with pytest.raises(BadInput) as caught:
        validate_job(smallest)
    assert str(caught.value) == (
        f"job: c2pa.{setting} holds the key or certificate itself; write the name of a file, or env:NAME."
    )
