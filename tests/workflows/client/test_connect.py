"""The cluster that the environment or kubeconfig names, and the login for it."""

from pathlib import Path

import pytest
import yaml
from kubernetes.client import Configuration
from kubernetes.config import incluster_config, kube_config

from imagekiln.steps.errors import BadInput
from imagekiln.workflows.client.connect import argo_server_access, connect, kubernetes_access

CONTEXT = {"cluster": "one", "user": "one"}


def login(configuration: Configuration) -> str | None:
    """The header of the login that would be sent."""
    token = configuration.auth_settings().get("BearerToken")
    return token["value"] if token else None


@pytest.fixture(autouse=True)
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kubeconfig with the contexts `one` and `two`, in a clean environment."""
    for name in ("REQUESTS_CA_BUNDLE", "KUBERNETES_SERVICE_HOST", "KUBECONFIG", "ARGO_SERVER"):
        monkeypatch.delenv(name, raising=False)
    content = {
        "current-context": "one",
        "clusters": [{"name": "one", "cluster": {"server": "https://api.example.com"}}],
        "users": [{"name": "one", "user": {"token": "hush"}}],
        "contexts": [{"name": name, "context": CONTEXT} for name in ("one", "two")],
    }
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(content))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    return file


@pytest.mark.parametrize(
    ("token", "sent"),
    [
        ("", None),
        ("secret\n", "Bearer secret"),
        ("Bearer secret", "Bearer secret"),
        ("Basic c2VjcmV0", "Basic c2VjcmV0"),
    ],
)
def test_token_is_sent_as_the_argo_cli_sends_it(token: str, sent: str | None) -> None:
    assert login(argo_server_access("argo:2746", {"ARGO_TOKEN": token})) == sent


def test_environment_says_how_certificates_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    trusting = {"REQUESTS_CA_BUNDLE": "/ca.pem", "ARGO_INSECURE_SKIP_VERIFY": "true"}
    configuration = argo_server_access("argo:2746", trusting)
    assert (configuration.ssl_ca_cert, configuration.verify_ssl) == ("/ca.pem", False)
    assert argo_server_access("argo:2746", {}).verify_ssl
    behind_ingress = {"ARGO_SECURE": "false", "ARGO_BASE_HREF": "/argo/"}
    assert argo_server_access("host:80", behind_ingress).host == "http://host:80/argo"
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/ca.pem")
    assert kubernetes_access().ssl_ca_cert == "/ca.pem"


def test_pod_uses_its_account_unless_it_has_a_kubeconfig(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SERVICE_TOKEN_FILENAME", "SERVICE_CERT_FILENAME"):
        (tmp_path / name).write_text("of-the-pod")
        monkeypatch.setattr(incluster_config, name, str(tmp_path / name))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    access = kubernetes_access()
    assert (access.host, login(access)) == ("https://10.0.0.1:443", "bearer of-the-pod")
    monkeypatch.setenv("KUBECONFIG", "/any")
    assert kubernetes_access().host == "https://api.example.com"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, r"names no cluster \(.+ name nope"),
        ("{a: [b", r"names no cluster \(.+\)\. Set KUBECONFIG"),
        ("current-context: 1\ncontexts: [1]", r"names no cluster \(.+\)\. Set KUBECONFIG"),
    ],
)
def test_kubeconfig_without_the_context_is_refused_in_a_sentence(
    content: str | None, says: str, kubeconfig: Path
) -> None:
    if content is not None:
        kubeconfig.write_text(content)
    with pytest.raises(BadInput, match=f"kubeconfig: {says}"):
        kubernetes_access("nope")


def test_damaged_kubeconfig_is_refused_without_its_credentials(kubeconfig: Path) -> None:
    kubeconfig.write_text(kubeconfig.read_text().replace("users:\n- name: one", "users:\n- name:"))
    with pytest.raises(BadInput, match="Expected key name in ") as raised:
        kubernetes_access()
    assert "hush" not in str(raised.value)


def test_context_that_is_named_goes_before_the_server_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert connect().url == "https://api.example.com"
    monkeypatch.setenv("ARGO_SERVER", "argo:2746")
    assert connect().url == "https://argo:2746"
    assert connect(server="http://other").url == "http://other"
    assert connect(context="two").url == "https://api.example.com"
