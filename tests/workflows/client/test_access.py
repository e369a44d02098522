"""Where the cluster is, by the environment or by kubeconfig."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
import yaml
from kubernetes.client import Configuration
from kubernetes.config import incluster_config, kube_config
from urllib3 import HTTPConnectionPool
from urllib3.exceptions import MaxRetryError

from imagekiln.steps.errors import BadInput, TryAgain
from imagekiln.workflows.client.access import (
    argo_server_access,
    kubernetes_access,
    server_from_environment,
)
from imagekiln.workflows.client.connect import connect
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
        "KUBECONFIG",
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
    assert argo_server_access("argo:2746", {"SSL_CERT_FILE": "/ca.pem"}).verify == "/ca.pem"
    trusting = {"REQUESTS_CA_BUNDLE": "/ca.pem", "ARGO_INSECURE_SKIP_VERIFY": "true"}
    assert argo_server_access("argo:2746", trusting).verify is False


@pytest.mark.parametrize(
    ("token", "sent"),
    [
        ("", None),
        (" \n", None),
        ("secret\n", "Bearer secret"),
        ("Bearer secret", "Bearer secret"),
        ("Basic c2VjcmV0", "Basic c2VjcmV0"),
    ],
)
def test_token_is_sent_as_the_argo_cli_sends_it(token: str, sent: str | None) -> None:
    assert argo_server_access("argo:2746", {"ARGO_TOKEN": token}).token() == sent


def write_kubeconfig(
    folder: Path, cluster: Mapping[str, object], user: Mapping[str, object] = MappingProxyType({})
) -> str:
    """A kubeconfig of one cluster and one user, with these settings."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "clusters": [{"name": "one", "cluster": {"server": "https://api.example.com", **cluster}}],
        "users": [{"name": "one", "user": {"token": "t", **user}}],
        "contexts": [{"name": "one", "context": {"cluster": "one", "user": "one"}}],
    }
    file = folder / "config"
    file.write_text(yaml.safe_dump(content))
    return str(file)


@pytest.mark.parametrize(
    ("cluster", "environment", "verify"),
    [
        ({}, None, True),
        ({}, "/ca.pem", "/ca.pem"),
        ({"certificate-authority": "own.pem"}, "/ca.pem", "own.pem"),
        ({"insecure-skip-tls-verify": False}, None, True),
        ({"insecure-skip-tls-verify": True}, "/ca.pem", False),
    ],
)
def test_certificates_are_checked_unless_kubeconfig_says_otherwise(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cluster: dict[str, object],
    environment: str | None,
    verify: bool | str,
) -> None:
    (tmp_path / "own.pem").write_text("-")
    if environment:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", environment)
    monkeypatch.setattr(
        kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", write_kubeconfig(tmp_path, cluster)
    )
    found = kubernetes_access().verify
    assert (Path(str(found)).name if verify == "own.pem" else found) == verify


def test_certificate_of_the_client_is_used_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"client-certificate": "own.pem", "client-key": "own.key"}
    paths = {key: str(tmp_path / name) for key, name in names.items()}
    for path in paths.values():
        Path(path).write_text("-")
    for user, certificate in (
        (paths, (*paths.values(),)),
        ({"client-certificate": paths["client-certificate"]}, None),
    ):
        file = write_kubeconfig(tmp_path, {}, user)
        monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", file)
        assert kubernetes_access().certificate == certificate


@pytest.mark.usefixtures("two_contexts")
def test_pod_uses_its_account_unless_it_has_a_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SERVICE_TOKEN_FILENAME", "SERVICE_CERT_FILENAME"):
        (tmp_path / name).write_text("of-the-pod")
        monkeypatch.setattr(incluster_config, name, str(tmp_path / name))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    access = kubernetes_access()
    assert (access.url, access.token()) == ("https://10.0.0.1:443", "bearer of-the-pod")
    assert access.verify == str(tmp_path / "SERVICE_CERT_FILENAME")
    monkeypatch.setenv("KUBECONFIG", "/any")
    assert kubernetes_access().url == "https://api.example.com"


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


@pytest.mark.usefixtures("two_contexts")
def test_named_context_needs_no_current_one() -> None:
    file = Path(kube_config.KUBE_CONFIG_DEFAULT_LOCATION)
    file.write_text(file.read_text().replace("current-context: one\n", ""))
    assert kubernetes_access("two").url == "https://api.example.com"
    with pytest.raises(BadInput, match="kubeconfig: names no cluster"):
        kubernetes_access()


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


def test_damaged_kubeconfig_is_refused_without_its_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(write_kubeconfig(tmp_path, {}, {"token": "hush", "client-key-data": "hush"}))
    file.write_text(
        file.read_text().replace("users:\n- name: one\n  user", "users:\n- name: null\n  user")
    )
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    with pytest.raises(BadInput, match="Expected key name in ") as raised:
        kubernetes_access()
    assert "hush" not in str(raised.value)


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
    monkeypatch.setattr(
        kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", write_kubeconfig(tmp_path, cluster)
    )
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
    assert argo_server_access("https://typed").origin == ""


@pytest.mark.usefixtures("two_contexts")
def test_context_that_is_named_goes_before_the_server_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert connect().url == "https://api.example.com"
    monkeypatch.setenv("ARGO_SERVER", "argo:2746")
    assert connect().url == "https://argo:2746"
    assert connect(server="http://other").url == "http://other"
    assert connect(context="two").url == "https://api.example.com"


def test_address_of_another_scheme_is_rejected() -> None:
    with pytest.raises(BadInput, match="is not the URL of an Argo server"):
        argo_server_access("ftp://argo", {})
