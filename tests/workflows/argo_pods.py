"""The pods that Argo makes of a WorkflowTemplate, by its own rules.

As Argo's controller has them from 3.6.0 to 4.1.2: `mergedTemplateDefaultsInto` in operator.go, and
`createWorkflowPod`, `addSchedulingConstraints` and `ApplyPodSpecPatch` around workflowpod.go.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import yaml

Object = dict[str, Any]

KINDS = ("container", "resource", "dag", "suspend")
# By list: the key that tells its items apart when two lists are merged. Other lists are replaced.
MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "tolerations": "key",
}
ARGO_EXECUTOR: Object = {"image": "quay.io/argoproj/argoexec:v4.1.2"}


def pods(template: Mapping[str, Any]) -> Iterator[tuple[str, Object]]:
    """The pod of each template that has one, by the template's name, as the API server gets it."""
    spec = template["spec"]
    for own in spec["templates"]:
        merged = with_defaults(own, spec)
        if "container" in merged or "resource" in merged:
            yield own["name"], _pod(merged, spec)


def with_defaults(own: Object, spec: Object) -> Object:
    """A template as Argo runs it: over the defaults, without what is of another kind."""
    (kind,) = (key for key in KINDS if key in own)
    merged = merge(spec.get("templateDefaults", {}), own)
    return {key: value for key, value in merged.items() if key == kind or key not in KINDS}


def merge(below: Object, above: Object) -> Object:
    """A strategic merge patch: `above` over `below`."""
    merged = deepcopy(below)
    for key, value in above.items():
        if key in MERGE_KEYS and key in merged:
            merged[key] = _merge_items(merged[key], value, MERGE_KEYS[key])
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = deepcopy(value)
    return merged


def _merge_items(below: list[Object], above: list[Object], name: str) -> list[Object]:
    merged = {item[name]: item for item in below}
    for item in above:
        merged[item[name]] = merge(merged.get(item[name], {}), item)
    return list(merged.values())


def _pod(template: Object, spec: Object) -> Object:
    is_resource = "resource" in template
    wait = [] if is_resource else [{"name": "wait", **ARGO_EXECUTOR}]
    main = ARGO_EXECUTOR if is_resource else template["container"]
    pod: Object = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": template.get("activeDeadlineSeconds"),
        "initContainers": [{"name": "init", **ARGO_EXECUTOR}],
        "containers": [*wait, {"name": "main", **main}],
        "volumes": template.get("volumes", []),
        "serviceAccountName": template.get("serviceAccountName", spec["serviceAccountName"]),
        "priorityClassName": template.get("priorityClassName"),
    }
    for key in ("securityContext", "nodeSelector", "affinity", "tolerations"):
        pod[key] = template.get(key, spec.get(key))

    pod = {key: value for key, value in pod.items() if value is not None}
    for patch in (spec.get("podSpecPatch"), template.get("podSpecPatch")):
        if patch:
            pod = merge(pod, yaml.safe_load(patch))
    return pod


def containers(pod: Object) -> dict[str, Object]:
    """Every container of the pod by its name, those that run first too."""
    return {item["name"]: item for item in [*pod["initContainers"], *pod["containers"]]}
