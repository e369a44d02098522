"""Whether what a profile and a job name in the namespace, or in the cluster, is there."""

import re
from collections.abc import Set
from typing import cast

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.job import Job
from imagekiln.workflows.client.kubernetes import ARGO_API_PATH
from imagekiln.workflows.doctor.check import Finding, Unreadable, doctor_check, ok, unknown, wrong
from imagekiln.workflows.doctor.cluster_view import ClusterView, ResourceKind
from imagekiln.workflows.doctor.kube_fields import get_mapping, get_mappings, get_texts
from imagekiln.workflows.objects import Json
from imagekiln.workflows.profiles.profile import Profile
from imagekiln.workflows.templates.workflow_template import build_workflow_template, template_name

WORKFLOW_TEMPLATES = ResourceKind(ARGO_API_PATH, "workflowtemplates", namespaced=True)
CONFIG_MAPS = ResourceKind("api/v1", "configmaps", namespaced=True)
VOLUME_CLAIMS = ResourceKind("api/v1", "persistentvolumeclaims", namespaced=True)
RUNTIME_CLASSES = ResourceKind("apis/node.k8s.io/v1", "runtimeclasses")
PRIORITY_CLASSES = ResourceKind("apis/scheduling.k8s.io/v1", "priorityclasses")
IMAGE_VOLUMES_SINCE = (1, 33)  # behind a feature gate, which is on by default in:
IMAGE_VOLUMES_BY_DEFAULT = (1, 35)
EMPTY_VALUES: tuple[object, ...] = ({}, [], "", None)
SHARED_ACCESS_MODES = {"ReadWriteMany", "ReadOnlyMany"}


@doctor_check("template")
def check_template(view: ClusterView, profile: Profile) -> Finding:
    """The profile's template is registered, and applying it would change nothing."""
    made = build_workflow_template(profile, view.namespace)
    there, called = view.get(WORKFLOW_TEMPLATES, template_name(profile)), template_name(profile)
    if there is None:
        return ok(f"{called} is not registered yet; `imagekiln submit` registers it.")
    try:
        would = view.dry_run_apply(made)
    except Unreadable:
        raise
    except BadInput as error:
        return wrong(
            f"The cluster would not take {called}: {error}",
            "See whether Argo's version is one we know.",
        )
    same = all(
        _normalized_part(there, key) == _normalized_part(would, key)
        for key in ("labels", "annotations", "spec")
    )
    if not same:
        return wrong(
            f"{called} is not what this version would register.", "Run `imagekiln apply JOB`."
        )
    return ok(f"{called} is registered and up to date.")


def _normalized_part(made: dict[str, object], key: str) -> object:
    """A part of a template, whichever API it came by: Argo's server writes out what is empty, and repeats labels."""
    if key != "spec":
        return get_mapping(made, "metadata", key)
    spec = cast("Json", _without_empty(get_mapping(made, "spec")))
    common = get_texts(spec, "podMetadata", "labels").items()
    return spec | {
        "templates": [_without_labels(each, common) for each in get_mappings(spec, "templates")]
    }


def _without_empty(value: object) -> object:
    """The value without what is empty, at any depth."""
    if isinstance(value, dict):
        return {
            key: kept
            for key, each in value.items()
            if (kept := _without_empty(each)) not in EMPTY_VALUES
        }
    return [_without_empty(each) for each in value] if isinstance(value, list) else value


def _without_labels(template: Json, labels: Set[tuple[str, str]]) -> Json:
    own = {
        key: value
        for key, value in get_texts(template, "metadata", "labels").items()
        if (key, value) not in labels
    }
    about = {**get_mapping(template, "metadata"), "labels": own}
    return cast("Json", _without_empty({**template, "metadata": about}))


@doctor_check("runtime-class")
def check_runtime_class(view: ClusterView, name: str) -> Finding:
    """The RuntimeClass that pods ask for is there."""
    if view.get(RUNTIME_CLASSES, name) is None:
        return wrong(
            f"There is no RuntimeClass {name}.",
            "Make it, as your GPU's operator does, or use another profile.",
        )
    return ok(f"{name} is there.")


@doctor_check("priority-class")
def check_priority_class(view: ClusterView, name: str) -> Finding:
    """The PriorityClass that pods ask for is there: without it, no pod is let in."""
    if view.get(PRIORITY_CLASSES, name) is None:
        remedy = "Apply workflows/cluster/base/priority.yaml, or name another one."
        return wrong(f"There is no PriorityClass {name}.", remedy)
    return ok(f"{name} is there.")


@doctor_check("model-cache")
def check_model_claim(view: ClusterView, name: str) -> Finding:
    """The claim that holds model files is bound, and can be mounted by many nodes."""
    found = view.get(VOLUME_CLAIMS, name)
    if found is None:
        return wrong(
            f"There is no claim {name}.",
            "Make it: workflows/cluster/gpus/models-claim.yaml is one.",
        )
    phase, modes = (
        get_mapping(found, "status").get("phase"),
        get_mapping(found, "spec").get("accessModes"),
    )
    if phase == "Pending":
        # A storage class may wait for the first pod, and only its events would say so.
        return unknown(
            f"Claim {name} is not bound yet.",
            "See `kubectl describe pvc`: it may wait for its first pod.",
        )
    if phase != "Bound":
        return wrong(f"Claim {name} is {phase}.", "Make it again, on a volume that is there.")
    if not SHARED_ACCESS_MODES & set(modes if isinstance(modes, list) else ()):
        return wrong(
            f"Claim {name} mounts on one node only.", "Use a storage class with ReadWriteMany."
        )
    return ok(f"Claim {name} is bound.")


@doctor_check("model-image")
def check_image_volume(view: ClusterView) -> Finding:
    """Kubernetes can mount an image, which the profile keeps model files in."""
    version = view.version()
    found = re.match(r"v?(\d+)\.(\d+)", version)
    number = (int(found[1]), int(found[2])) if found else IMAGE_VOLUMES_SINCE
    if number < IMAGE_VOLUMES_SINCE:
        return wrong(
            f"Kubernetes {version} mounts no images.",
            "Update it to 1.35, or keep models in cache.claim.",
        )
    if number < IMAGE_VOLUMES_BY_DEFAULT:
        says = f"Kubernetes {version} mounts images only with its feature gate ImageVolume; pods come without them else."
        return unknown(
            says, "Ask who runs the cluster, update it to 1.35, or keep models in cache.claim."
        )
    return ok(f"Kubernetes {version} mounts images.")


@doctor_check("semaphore")
def check_semaphore(view: ClusterView, key: str) -> Finding:
    """The number of pods at once, over all batches, is set."""
    there = get_texts(view.get(CONFIG_MAPS, "imagekiln-gpus"), "data").get(key)
    if there is None or not there.strip().isdecimal() or not int(there):
        remedy = f'Set it to how many pods may run at once, such as {key}: "16".'
        return wrong(f"ConfigMap imagekiln-gpus has no number in {key}.", remedy)
    return ok(f"{there.strip()} pods at once, over all batches.")


def job_priority_classes(job: Job, profile: Profile) -> list[str]:
    """The PriorityClasses that the pods of a job ask for."""
    steps = (
        each.priority_class or job.cluster.priority_class
        for each in (profile.generate, profile.steps)
    )
    return sorted({each for each in steps if each})
