"""The connections that the shipped NetworkPolicy lets our pods open and take.

The clusters of the tests do not enforce policies.
"""

from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import yaml

from imagekiln.workflows.profiles.loader import load_profile
from imagekiln.workflows.templates.workflow_template import build_workflow_template
from tests.workflows.argo_pods import with_defaults

BASE = Path(__file__).parents[3] / "workflows" / "cluster" / "base"
POLICY: dict[str, Any] = yaml.safe_load((BASE / "network.yaml").read_text(encoding="utf-8"))["spec"]
# DNS, HTTPS, API servers behind their services, SeaweedFS and MinIO.
PORTS = {("UDP", 53), *(("TCP", port) for port in (53, 443, 6443, 8443, 16443, 8333, 9000))}
IDENTITY_ADDRESSES = ("169.254.170.23", "fd00:ec2::23", "169.254.169.252")  # EKS, EKS, GKE
METADATA_ADDRESSES = (
    "169.254.169.254",
    "fd00:ec2::254",
    "fd20:ce::254",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
)


def test_every_pod_of_a_workflow_has_the_policy() -> None:
    spec: Any = build_workflow_template(load_profile("cached-claim"), "images", rewrites=True)[
        "spec"
    ]
    batch = yaml.safe_load((BASE / "batch.yaml").read_text(encoding="utf-8"))["spec"]["templates"]
    labels = [template["metadata"]["labels"] for template in batch]
    for template in spec["templates"]:
        own = with_defaults(template, spec).get("metadata", {}).get("labels", {})
        labels.append(spec["podMetadata"]["labels"] | own)
    selected = POLICY["podSelector"]["matchLabels"].items()
    assert all(selected <= own.items() for own in labels)
    assert POLICY["policyTypes"] == ["Ingress", "Egress"]


def test_pods_reach_stores_hubs_and_identities_and_no_other_service_or_metadata() -> None:
    anywhere, identities = POLICY["egress"]
    assert set(anywhere) == {"ports"}
    assert {(item["protocol"], item["port"]) for item in anywhere["ports"]} == PORTS
    blocks = [ip_network(peer["ipBlock"]["cidr"]) for peer in identities["to"]]
    for address in IDENTITY_ADDRESSES:
        assert any(ip_address(address) in block for block in blocks)
    for address in METADATA_ADDRESSES:
        assert not any(ip_address(address) in block for block in blocks)
    assert [item["port"] for item in identities["ports"]] == [80, 988]


def test_only_admitted_namespaces_reach_a_pod_and_only_its_metrics() -> None:
    (rule,) = POLICY["ingress"]
    assert rule == {
        "from": [{"namespaceSelector": {"matchLabels": {"imagekiln.dev/metrics": "scrape"}}}],
        "ports": [{"protocol": "TCP", "port": "metrics"}],
    }
    spec: Any = build_workflow_template(load_profile("gpu"), "images")["spec"]
    (generate,) = (item for item in spec["templates"] if item["name"] == "generate")
    (port,) = with_defaults(generate, spec)["container"]["ports"]
    assert port["name"] == "metrics"
