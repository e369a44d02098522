"""What a notification leads to: the workflow's page, its report and the runbook.

Only where the namespace's defaults (ConfigMap imagekiln-defaults) say where these are.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

FNV_OFFSET = 0x811C9DC5
FNV_PRIME = 0x01000193
MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Links:
    """URLs of pages; each is empty where it is not known."""

    workflow: str = ""
    report: str = ""
    runbook: str = ""

    def items(self) -> Iterator[tuple[str, str]]:
        """The known ones, each with its title."""
        if self.workflow:
            yield "Workflow", self.workflow
        if self.report:
            yield "Report", self.report
        if self.runbook:
            yield "Runbook", self.runbook


def find_links(environment: Mapping[str, str], workflow: str, node: str) -> Links:
    """The links of a workflow, NAMESPACE/NAME, whose report is at this node if it has one."""
    argo = environment.get("IMAGEKILN_ARGO_URL", "").strip().rstrip("/")
    runbook = environment.get("IMAGEKILN_RUNBOOK_URL", "").strip()
    if not argo:
        return Links(runbook=runbook)

    report = _report_url(argo, workflow, node) if node else ""
    return Links(f"{argo}/workflows/{workflow}", report, runbook)


def _report_url(argo: str, workflow: str, node: str) -> str:
    """Where Argo's server shows the artifact `report` of a node of the workflow."""
    namespace, _, name = workflow.partition("/")
    number = _fnv1a(f"{name}.{node}")
    place = f"{namespace}/workflows/{name}/{name}-{number}"
    return f"{argo}/artifact-files/{place}/outputs/report/index.html"


def _fnv1a(text: str) -> int:
    """The hash by which Argo names a node: FNV-1a of 32 bits."""
    value = FNV_OFFSET
    for byte in text.encode():
        value ^= byte
        value *= FNV_PRIME
        value &= MASK
    return value
