"""TODO."""

from imagekiln.workflows.client.api import ArgoApi


def connect(server: str | None = None, context: str | None = None) -> ArgoApi:
    """Argo's server where one is named, here or by ARGO_SERVER, else the Kubernetes API. Raises BadInput."""
    from imagekiln.workflows.client import access
    from imagekiln.workflows.client.argo_server import ArgoServer
    from imagekiln.workflows.client.http import ApiConnection
    from imagekiln.workflows.client.kubernetes import KubernetesApi

    named = server or (None if context else access.server_from_environment())
    if named:
        return ArgoServer(ApiConnection(access.argo_server_access(named)))
    return KubernetesApi(ApiConnection(access.kubernetes_access(context)))
