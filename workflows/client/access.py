"""How this machine reaches the cluster: through Argo's server where one is named, else by kubeconfig or as a pod."""

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from imagekiln.steps.errors import BadInput
from imagekiln.workflows.client.http import ApiAccess

SERVER_VARIABLE = "ARGO_SERVER"  # Argo's own command line reads the same variables


def server_from_environment() -> str | None:
    """The server that the environment names."""
    return os.environ.get("ARGO_BASE_URL") or os.environ.get(SERVER_VARIABLE) or None


def argo_server_access(url: str, environment: Mapping[str, str] = os.environ) -> ApiAccess:
    """Argo's server at a URL, or as its command line takes it from the environment: host:port. Raises BadInput."""
    if "://" not in url:
        secure = environment.get("ARGO_SECURE", "true").lower() not in ("false", "0")
        url = f"{'https' if secure else 'http'}://{url}/{environment.get('ARGO_BASE_HREF', '').strip('/')}"
    if not url.startswith(("https://", "http://")):
        raise BadInput(f"{url}: is no address of Argo's server. Write https://host:port.")
    token = environment.get("ARGO_TOKEN", "").strip()
    if token and " " not in token:
        token = f"Bearer {token}"
    trusting = environment.get("ARGO_INSECURE_SKIP_VERIFY", "").lower() in ("true", "1")
    authorities = environment.get("REQUESTS_CA_BUNDLE") or environment.get("SSL_CERT_FILE") or True
    return ApiAccess(
        url, lambda: token or None, verify=False if trusting else authorities, proxy=_proxy(url)
    )


def kubernetes_access(context: str | None = None) -> ApiAccess:
    """The Kubernetes API of kubeconfig's current context, or of another one; in a pod, its own. Raises BadInput."""
    from kubernetes import config
    from kubernetes.client import Configuration

    found = Configuration()
    found.proxy = None  # kubeconfig may name one; of the environment's, it would not know which hosts go without
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
            config.load_incluster_config(client_configuration=found)
        else:
            config.load_kube_config(context=context, client_configuration=found)
    except (config.ConfigException, OSError, TypeError, ValueError) as error:
        said = str(error).strip().rstrip(".") or "it is no kubeconfig"
        raise BadInput(
            f"kubeconfig: names no cluster ({said}). Set KUBECONFIG{'' if server_from_environment() else f', or {SERVER_VARIABLE}'}."
        ) from error
    certificate = (found.cert_file, found.key_file) if found.cert_file and found.key_file else None
    verify = (
        (found.ssl_ca_cert or os.environ.get("REQUESTS_CA_BUNDLE") or True)
        if found.verify_ssl
        else False
    )

    def token() -> str | None:
        # Asked for each time: a login that is about to expire is renewed there.
        wanted = found.auth_settings().get("BearerToken")
        return None if wanted is None else wanted["value"]

    return ApiAccess(
        found.host,
        token,
        verify,
        certificate,
        found.proxy or _proxy(found.host),
        found.tls_server_name,
    )


def _proxy(url: str) -> str | None:
    """The environment's proxy for a URL, as kubectl takes it: none for this machine itself, or by NO_PROXY."""
    from requests.utils import get_environ_proxies, select_proxy

    host = urlsplit(url).hostname or ""
    if host in ("localhost", "::1") or host.startswith("127."):
        return None
    return select_proxy(url, get_environ_proxies(url))
