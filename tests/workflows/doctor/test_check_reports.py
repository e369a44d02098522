"""Whether Argo can keep reports, and by what."""

import pytest

from imagekiln.workflows.doctor.check_reports import (
    DEFAULT_REPOSITORY_ANNOTATION,
    check_report_artifact,
)
from tests.kube import CORE, Kube

CONFIG = f"{CORE}/configmaps"
ROLE = {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::111122223333:role/imagekiln"}}


def _place(kube: Kube, text: str) -> None:
    about = {"annotations": {DEFAULT_REPOSITORY_ANNOTATION: "s3"}}
    kube.put(CONFIG, "artifact-repositories", metadata=about, data={"s3": text})


def test_our_own_manifests_give_reports_a_place(kube: Kube) -> None:
    assert (
        check_report_artifact(kube.view()).says == "Argo keeps reports by artifact-repositories/s3."
    )


def test_reports_without_a_place_are_wrong(kube: Kube) -> None:
    del kube.objects[f"{CONFIG}/artifact-repositories"]
    found = check_report_artifact(kube.view())
    assert found.verdict == "wrong"
    assert found.remedy is not None
    assert "report_artifact: false" in found.remedy


def test_a_default_place_that_is_not_among_them_is_wrong(kube: Kube) -> None:
    about = {"annotations": {DEFAULT_REPOSITORY_ANNOTATION: "gcs"}}
    kube.put(CONFIG, "artifact-repositories", metadata=about, data={"s3": ""})
    assert check_report_artifact(kube.view()).verdict == "wrong"


@pytest.mark.parametrize("text", ["gcs: {bucket: reports}", "s3: [", "s3: {}"])
def test_a_place_that_is_no_s3_repository_is_wrong(kube: Kube, text: str) -> None:
    _place(kube, text)
    assert (
        check_report_artifact(kube.view()).says
        == "artifact-repositories/s3 is no S3 repository, which the report needs."
    )


def test_pods_with_an_identity_are_told_of_the_secret_that_argo_mounts_all_the_same(
    kube: Kube,
) -> None:
    kube.put(f"{CORE}/serviceaccounts", "imagekiln", metadata=ROLE)
    found = check_report_artifact(kube.view())
    assert found.verdict == "unknown"
    assert "Secret s3-credentials" in found.says
    assert found.remedy is not None
    assert "useSDKCreds" in found.remedy
    kube.refused = set()
    assert check_report_artifact(kube.view()).verdict == "wrong"


def test_reports_kept_by_an_identity_need_no_secret(kube: Kube) -> None:
    kube.put(f"{CORE}/serviceaccounts", "imagekiln", metadata=ROLE)
    _place(kube, "s3: {bucket: reports, endpoint: s3.amazonaws.com, useSDKCreds: true}")
    assert check_report_artifact(kube.view()).verdict == "ok"


def test_a_key_of_its_own_for_reports_must_be_there(kube: Kube) -> None:
    kube.refused = set()
    _place(
        kube,
        "s3: {bucket: reports, accessKeySecret: {name: reports, key: a}, secretKeySecret: {name: reports, key: b}}",
    )
    assert "Secret reports, which is not there" in check_report_artifact(kube.view()).says
    kube.put(f"{CORE}/secrets", "reports", data={})
    assert check_report_artifact(kube.view()).verdict == "ok"
