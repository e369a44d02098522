"""What Argo's controller serves to Prometheus."""

import os
import ssl
import urllib.request

import pytest

from tests.cluster import kube

# Where the controller serves its metrics, if it is no pod of the cluster.
URL_VARIABLE = "IMAGEKILN_TEST_ARGO_METRICS"


def read_controller_metrics() -> str:
    """The metrics as text, read through the cluster's API, or from the URL of the variable."""
    controllers = kube.items("pods", "--all-namespaces", "--selector", "app=workflow-controller")
    if controllers:
        (controller,) = controllers
        namespace = kube.get_field(controller, "metadata", "namespace")
        target = f"https:{kube.name(controller)}:9090"
        path = f"/api/v1/namespaces/{namespace}/pods/{target}/proxy/metrics"
        return kube.kubectl("get", "--raw", path)
    url = os.environ.get(URL_VARIABLE)
    if url is None:
        pytest.skip(f"Argo's controller is no pod of this cluster, and {URL_VARIABLE} is not set")
    unverified = ssl.create_default_context()
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE  # its certificate is self-signed
    with urllib.request.urlopen(url, context=unverified) as answer:  # noqa: S310  # the tester's
        return str(answer.read().decode())
