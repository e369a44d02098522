"""Whether people and pods may do what they must, in a namespace that lets the pods in."""

import base64

import pytest

from imagekiln.workflows.doctor.check_access import (
    POD_SECURITY_LABEL,
    check_namespace_exists,
    check_pod_rights,
    check_service_accounts,
    check_store_credentials,
    check_user_rights,
)
from imagekiln.workflows.profiles.loader import load_profile
from tests.kube import CORE, Kube

GPU = load_profile("gpu")
SPACE = "api/v1/namespaces/imagekiln"


def test_our_own_manifests_make_a_namespace_that_lets_our_pods_in(kube: Kube) -> None:
    found = check_namespace_exists(kube.view(), GPU)
    assert (found.verdict, found.says) == (
        "ok",
        "imagekiln is there; Pod Security 'restricted' lets our pods in.",
    )


def test_a_namespace_that_is_not_there_is_wrong(kube: Kube) -> None:
    del kube.objects[SPACE]
    found = check_namespace_exists(kube.view(), GPU)
    assert (found.verdict, found.says) == ("wrong", "There is no namespace imagekiln.")


def test_a_namespace_that_may_not_be_read_is_unknown(kube: Kube) -> None:
    kube.unreadable = {"namespaces"}
    found = check_namespace_exists(kube.view(), GPU)
    assert found.verdict == "unknown"
    assert found.remedy is not None
    assert "imagekiln-doctor" in found.remedy


@pytest.mark.parametrize("level", ["restricted", "baseline"])
def test_a_cache_on_a_nodes_disk_is_wrong_where_pod_security_refuses_it(
    kube: Kube, level: str
) -> None:
    kube.objects[SPACE] = {"metadata": {"name": "imagekiln", "labels": {POD_SECURITY_LABEL: level}}}
    found = check_namespace_exists(kube.view(), load_profile("cached-node"))
    assert found.verdict == "wrong"
    assert "cache.host_path" in found.says


def test_a_cache_on_a_nodes_disk_passes_without_pod_security(kube: Kube) -> None:
    kube.objects[SPACE] = {"metadata": {"name": "imagekiln"}}
    assert check_namespace_exists(kube.view(), load_profile("cached-node")).verdict == "ok"


@pytest.mark.parametrize(
    "right",
    [
        "create workflows",
        "patch workflows",
        "create workflowtemplates",
        "patch cronworkflows",
        "get pods/log",
    ],
)
def test_a_right_that_who_asks_does_not_have_is_named(kube: Kube, right: str) -> None:
    kube.refused.add(right)
    found = check_user_rights(kube.view())
    assert (found.verdict, found.says) == ("wrong", f"You may not {right} in imagekiln.")
    assert found.remedy is not None
    assert "imagekiln-submitter" in found.remedy


def test_rights_by_kubeconfig_say_nothing_of_a_token_of_argos_server(kube: Kube) -> None:
    kube.refused.add("create workflows")
    assert check_user_rights(kube.view(), by_server=True).verdict == "unknown"


def test_the_rights_of_the_submitter_are_enough(kube: Kube) -> None:
    assert check_user_rights(kube.view()).verdict == "ok"


@pytest.mark.parametrize("account", ["imagekiln", "imagekiln-further"])
def test_a_service_account_that_is_not_there_is_named(kube: Kube, account: str) -> None:
    del kube.objects[f"{CORE}/serviceaccounts/{account}"]
    found = check_service_accounts(kube.view())
    assert (found.verdict, found.says) == ("wrong", f"There is no service account {account}.")


@pytest.mark.parametrize(
    ("account", "right"),
    [("imagekiln", "create workflowtaskresults"), ("imagekiln-further", "create workflows")],
)
def test_pods_that_may_not_do_their_part_are_wrong(kube: Kube, account: str, right: str) -> None:
    kube.refused.add(f"{account}: {right}")
    found = check_pod_rights(kube.view())
    assert (found.verdict, found.says) == ("wrong", f"Service account {account} may not {right}.")


def test_pods_may_hand_in_their_results(kube: Kube) -> None:
    assert check_pod_rights(kube.view()).verdict == "ok"


def test_a_secret_that_may_not_be_read_is_unknown_and_is_not_asked_for(kube: Kube) -> None:
    found = check_store_credentials(kube.view(), "s3://datasets/a")
    assert found.verdict == "unknown"
    assert not any("secrets" in request for request in kube.requests)


def test_an_identity_of_the_cloud_stands_for_a_secret(kube: Kube) -> None:
    about = {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/images"}}
    kube.put(f"{CORE}/serviceaccounts", "imagekiln", metadata=about)
    assert check_store_credentials(kube.view(), "s3://datasets/a").verdict == "ok"


@pytest.mark.parametrize(
    ("provider", "verdict"), [("aws:///eu-west-1a/i-0", "unknown"), ("kind://docker/0", "wrong")]
)
def test_a_node_of_awss_may_stand_for_a_secret_that_is_not_there(
    kube: Kube, provider: str, verdict: str
) -> None:
    kube.refused.clear()
    kube.put("api/v1/nodes", "cpu-1", spec={"providerID": provider})
    found = check_store_credentials(kube.view(), "s3://datasets/a")
    assert found.verdict == verdict
    kube.unreadable.add("nodes")
    assert check_store_credentials(kube.view(), "s3://datasets/a").verdict == "wrong"


def test_a_store_that_is_no_s3_needs_no_key_of_s3(kube: Kube) -> None:
    kube.refused.clear()
    assert check_store_credentials(kube.view(), "gs://datasets/a").verdict == "unknown"


@pytest.mark.parametrize(
    "values", [{}, {"accesskey": "key"}, {"accesskey": "key", "secretkey": ""}]
)
def test_a_secret_without_its_keys_is_wrong_where_it_may_be_read(
    kube: Kube, values: dict[str, str]
) -> None:
    kube.refused.clear()
    kube.put(f"{CORE}/secrets", "s3-credentials", data=_encoded(values))
    found = check_store_credentials(kube.view(), "s3://datasets/a")
    assert found.verdict == "wrong"
    assert "secretkey" in found.says


def test_a_secret_with_its_keys_is_ok_and_its_values_are_not_said(kube: Kube) -> None:
    kube.refused.clear()
    kube.put(
        f"{CORE}/secrets",
        "s3-credentials",
        data=_encoded({"accesskey": "hush", "secretkey": "hush"}),
    )
    found = check_store_credentials(kube.view(), "s3://datasets/a")
    assert (found.verdict, found.says) == (
        "ok",
        "Secret s3-credentials has accesskey and secretkey.",
    )


def _encoded(values: dict[str, str]) -> dict[str, str]:
    return {key: base64.b64encode(value.encode()).decode() for key, value in values.items()}
