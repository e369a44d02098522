"""Connection to a cluster: its address, and the login from the environment or kubeconfig."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from imagekiln.steps.errors import BadInput

if TYPE_CHECKING:  # all commands import this module, and start fast
    from kubernetes.client import Configuration

    from imagekiln.workflows.client.api import ArgoApi

DEFAULT_NAMESPACE = "imagekiln"
NAMESPACE_VARIABLE = "IMAGEKILN_NAMESPACE"
SERVER_VARIABLE = "ARGO_SERVER"  # the argo CLI reads the same variables
AUTHORITIES_VARIABLE = "REQUESTS_CA_BUNDLE"
LOOPBACK = "localhost,127.0.0.1,::1"  # never reached through a proxy, as with kubectl


def connect(server: str | None = None, context: str | None = None) -> "ArgoApi":
    """Connect to the Argo server given by the caller or ARGO_SERVER, or else to Kubernetes.

    A context of kubeconfig selects the Kubernetes API, even if ARGO_SERVER is set. Raises BadInput.
    """
    from imagekiln.workflows.client.api import KubernetesApi
    from imagekiln.workflows.client.argo_server import ArgoServer
    from imagekiln.workflows.client.http import ApiConnection

    url = find_server(server, context)
    if url:
        return ArgoServer(ApiConnection(argo_server_access(url)))
    return KubernetesApi(ApiConnection(kubernetes_access(context)))


def find_server(server: str | None = None, context: str | None = None) -> str | None:
    """Return the Argo server to use: the caller's, else the environment's; None for Kubernetes."""
    if server or context:
        return server
    return os.environ.get(SERVER_VARIABLE) or None


def argo_server_access(url: str, environment: Mapping[str, str] = os.environ) -> "Configuration":
    """Return access to an Argo server by its URL, or by host:port as in the argo CLI.

    Raises BadInput.
    """
    configuration = _new_configuration()
    if "://" not in url:
        is_plain = environment.get("ARGO_SECURE", "").lower() in ("false", "0")
        path = environment.get("ARGO_BASE_HREF", "").strip("/")
        url = f"{'http' if is_plain else 'https'}://{url}/{path}"
    try:
        configuration.host = url
    except ValueError:
        raise BadInput(f"{url}: is not a valid URL. Write https://host:port.") from None
    configuration.ssl_ca_cert = environment.get(AUTHORITIES_VARIABLE)
    token = environment.get("ARGO_TOKEN", "").strip()
    if token:
        configuration.api_key["authorization"] = token if " " in token else f"Bearer {token}"
    if environment.get("ARGO_INSECURE_SKIP_VERIFY", "").lower() in ("true", "1"):
        configuration.verify_ssl = False
    return configuration


def kubernetes_access(context: str | None = None) -> "Configuration":
    """Return access to the Kubernetes API by a context of kubeconfig, by default the current one.

    In a pod, the service account is used. Raises BadInput.
    """
    from kubernetes import config

    configuration = _new_configuration()
    try:
        if "KUBERNETES_SERVICE_HOST" in os.environ and "KUBECONFIG" not in os.environ:
            config.load_incluster_config(client_configuration=configuration)
        else:
            config.load_kube_config(context=context, client_configuration=configuration)
    except Exception as error:  # the library hardly validates the file, so errors are of many kinds
        text, *_ = str(error).partition("{")  # an entry of the file follows, with its token or key
        reason = " ".join(text.split()).rstrip(".") or "it is not a kubeconfig"
        raise BadInput(
            f"kubeconfig: names no cluster ({reason}). Set KUBECONFIG; for commands other than "
            f"doctor, --server or {SERVER_VARIABLE} will do."
        ) from error
    if not configuration.ssl_ca_cert:
        configuration.ssl_ca_cert = os.environ.get(AUTHORITIES_VARIABLE)
    return configuration


def _new_configuration() -> "Configuration":
    """Return a configuration with the environment's proxy, except for this machine."""
    from kubernetes.client import Configuration

    configuration = Configuration()
    configuration.no_proxy = ",".join(filter(None, (configuration.no_proxy, LOOPBACK)))
    return configuration


def next_command(verb: str, name: str, namespace: str) -> str:
    """Return a complete command line, with the namespace unless it is the default one."""
    assumed = os.environ.get(NAMESPACE_VARIABLE) or DEFAULT_NAMESPACE
    option = "" if namespace == assumed else f" -n {namespace}"
    return f"`imagekiln {verb} {name}{option}`"
