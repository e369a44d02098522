"""The pods that Argo makes of a WorkflowTemplate, by its own rules.

As Argo's controller has them from 3.6.0 to 4.1.2: `mergedTemplateDefaultsInto` in operator.go, and
`createWorkflowPod`, `addSchedulingConstraints` and `ApplyPodSpecPatch` around workflowpod.go.
"""

import json
import re
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
# A line of a patch that Argo replaces by an image, or by nothing, before it reads the YAML.
IMAGE_LINE = re.compile(r'\{\{=workflow\.parameters\["(.+?)"\] == "" \? "" : .+\}\}')
ARGO_EXECUTOR: Object = {"image": "quay.io/argoproj/argoexec:v4.1.2"}
# The whole security context of every container: what else it had could only add rights.
RESTRICTED: Object = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def pods(
    template: Mapping[str, Any], images: Mapping[str, str] | None = None
) -> Iterator[tuple[str, Object]]:
    """The pod of each template that has one, by the template's name, as the API server gets it.

    `images` are those that a run names, by the workflow's parameter.
    """
    spec = template["spec"]
    for own in spec["templates"]:
        merged = with_defaults(own, spec)
        if "container" in merged or "resource" in merged:
            yield own["name"], _pod(merged, spec, images or {})


def read_patch(text: str, images: Mapping[str, str]) -> Object:
    """A patch of a pod, as Argo reads it after its expressions for images."""

    def image_line(expression: re.Match[str]) -> str:
        image = images.get(expression[1])
        return f"image: {json.dumps(image)}" if image else ""

    patch: Object = yaml.safe_load(IMAGE_LINE.sub(image_line, text))
    return patch


def with_defaults(own: Object, spec: Object) -> Object:
    """A template as Argo runs it: over the defaults, without what is of another kind."""
    (kind,) = (key for key in KINDS if key in own)
    merged = _decode_into(own, merge(spec.get("templateDefaults", {}), own))
    assert isinstance(merged, dict)
    return {key: value for key, value in merged.items() if key == kind or key not in KINDS}


def _decode_into(value: object, decoded: object) -> object:
    """What Go's JSON decoder leaves where it decodes into a value, as Argo does with the merged.

    Fields that the JSON lacks keep what they had, also those of the item at the same place in a
    list: a variable may end with a value of its own and a reference of its neighbor.
    """
    if isinstance(value, dict) and isinstance(decoded, dict):
        kept = {key: _decode_into(value.get(key), item) for key, item in decoded.items()}
        return value | kept
    if isinstance(value, list) and isinstance(decoded, list):
        before = [*value, *[None] * len(decoded)]
        return [_decode_into(old, new) for old, new in zip(before, decoded, strict=False)]
    return decoded


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
    """The items of both, in Kubernetes' order: an item below stays before those it stood before."""
    order = [item[name] for item in below]
    items = {item[name]: item for item in below}
    rest = [item for item in below if item[name] not in {own[name] for own in above}]
    merged = []
    for item in above:
        if item[name] in items:
            while rest and order.index(rest[0][name]) < order.index(item[name]):
                merged.append(rest.pop(0))
        merged.append(merge(items.get(item[name], {}), item))
    return merged + rest


def _pod(template: Object, spec: Object, images: Mapping[str, str]) -> Object:
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
            pod = merge(pod, read_patch(patch, images))
    return pod


def containers(pod: Object) -> dict[str, Object]:
    """Every container of the pod by its name, those that run first too."""
    return {item["name"]: item for item in [*pod["initContainers"], *pod["containers"]]}
