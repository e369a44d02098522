"""C2PA: signed images verify with its own reader, and keys stay secret."""

import io
import json
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from imagekiln.steps.errors import BadInput
from imagekiln.steps.imaging.c2pa import C2paSigner
from imagekiln.steps.imaging.codecs import decode_image, encode_image
from imagekiln.steps.imaging.metadata import TRAINED_ALGORITHMIC_MEDIA
from imagekiln.steps.job.output import C2paSettings, Encoding, Png, mime_type
from imagekiln.steps.job.reader import validate_job
from tests import certificates, jobs
from tests.certificates import verified
from tests.encodings import KINDS, encoding_label, noise
from tests.smallest import SMALLEST

c2pa = import_module("c2pa")  # it has no types to speak of


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> C2paSettings:
    return C2paSettings(**certificates.write(tmp_path_factory.mktemp("certificates")))


@pytest.mark.parametrize("encoding", KINDS, ids=encoding_label)
def test_a_signed_image_says_that_a_model_made_it(
    encoding: Encoding, settings: C2paSettings
) -> None:
    content = encode_image(noise(16, 16), encoding)
    signed = C2paSigner(settings, encoding)(content)
    manifest = verified(signed, mime_type(encoding))
    assert manifest["signature_info"]["common_name"] == "signer"
    assert manifest["claim_generator_info"][0]["name"] == "Imagekiln"
    (assertion,) = manifest["assertions"]
    assert [action["digitalSourceType"] for action in assertion["data"]["actions"]] == [
        TRAINED_ALGORITHMIC_MEDIA
    ]
    assert np.array_equal(decode_image(signed), decode_image(content)), (
        "the pixels are as they were"
    )


def test_a_changed_pixel_breaks_the_signature(settings: C2paSettings) -> None:
    signed = bytearray(C2paSigner(settings, Png())(encode_image(noise(16, 16), Png())))
    signed[-100] ^= 1
    with c2pa.Reader("image/png", io.BytesIO(bytes(signed))) as reader:
        assert "assertion.dataHash.mismatch" in {
            status["code"] for status in json.loads(reader.json())["validation_status"]
        }


def test_certificate_and_key_may_come_from_the_environment(
    settings: C2paSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_CHAIN", Path(settings.certificate).read_text())
    monkeypatch.setenv("OUR_KEY", Path(settings.key).read_text())
    sign = C2paSigner(C2paSettings(certificate="env:OUR_CHAIN", key="env:OUR_KEY"), Png())
    verified(sign(encode_image(noise(8, 8), Png())), "image/png")
    monkeypatch.delenv("OUR_KEY")
    with pytest.raises(
        BadInput, match=r"c2pa\.key: the environment variable OUR_KEY is not set\. Set it\."
    ):
        C2paSigner(C2paSettings(certificate="env:OUR_CHAIN", key="env:OUR_KEY"), Png())


def test_settings_that_cannot_sign_are_refused_before_any_image_is_drawn(
    settings: C2paSettings, tmp_path: Path
) -> None:
    other = certificates.write(tmp_path / "other")
    expired = certificates.write(tmp_path / "expired", days=0)
    (tmp_path / "no.pem").write_text("no PEM at all")
    for values in (
        {"certificate": settings.certificate, "key": other["key"]},
        {"certificate": settings.certificate, "key": str(tmp_path / "no.pem")},
        {"certificate": str(tmp_path / "no.pem"), "key": settings.key},
        expired,
    ):
        with pytest.raises(
            BadInput, match=r"^c2pa: .* do not sign images \(.+\)\. Correct c2pa\."
        ) as caught:
            C2paSigner(C2paSettings(**values), Png())
        assert "\n" not in str(caught.value)
        assert "PRIVATE" not in str(caught.value)
    with pytest.raises(BadInput, match=r"c2pa\.key: .*nowhere\.pem: no such file"):
        C2paSigner(
            C2paSettings(certificate=settings.certificate, key=str(tmp_path / "nowhere.pem")), Png()
        )


def test_a_plan_names_the_key_and_holds_nothing_of_it(
    settings: C2paSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = Path(settings.key).read_text()
    monkeypatch.setenv("OUR_KEY", key)
    secret = key.splitlines()[1].encode()
    for run_id, name in (("file", settings.key), ("variable", "env:OUR_KEY")):
        c2pa_settings = {"certificate": settings.certificate, "key": name}
        planned = jobs.plan(tmp_path, {"prompt": ["a"]}, c2pa=c2pa_settings, run_id=run_id)
        objects = jobs.files(Path(planned.uri))
        assert name.encode() in objects["plan.json"]
        assert not any(secret in content for content in objects.values())


@pytest.mark.parametrize("setting", ["key", "certificate"])
def test_a_key_in_the_job_itself_is_refused_and_not_repeated(
    setting: str, settings: C2paSettings
) -> None:
    values = settings.model_dump() | {setting: "-----BEGIN PRIVATE KEY-----\nsecret\n"}
    with pytest.raises(BadInput) as caught:
        validate_job({**SMALLEST, "c2pa": values})
    assert str(caught.value) == (
        f"job: c2pa.{setting} contains the key or certificate itself; "
        "write the path of a file, or env:NAME."
    )
