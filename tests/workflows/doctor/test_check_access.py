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
from imagekiln.workflows.profiles.loader import load_profile
from tests.kube import CORE, Kube

GPU = load_profile("gpu")
NAMESPACE = "api/v1/namespaces/imagekiln"


def test_shipped_manifests_make_a_namespace_that_admits_the_pods(kube: Kube) -> None:
    finding = check_namespace_exists(kube.view(), GPU)
    assert finding.verdict == "ok"
    assert finding.says == "Namespace imagekiln exists; Pod Security 'restricted' admits the pods."


def test_missing_namespace_is_wrong(kube: Kube) -> None:
    del kube.objects[NAMESPACE]
    finding = check_namespace_exists(kube.view(), GPU)
    assert finding.verdict == "wrong"
    assert finding.says == "Namespace imagekiln does not exist."


def test_host_path_cache_is_wrong_where_pod_security_rejects_it(kube: Kube) -> None:
    kube.objects[NAMESPACE] = {
        "metadata": {"name": "imagekiln", "labels": {POD_SECURITY_LABEL: "baseline"}}
    }
    finding = check_namespace_exists(kube.view(), load_profile("cached-node"))
    assert finding.verdict == "wrong"
    assert "cache.host_path" in finding.says


@pytest.mark.parametrize("right", ["create workflows", "get pods/log"])
def test_right_that_the_user_lacks_is_named(kube: Kube, right: str) -> None:
    kube.refused.add(right)
    finding = check_user_rights(kube.view())
    assert finding.verdict == "wrong"
    assert finding.says == f"You cannot {right} in namespace imagekiln."
    assert finding.remedy is not None
    assert "imagekiln-submitter" in finding.remedy


def test_rights_by_kubeconfig_say_nothing_of_the_token_of_argos_server(kube: Kube) -> None:
    kube.refused.add("create workflows")
    assert check_user_rights(kube.view(), by_server=True).verdict == "unknown"


@pytest.mark.parametrize("account", ["imagekiln", "imagekiln-further"])
def test_missing_service_account_is_named(kube: Kube, account: str) -> None:
    del kube.objects[f"{CORE}/serviceaccounts/{account}"]
    finding = check_service_accounts(kube.view())
    assert finding.verdict == "wrong"
    assert finding.says == f"ServiceAccount {account} does not exist in namespace imagekiln."


@pytest.mark.parametrize(
    ("account", "right"),
    [("imagekiln", "create workflowtaskresults"), ("imagekiln-further", "create workflows")],
)
def test_right_that_pods_lack_is_wrong(kube: Kube, account: str, right: str) -> None:
    kube.refused.add(f"{account}: {right}")
    finding = check_pod_rights(kube.view())
    assert finding.verdict == "wrong"
    assert finding.says == f"ServiceAccount {account} cannot {right} in namespace imagekiln."


def test_secret_that_the_user_cannot_read_is_unknown_and_not_requested(kube: Kube) -> None:
    finding = check_store_credentials(kube.view(), "s3://datasets/a")
    assert finding.verdict == "unknown"
    assert not any("secrets" in request for request in kube.requests)


def test_cloud_identity_needs_no_secret(kube: Kube) -> None:
    about = {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/images"}}
    kube.put(f"{CORE}/serviceaccounts", "imagekiln", metadata=about)
    assert check_store_credentials(kube.view(), "s3://datasets/a").verdict == "ok"


@pytest.mark.parametrize(
    ("provider", "verdict"), [("aws:///eu-west-1a/i-0", "unknown"), ("kind://docker/0", "wrong")]
)
def test_missing_secret_is_unknown_on_aws_whose_nodes_may_have_a_role(
    kube: Kube, provider: str, verdict: str
) -> None:
    kube.refused.clear()
    kube.put("api/v1/nodes", "cpu-1", spec={"providerID": provider})
    finding = check_store_credentials(kube.view(), "s3://datasets/a")
    assert finding.verdict == verdict
    kube.unreadable.add("nodes")
    assert check_store_credentials(kube.view(), "s3://datasets/a").verdict == "wrong"


def test_store_other_than_s3_needs_no_s3_key(kube: Kube) -> None:
    kube.refused.clear()
    assert check_store_credentials(kube.view(), "gs://datasets/a").verdict == "unknown"


@pytest.mark.parametrize("values", [{}, {"accesskey": "key", "secretkey": ""}])
def test_secret_without_its_keys_is_wrong_where_the_user_can_read_it(
    kube: Kube, values: dict[str, str]
) -> None:
    kube.refused.clear()
    kube.put(f"{CORE}/secrets", "s3-credentials", data=_encoded(values))
    finding = check_store_credentials(kube.view(), "s3://datasets/a")
    assert finding.verdict == "wrong"
    assert "secretkey" in finding.says


@pytest.mark.parametrize(("values", "says"), [({"token": "hush"}, "has token."), ({}, "But ")])
def test_token_of_the_hub_is_looked_for(kube: Kube, values: dict[str, str], says: str) -> None:
    kube.refused.clear()
    kube.put(f"{CORE}/secrets", "huggingface", data=_encoded(values))
    finding = check_hub_token(kube.view())
    assert finding.verdict == "ok"
    assert says in finding.says
    assert "hush" not in finding.says


def test_secret_with_its_keys_is_ok_and_its_values_are_not_shown(kube: Kube) -> None:
    kube.refused.clear()
    kube.put(
        f"{CORE}/secrets",
        "s3-credentials",
        data=_encoded({"accesskey": "hush", "secretkey": "hush"}),
    )
    finding = check_store_credentials(kube.view(), "s3://datasets/a")
    assert finding.verdict == "ok"
    assert finding.says == "Secret s3-credentials has accesskey and secretkey."


def _encoded(values: dict[str, str]) -> dict[str, str]:
    return {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
