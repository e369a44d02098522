"""How the environment and kubeconfig say where the cluster is."""

from pathlib import Path

import pytest
import yaml

from imagekiln.steps.errors import BadInput
from imagekiln.workflows.client.access import argo_server_access, kubernetes_access

PROXY = "http://proxy.example.com:3128"
BASTION = "http://bastion:8888"


@pytest.fixture(autouse=True)
def proxied(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_proxy_of_the_environment_is_for_hosts_elsewhere(server: str, proxy: str | None) -> None:
    assert argo_server_access(server, {}).proxy == proxy


def test_server_is_held_to_the_authority_that_the_environment_names() -> None:
    assert argo_server_access("argo:2746", {}).verify is True
    assert argo_server_access("argo:2746", {"REQUESTS_CA_BUNDLE": "/ca.pem"}).verify == "/ca.pem"
    trusting = {"REQUESTS_CA_BUNDLE": "/ca.pem", "ARGO_INSECURE_SKIP_VERIFY": "true"}
    assert argo_server_access("argo:2746", trusting).verify is False


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
def test_kubeconfig_may_name_a_proxy_and_the_certificates_name(
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
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    found = kubernetes_access()
    assert (found.proxy, found.server_name) == (proxy, server_name)
    assert found.token() == "Bearer t"


def test_address_of_another_kind_is_refused() -> None:
    with pytest.raises(BadInput, match="is no address"):
        argo_server_access("ftp://argo", {})
