"""The API that commands and functions go through: Argo's server if one is named, or Kubernetes."""

from imagekiln.workflows.client.api import ArgoApi


def connect(server: str | None = None, context: str | None = None) -> ArgoApi:
    """The Argo server that the caller or ARGO_SERVER names, or else the Kubernetes API.

    A context of kubeconfig means the Kubernetes API, whatever ARGO_SERVER says. Raises BadInput.
    """
    from imagekiln.workflows.client.access import (
        argo_server_access,
        kubernetes_access,
        server_from_environment,
    )
    from imagekiln.workflows.client.argo_server import ArgoServer
    from imagekiln.workflows.client.http import ApiConnection
    from imagekiln.workflows.client.kubernetes import KubernetesApi

    if not server and not context:
        server = server_from_environment()
    if server:
        return ArgoServer(ApiConnection(argo_server_access(server)))
    return KubernetesApi(ApiConnection(kubernetes_access(context)))
