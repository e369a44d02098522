"""Where Argo stores reports, and with which key."""

import pytest

from imagekiln.workflows.doctor.check_artifacts import (
    DEFAULT_REPOSITORY_ANNOTATION,
    check_artifact_repository,
)
from tests.kube import CORE, Kube

CONFIG = f"{CORE}/configmaps"
ROLE = {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::111122223333:role/imagekiln"}}


def _set_repository(kube: Kube, text: str) -> None:
    about = {"annotations": {DEFAULT_REPOSITORY_ANNOTATION: "s3"}}
    kube.put(CONFIG, "artifact-repositories", metadata=about, data={"s3": text})


def test_shipped_repository_is_ok(kube: Kube) -> None:
    finding = check_artifact_repository(kube.view())
    assert finding.says.startswith("Argo stores reports in bucket ")


def test_missing_repositories_are_wrong(kube: Kube) -> None:
    del kube.objects[f"{CONFIG}/artifact-repositories"]
    finding = check_artifact_repository(kube.view())
    assert finding.verdict == "wrong"
    assert finding.remedy is not None
    assert "report_artifact: false" in finding.remedy


def test_default_repository_that_is_not_among_them_is_wrong(kube: Kube) -> None:
    about = {"annotations": {DEFAULT_REPOSITORY_ANNOTATION: "gcs"}}
    kube.put(CONFIG, "artifact-repositories", metadata=about, data={"s3": ""})
    assert check_artifact_repository(kube.view()).verdict == "wrong"


@pytest.mark.parametrize(
    "text",
    ["gcs: {bucket: reports}", "s3: ["],
)
def test_repository_that_is_not_s3_is_wrong(kube: Kube, text: str) -> None:
    _set_repository(kube, text)
    finding = check_artifact_repository(kube.view())
    assert "artifact-repositories has no S3 repository" in finding.says


def test_secret_that_argo_mounts_is_reported_although_pods_have_an_identity(
    kube: Kube,
) -> None:
    kube.put(f"{CORE}/serviceaccounts", "imagekiln", metadata=ROLE)
    assert check_artifact_repository(kube.view()).verdict == "ok"
    assert not any("secrets" in request for request in kube.requests)
    kube.refused = set()
    finding = check_artifact_repository(kube.view())
    assert finding.verdict == "wrong"
    assert "Secret s3-credentials" in finding.says
    assert "useSDKCreds" in str(finding.remedy)


def test_repository_by_identity_needs_no_secret(kube: Kube) -> None:
    kube.put(f"{CORE}/serviceaccounts", "imagekiln", metadata=ROLE)
    _set_repository(kube, "s3: {bucket: reports, endpoint: s3.amazonaws.com, useSDKCreds: true}")
    assert check_artifact_repository(kube.view()).verdict == "ok"


def test_secret_of_the_repository_must_exist(kube: Kube) -> None:
    kube.refused = set()
    _set_repository(
        kube,
        "s3: {bucket: reports, accessKeySecret: {name: reports, key: a}, "
        "secretKeySecret: {name: reports, key: b}}",
    )
    finding = check_artifact_repository(kube.view())
    assert (finding.verdict, "from Secret reports" in finding.says) == ("wrong", True)
    kube.put(f"{CORE}/secrets", "reports", data={})
    assert check_artifact_repository(kube.view()).verdict == "ok"


def test_repository_that_keeps_all_logs_is_reported(kube: Kube) -> None:
    _set_repository(kube, "archiveLogs: true\ns3: {bucket: reports, useSDKCreds: true}")
    finding = check_artifact_repository(kube.view())
    assert finding.verdict == "ok"
    assert "archiveLogs: true stores the logs of all pods" in finding.says
    assert "fails the workflow" in str(finding.remedy)
