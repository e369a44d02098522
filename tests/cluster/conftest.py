"""The shipped manifests, applied to the cluster of KUBECONFIG before the first test."""

import os
import shutil
from contextlib import suppress

import fsspec
import pytest

from imagekiln.workflows.client.api import ArgoApi, KubernetesApi
from imagekiln.workflows.client.argo_server import ArgoServer
from imagekiln.workflows.client.connect import (
    argo_server_access,
    find_server,
    kubernetes_access,
)
from imagekiln.workflows.client.http import ApiConnection
from tests.cluster import jobs, kube

REQUIRED_VARIABLES = (
    "KUBECONFIG",
    "AWS_ENDPOINT_URL",
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
)


@pytest.fixture(scope="session", autouse=True)
def _namespace() -> None:
    missing = [name for name in REQUIRED_VARIABLES if name not in os.environ]
    if shutil.which("kubectl") is None:
        missing.append("kubectl")
    if missing:
        pytest.fail(
            f"set a cluster and its object store in the environment: {', '.join(missing)} missing"
        )
    kube.apply(kube.manifests())
    files = fsspec.filesystem("s3")
    for bucket in (jobs.BUCKET, "s3://imagekiln-reports"):
        with suppress(FileExistsError):
            files.mkdir(bucket)


@pytest.fixture(scope="session")
def argo() -> ArgoApi:
    """The cluster through the Kubernetes API."""
    return KubernetesApi(ApiConnection(kubernetes_access()))


@pytest.fixture(scope="session")
def server() -> ArgoServer:
    """The cluster through the Argo server that ARGO_SERVER names."""
    url = find_server()
    if url is None:
        pytest.fail("set ARGO_SERVER and ARGO_TOKEN")
    return ArgoServer(ApiConnection(argo_server_access(url)))
