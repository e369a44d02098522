"""What the shipped NetworkPolicy lets through, by Kubernetes' rules, for each pod of ours.

The clusters of the tests do not enforce policies: this reads them as a network plugin does.
"""

from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.workflow_template import build_workflow_template
from tests.workflows.argo_pods import with_defaults

CLUSTER = Path(__file__).parents[3] / "workflows" / "cluster"
Object = dict[str, Any]
STEPS = {
    "rewrite", "fetch-language-model", "plan", "fetch", "generate", "aggregate", "export", "report",
    "publish-report", "further-one",
}  # fmt: skip
STORE = "52.216.8.3"
SERVICE = "10.96.0.10"  # of the cluster
# By what needs it: the protocol, an address, and the port.
NEEDED = {
    "DNS": ("UDP", SERVICE, 53),
    "DNS of a long answer": ("TCP", SERVICE, 53),
    "object store": ("TCP", STORE, 443),
    "object store over IPv6": ("TCP", "2600:1fa0::1", 443),
    "MinIO in the cluster": ("TCP", SERVICE, 9000),
    "SeaweedFS in the cluster": ("TCP", SERVICE, 8333),
    "model hub": ("TCP", "18.164.174.55", 443),
    "API server behind its service": ("TCP", "10.96.0.1", 443),
    "API server itself": ("TCP", "10.0.0.5", 6443),
    "EKS Pod Identity": ("TCP", "169.254.170.23", 80),
    "EKS Pod Identity over IPv6": ("TCP", "fd00:ec2::23", 80),
    "GKE workload identity": ("TCP", "169.254.169.252", 988),
}
METADATA_ADDRESSES = (
    "169.254.169.254",
    "fd00:ec2::254",
    "fd20:ce::254",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
)
WEB_PORTS = (80, 8080)


def read_policy() -> Object:
    """The spec of the only policy."""
    manifest = yaml.safe_load((CLUSTER / "base/network.yaml").read_text(encoding="utf-8"))
    assert manifest["kind"] == "NetworkPolicy"
    spec: Object = manifest["spec"]
    return spec


def is_selected(labels: Object, selector: Object) -> bool:
    """Whether a selector of labels, all of ours being equalities, selects an object."""
    assert set(selector) <= {"matchLabels"}
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


def sends(policy: Object, protocol: str, address: str, port: int) -> bool:
    """Whether a pod that the policy selects may open such a connection."""
    return any(
        _fits_port(rule, protocol, port) and _fits_address(rule, address)
        for rule in policy["egress"]
    )


def _fits_port(rule: Object, protocol: str, port: int | str) -> bool:
    if "ports" not in rule:
        return True
    return any(item["port"] == port and item["protocol"] == protocol for item in rule["ports"])


def _fits_address(rule: Object, address: str) -> bool:
    if "to" not in rule:
        return True
    blocks = [peer["ipBlock"] for peer in rule["to"]]
    return any(
        ip_address(address) in ip_network(block["cidr"])
        and not any(ip_address(address) in ip_network(cidr) for cidr in block.get("except", ()))
        for block in blocks
    )


def is_reached_by(policy: Object, namespace_labels: Object, port: str) -> bool:
    """Whether a pod of a namespace with these labels may connect to a named port of ours."""
    return any(
        _fits_port(rule, "TCP", port)
        and any(is_selected(namespace_labels, peer["namespaceSelector"]) for peer in rule["from"])
        for rule in policy["ingress"]
    )


def pod_labels() -> Iterator[tuple[str, Object]]:
    """The labels of each kind of pod of a workflow, by its step."""
    profile = load_profile("cached-claim")
    spec = build_workflow_template(profile, "images", rewrites=True)["spec"]
    assert isinstance(spec, dict)
    common = spec["podMetadata"]["labels"]
    for template in spec["templates"]:
        if not {"dag", "suspend"} & template.keys():
            own = with_defaults(template, spec).get("metadata", {}).get("labels", {})
            yield template["name"], {**common, **own}


def test_every_pod_of_a_workflow_has_the_policy() -> None:
    policy = read_policy()
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    labels = dict(pod_labels())
    assert set(labels) == STEPS

    batch = yaml.safe_load((CLUSTER / "base/batch.yaml").read_text(encoding="utf-8"))
    (template,) = batch["spec"]["templates"]
    labels["batch"] = template["metadata"]["labels"]
    for step, own in labels.items():
        assert is_selected(own, policy["podSelector"]), step


@pytest.mark.parametrize("what", NEEDED)
def test_pods_reach_what_they_need(what: str) -> None:
    assert sends(read_policy(), *NEEDED[what])


@pytest.mark.parametrize("address", METADATA_ADDRESSES)
def test_no_pod_reaches_the_metadata_service_of_its_node(address: str) -> None:
    assert not any(sends(read_policy(), "TCP", address, port) for port in WEB_PORTS)


@pytest.mark.parametrize("port", [22, 25, 80, 2049, 3306, 5432, 6379, 10250])
def test_no_pod_reaches_other_services(port: int) -> None:
    assert not any(sends(read_policy(), "TCP", place, port) for place in (STORE, SERVICE))


def test_only_admitted_namespaces_reach_a_pod_and_only_its_metrics() -> None:
    policy = read_policy()
    admitted = {"imagekiln.dev/metrics": "scrape", "kubernetes.io/metadata.name": "monitoring"}
    assert is_reached_by(policy, admitted, "metrics")
    assert not is_reached_by(policy, {"kubernetes.io/metadata.name": "other-team"}, "metrics")
    assert not is_reached_by(policy, admitted, "other")

    profile = load_profile("gpu")
    assert profile.metrics_port
    spec = build_workflow_template(profile, "images")["spec"]
    assert isinstance(spec, dict)
    (generate,) = (item for item in spec["templates"] if item["name"] == "generate")
    (port,) = with_defaults(generate, spec)["container"]["ports"]
    assert port["name"] == "metrics"
