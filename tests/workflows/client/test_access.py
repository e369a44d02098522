"""Where the cluster is, by the environment or by kubeconfig."""

from pathlib import Path

import pytest
import yaml
from kubernetes.client import Configuration
from kubernetes.config import kube_config
from urllib3 import HTTPConnectionPool
from urllib3.exceptions import MaxRetryError

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.workflows.client.access import (
    argo_server_access,
    kubernetes_access,
    server_from_environment,
)
from imagekiln.workflows.client.http import ApiConnection

PROXY = "http://proxy.example.com:3128"
BASTION = "http://bastion:8888"


@pytest.fixture(autouse=True)
def proxy_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "ALL_PROXY",
        "NO_PROXY",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "REQUESTS_CA_BUNDLE",
        "KUBERNETES_SERVICE_HOST",
    ):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv("HTTPS_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", ".internal")


@pytest.mark.parametrize(
    ("server", "proxy"),
    [
        ("argo.example.com:443", PROXY),
        ("argo.internal:443", None),
        ("localhost:2746", None),  # kubectl port-forward
        ("127.0.0.1:2746", None),
    ],
)
def test_proxy_of_the_environment_is_not_used_for_loopback_or_no_proxy(
    server: str, proxy: str | None
) -> None:
    assert argo_server_access(server, {}).proxy == proxy


def test_server_certificate_is_checked_against_the_authority_of_the_environment() -> None:
    assert argo_server_access("argo:2746", {}).verify is True
    assert argo_server_access("argo:2746", {"REQUESTS_CA_BUNDLE": "/ca.pem"}).verify == "/ca.pem"
    trusting = {"REQUESTS_CA_BUNDLE": "/ca.pem", "ARGO_INSECURE_SKIP_VERIFY": "true"}
    assert argo_server_access("argo:2746", trusting).verify is False


@pytest.fixture
def two_contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubeconfig with the contexts `one` and `two`."""
    context = {"cluster": "one", "user": "one"}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "clusters": [{"name": "one", "cluster": {"server": "https://api.example.com"}}],
        "users": [{"name": "one", "user": {"token": "t"}}],
        "contexts": [{"name": "one", "context": context}, {"name": "two", "context": context}],
    }
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(content))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(file))


@pytest.mark.usefixtures("two_contexts")
def test_unknown_context_is_refused_with_those_that_exist() -> None:
    assert kubernetes_access("two").url == "https://api.example.com"
    with pytest.raises(BadInput) as raised:
        kubernetes_access("nope")
    assert str(raised.value) == (
        "kubeconfig: has no context 'nope'; there are: one, two. Choose one of them."
    )


@pytest.mark.parametrize(
    "content",
    [
        "{a: [b",
        "a:\n\t- b",
        "\0",
        "name",
        "",
        "current-context: 1\ncontexts: [1]",
        "contexts: [{name: one, context: {cluster: one}}]\ncurrent-context: one\n"
        "clusters: [{name: one, cluster: {server: 5}}]",
        "contexts: [{name: one, context: {cluster: one}}]\ncurrent-context: one\n"
        "clusters: [{name: one, cluster: {server: 'https://a.example', proxy-url: 5}}]",
        "contexts: [{name: one, context: {cluster: one}}]\ncurrent-context: one\n"
        "clusters: [{name: one, cluster: {server: 'https://a.example', tls-server-name: 5}}]",
    ],
)
def test_damaged_kubeconfig_is_refused_in_a_sentence(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "config"
    file.write_text(content)
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    for context in (None, "one"):
        with pytest.raises(BadInput, match=r"kubeconfig: names no cluster \(.+\)\. Set KUBECONFIG"):
            kubernetes_access(context)


@pytest.mark.usefixtures("two_contexts")
def test_login_that_cannot_be_renewed_for_the_network_means_try_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def renew(_: Configuration) -> None:
        raise MaxRetryError(HTTPConnectionPool("login.example.com"), "/token")

    access = kubernetes_access()
    monkeypatch.setattr(Configuration, "auth_settings", renew)
    with pytest.raises(TryAgain, match="its login could not be renewed"):
        access.token()


@pytest.mark.parametrize(
    ("cluster", "proxy", "server_name"),
    [
        ({}, PROXY, None),
        ({"server": "https://api.internal"}, None, None),
        (
            {"proxy-url": BASTION, "tls-server-name": "kube.example.com"},
            BASTION,
            "kube.example.com",
        ),
    ],
)
def test_kubeconfig_may_set_a_proxy_and_the_name_in_the_certificate(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cluster: dict[str, str],
    proxy: str | None,
    server_name: str | None,
) -> None:
    file = tmp_path / "config"
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "clusters": [{"name": "one", "cluster": {"server": "https://api.example.com", **cluster}}],
        "users": [{"name": "one", "user": {"token": "t"}}],
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
    }
    file.write_text(yaml.safe_dump(content))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    access = kubernetes_access()
    assert (access.proxy, access.server_name) == (proxy, server_name)
    assert access.token() == "Bearer t"


def test_variable_that_outranks_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARGO_SERVER", "argo:2746")
    assert argo_server_access("argo:2746").origin == ""
    monkeypatch.setenv("ARGO_BASE_URL", "https://old")
    url = server_from_environment()
    assert url == "https://old"
    connection = ApiConnection(argo_server_access(url))
    assert connection.url == "https://old"
    assert connection.where == "https://old, from ARGO_BASE_URL"


def test_address_of_another_scheme_is_rejected() -> None:
    with pytest.raises(BadInput, match="is not the URL of an Argo server"):
        argo_server_access("ftp://argo", {})
