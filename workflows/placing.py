"""On which nodes a pod may land."""

from hera.workflows import models as m

from imagekiln.workflows.profile import NodeLabel, PodSettings


def node_affinity(pod: PodSettings) -> m.Affinity | None:
    """The labels that a node must have, and had better have."""
    if not pod.labels and not pod.preferred:
        return None
    terms = [m.NodeSelectorTerm(match_expressions=[_label_requirement(label) for label in pod.labels])]
    preferred = [
        m.PreferredSchedulingTerm(
            weight=100, preference=m.NodeSelectorTerm(match_expressions=[_label_requirement(label)])
        )
        for label in pod.preferred
    ]
    return m.Affinity(
        node_affinity=m.NodeAffinity(
            required_during_scheduling_ignored_during_execution=m.NodeSelector(node_selector_terms=terms)
            if pod.labels
            else None,
            preferred_during_scheduling_ignored_during_execution=preferred or None,
        )
    )


def pod_tolerations(pod: PodSettings) -> list[m.Toleration] | None:
    """The taints that the pod puts up with."""
    found = [
        m.Toleration(key=each.key, operator=each.operator, value=each.value, effect=each.effect)
        for each in pod.tolerations
    ]
    return found or None


def _label_requirement(label: NodeLabel) -> m.NodeSelectorRequirement:
    return m.NodeSelectorRequirement(
        key=label.key, operator=label.operator, values=list(label.values) if label.values else None
    )
