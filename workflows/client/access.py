"""The address of a cluster's API and the login for it, from the environment or kubeconfig."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from imagekiln.steps.errors import BadInput

if TYPE_CHECKING:
    from kubernetes.client import Configuration

SERVER_VARIABLE = "ARGO_SERVER"  # the variables are those that the argo CLI reads
SERVER_VARIABLES = ("ARGO_BASE_URL", SERVER_VARIABLE)  # the first of them counts
AUTHORITIES_VARIABLES = ("REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")
LOOPBACK = "localhost,127.0.0.1,::1"  # never reached through a proxy, as with kubectl


def server_variable() -> str | None:
    """Return the variable that names the Argo server, the first of those that are set."""
    return next(filter(os.environ.get, SERVER_VARIABLES), None)


def server_from_environment() -> str | None:
    """Return the Argo server that the environment names, if any."""
    variable = server_variable()
    return os.environ[variable] if variable else None


def argo_server_access(url: str, environment: Mapping[str, str] = os.environ) -> "Configuration":
    """Return access to an Argo server by its URL, or by host:port as the argo CLI writes it.

    Raises BadInput.
    """
    address = url
    if "://" not in url:
        url = _server_url(url, environment)
    configuration = _new_configuration()
    try:
        configuration.host = url
    except ValueError:
        url = ""
    if not url.startswith(("https://", "http://")):
        raise BadInput(f"{address}: is not the URL of an Argo server. Write https://host:port.")
    configuration.ssl_ca_cert = _certificate_authorities(environment)
    token = environment.get("ARGO_TOKEN", "").strip()
    if token:
        configuration.api_key["authorization"] = token if " " in token else f"Bearer {token}"
    if environment.get("ARGO_INSECURE_SKIP_VERIFY", "").lower() in ("true", "1"):
        configuration.verify_ssl = False
    return configuration


def kubernetes_access(context: str | None = None) -> "Configuration":
    """Return access to the Kubernetes API by a context of kubeconfig, by default the current one.

    In a pod, by its service account. Raises BadInput.
    """
    from kubernetes import config

    configuration = _new_configuration()
    with _translate_kubeconfig_errors():
        if _is_in_pod():
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(context=context, client_configuration=configuration)
    if not configuration.ssl_ca_cert:
        configuration.ssl_ca_cert = _certificate_authorities(os.environ)
    return configuration


def _new_configuration() -> "Configuration":
    """Return a configuration that uses the environment's proxy, though not for this machine."""
    from kubernetes.client import Configuration

    configuration = Configuration()
    configuration.no_proxy = ",".join(filter(None, (configuration.no_proxy, LOOPBACK)))
    return configuration


def _certificate_authorities(environment: Mapping[str, str]) -> str | None:
    return next(filter(None, map(environment.get, AUTHORITIES_VARIABLES)), None)


def _is_in_pod() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ


def _server_url(address: str, environment: Mapping[str, str]) -> str:
    """Return the URL of host:port, which has HTTPS unless the environment turns it off."""
    secure = environment.get("ARGO_SECURE", "true").lower() not in ("false", "0")
    scheme = "https" if secure else "http"
    path = environment.get("ARGO_BASE_HREF", "").strip("/")
    return f"{scheme}://{address}/{path}"


@contextmanager
def _translate_kubeconfig_errors() -> Iterator[None]:
    """Turn errors of reading kubeconfig into BadInput.

    The Kubernetes client hardly checks the file, so a damaged one raises errors of many kinds.
    """
    from kubernetes.config import kube_config

    try:
        yield
    except Exception as error:
        text, *_ = str(error).partition("{")  # then an entry of the file, with its token or key
        reason = " ".join(text.split()).rstrip(".") or "it is not a kubeconfig"
        place = "the pod's service account" if _is_in_pod() else None
        raise BadInput(
            f"kubeconfig: names no cluster ({place or kube_config.KUBE_CONFIG_DEFAULT_LOCATION}: "
            f"{reason}). Set KUBECONFIG; for commands other than doctor, --server or "
            f"{SERVER_VARIABLE} will do."
        ) from error
