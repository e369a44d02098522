"""The namespace, and what the user and the pods may do in it."""

import base64

import pytest

from imagekiln.workflows.doctor.check_access import (
    POD_SECURITY_LABEL,
    check_hub_token,
    check_namespace_exists,
    check_pod_rights,
    check_service_accounts,
    check_store_credentials,
    check_user_rights,
)
from tests.kube import CORE, Kube

NAMESPACE = "api/v1/namespaces/imagekiln"


def test_namespace_must_exist_and_admit_the_pods(kube: Kube) -> None:
    finding = check_namespace_exists(kube.needs())
    assert finding.says == "Namespace imagekiln exists, with Pod Security 'restricted'."
    labels = {POD_SECURITY_LABEL: "baseline"}
    kube.objects[NAMESPACE] = {"metadata": {"name": "imagekiln", "labels": labels}}
    finding = check_namespace_exists(kube.needs("cached-node"))
    assert (finding.verdict, "cache.host_path" in finding.says) == ("wrong", True)
    del kube.objects[NAMESPACE]
    finding = check_namespace_exists(kube.needs())
    assert (finding.verdict, finding.says) == ("wrong", "Namespace imagekiln does not exist.")


@pytest.mark.parametrize("right", ["create workflows", "get pods/log"])
def test_right_that_the_user_lacks_is_named(kube: Kube, right: str) -> None:
    kube.refused.add(right)
    finding = check_user_rights(kube.needs())
    assert finding.verdict == "wrong"
    assert finding.says == f"You cannot {right} in namespace imagekiln."
    assert "imagekiln-submitter" in str(finding.remedy)
    # Those by kubeconfig say nothing of the token of Argo's server.
    assert check_user_rights(kube.needs(server=kube.connection())).verdict == "unknown"


@pytest.mark.parametrize("account", ["imagekiln", "imagekiln-further"])
def test_missing_service_account_is_named(kube: Kube, account: str) -> None:
    del kube.objects[f"{CORE}/serviceaccounts/{account}"]
    finding = check_service_accounts(kube.needs())
    assert finding.verdict == "wrong"
    assert finding.says == f"No ServiceAccount {account} in namespace imagekiln."


@pytest.mark.parametrize(
    ("account", "right"),
    [("imagekiln", "create workflowtaskresults"), ("imagekiln-further", "create workflows")],
)
def test_right_that_pods_lack_is_wrong(kube: Kube, account: str, right: str) -> None:
    kube.refused.add(f"{account}: {right}")
    finding = check_pod_rights(kube.needs())
    assert finding.verdict == "wrong"
    assert finding.says == f"ServiceAccount {account} cannot {right} in namespace imagekiln."


def test_secret_that_the_user_cannot_read_is_unknown_and_not_requested(kube: Kube) -> None:
    assert check_store_credentials(kube.needs()).verdict == "unknown"
    assert not any("secrets" in request for request in kube.requests)


def test_cloud_identity_needs_no_secret(kube: Kube) -> None:
    about = {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/images"}}
    kube.put(f"{CORE}/serviceaccounts", "imagekiln", metadata=about)
    assert check_store_credentials(kube.needs()).verdict == "ok"


def test_missing_secret_is_unknown_only_if_the_cloud_may_give_a_role(kube: Kube) -> None:
    kube.refused.clear()
    for endpoint, verdict in (("", "unknown"), ("http://minio:9000", "wrong")):
        data = {"AWS_ENDPOINT_URL": endpoint}
        kube.put(f"{CORE}/configmaps", "imagekiln-defaults", data=data)
        assert check_store_credentials(kube.needs()).verdict == verdict
    assert check_store_credentials(kube.needs(output="gs://datasets/a")).verdict == "unknown"


@pytest.mark.parametrize(
    ("values", "verdict", "says"),
    [
        ({}, "wrong", "Secret s3-credentials does not have accesskey and secretkey."),
        ({"accesskey": "hush"}, "wrong", "Secret s3-credentials does not have secretkey."),
        (
            {"accesskey": "hush", "secretkey": "hush"},
            "ok",
            "Secret s3-credentials has accesskey and secretkey.",
        ),
    ],
)
def test_keys_of_the_secret_are_checked_and_not_shown(
    kube: Kube, values: dict[str, str], verdict: str, says: str
) -> None:
    kube.refused.clear()
    kube.put(f"{CORE}/secrets", "s3-credentials", data=_encoded(values))
    finding = check_store_credentials(kube.needs())
    assert (finding.verdict, finding.says) == (verdict, says)


@pytest.mark.parametrize(("values", "says"), [({"token": "hush"}, "has token."), ({}, "But ")])
def test_token_of_the_hub_is_looked_for_if_this_machine_has_one(
    kube: Kube, values: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs = kube.needs(model={"id": "org/gated"})
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert check_hub_token(needs) is None
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    kube.refused.clear()
    kube.put(f"{CORE}/secrets", "huggingface", data=_encoded(values))
    finding = check_hub_token(needs)
    assert finding is not None
    assert (finding.verdict, says in finding.says, "hush" in finding.says) == ("ok", True, False)


def _encoded(values: dict[str, str]) -> dict[str, str]:
    return {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
