"""The cluster that commands talk to, and the next commands that messages name."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # all commands read this module, and start fast
    from imagekiln.workflows.client.api import ArgoApi

DEFAULT_NAMESPACE = "imagekiln"
NAMESPACE_VARIABLE = "IMAGEKILN_NAMESPACE"


def connect(server: str | None = None, context: str | None = None) -> "ArgoApi":
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


def next_command(verb: str, name: str, namespace: str) -> str:
    """A command to type as it is; it has the namespace unless it would take that one anyway."""
    assumed = os.environ.get(NAMESPACE_VARIABLE) or DEFAULT_NAMESPACE
    option = "" if namespace == assumed else f" -n {namespace}"
    return f"`imagekiln {verb} {name}{option}`"
