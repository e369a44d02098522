"""Whether what a profile and a job name in the namespace, or in the cluster, is there."""

import re
from collections.abc import Set
from typing import cast

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job import Job
from imagekiln.workflows import templates
from imagekiln.workflows.connection import Json
from imagekiln.workflows.doctor.check import Finding, Unseen, check, ok, unknown, wrong
from imagekiln.workflows.doctor.fields import part, parts, texts
from imagekiln.workflows.doctor.kubernetes_view import Kind, KubernetesView
from imagekiln.workflows.kubernetes_api import GROUP
from imagekiln.workflows.profile import Profile

TEMPLATES = Kind(GROUP, "workflowtemplates", namespaced=True)
CONFIG_MAPS = Kind("api/v1", "configmaps", namespaced=True)
CLAIMS = Kind("api/v1", "persistentvolumeclaims", namespaced=True)
RUNTIMES = Kind("apis/node.k8s.io/v1", "runtimeclasses")
PRIORITIES = Kind("apis/scheduling.k8s.io/v1", "priorityclasses")
IMAGE_VOLUMES = (1, 33)  # behind a feature gate, which is on by default in:
IMAGE_VOLUMES_BY_DEFAULT = (1, 35)
EMPTY: tuple[object, ...] = ({}, [], "", None)
MANY = {"ReadWriteMany", "ReadOnlyMany"}


@check("template")
def template(view: KubernetesView, profile: Profile) -> Finding:
    """The profile's template is registered, and applying it would change nothing."""
    made = templates.workflow_template(profile, view.namespace)
    there, called = view.get(TEMPLATES, templates.name(profile)), templates.name(profile)
    if there is None:
        return ok(f"{called} is not registered yet; `imagekiln submit` registers it.")
    try:
        would = view.would_be(made)
    except Unseen:
        raise
    except BadInput as error:
        return wrong(f"The cluster would not take {called}: {error}", "See whether Argo's version is one we know.")
    same = all(_meant(there, key) == _meant(would, key) for key in ("labels", "annotations", "spec"))
    if not same:
        return wrong(f"{called} is not what this version would register.", "Run `imagekiln apply JOB`.")
    return ok(f"{called} is registered and up to date.")


def _meant(made: dict[str, object], key: str) -> object:
    """A part of a template, whichever API it came by: Argo's server writes out what is empty, and repeats labels."""
    if key != "spec":
        return part(made, "metadata", key)
    spec = cast("Json", _filled(part(made, "spec")))
    common = texts(spec, "podMetadata", "labels").items()
    return spec | {"templates": [_without(each, common) for each in parts(spec, "templates")]}


def _filled(value: object) -> object:
    """The value without what is empty, at any depth."""
    if isinstance(value, dict):
        return {key: kept for key, each in value.items() if (kept := _filled(each)) not in EMPTY}
    return [_filled(each) for each in value] if isinstance(value, list) else value


def _without(template: Json, labels: Set[tuple[str, str]]) -> Json:
    own = {key: value for key, value in texts(template, "metadata", "labels").items() if (key, value) not in labels}
    about = {**part(template, "metadata"), "labels": own}
    return cast("Json", _filled({**template, "metadata": about}))


@check("runtime-class")
def runtime_class(view: KubernetesView, name: str) -> Finding:
    """The RuntimeClass that pods ask for is there."""
    if view.get(RUNTIMES, name) is None:
        return wrong(
            f"There is no RuntimeClass {name}.", "Make it, as your GPU's operator does, or use another profile."
        )
    return ok(f"{name} is there.")


@check("priority-class")
def priority_class(view: KubernetesView, name: str) -> Finding:
    """The PriorityClass that pods ask for is there: without it, no pod is let in."""
    if view.get(PRIORITIES, name) is None:
        remedy = "Apply workflows/cluster/base/priority.yaml, or name another one."
        return wrong(f"There is no PriorityClass {name}.", remedy)
    return ok(f"{name} is there.")


@check("model-cache")
def claim(view: KubernetesView, name: str) -> Finding:
    """The claim that holds model files is bound, and can be mounted by many nodes."""
    found = view.get(CLAIMS, name)
    if found is None:
        return wrong(f"There is no claim {name}.", "Make it: workflows/cluster/gpus/models-claim.yaml is one.")
    phase, modes = part(found, "status").get("phase"), part(found, "spec").get("accessModes")
    if phase == "Pending":
        # A storage class may wait for the first pod, and only its events would say so.
        return unknown(f"Claim {name} is not bound yet.", "See `kubectl describe pvc`: it may wait for its first pod.")
    if phase != "Bound":
        return wrong(f"Claim {name} is {phase}.", "Make it again, on a volume that is there.")
    if not MANY & set(modes if isinstance(modes, list) else ()):
        return wrong(f"Claim {name} mounts on one node only.", "Use a storage class with ReadWriteMany.")
    return ok(f"Claim {name} is bound.")


@check("model-image")
def image_volume(view: KubernetesView) -> Finding:
    """Kubernetes can mount an image, which the profile keeps model files in."""
    version = view.version()
    found = re.match(r"v?(\d+)\.(\d+)", version)
    number = (int(found[1]), int(found[2])) if found else IMAGE_VOLUMES
    if number < IMAGE_VOLUMES:
        return wrong(f"Kubernetes {version} mounts no images.", "Update it to 1.35, or keep models in cache.claim.")
    if number < IMAGE_VOLUMES_BY_DEFAULT:
        says = (
            f"Kubernetes {version} mounts images only with its feature gate ImageVolume; pods come without them else."
        )
        return unknown(says, "Ask who runs the cluster, update it to 1.35, or keep models in cache.claim.")
    return ok(f"Kubernetes {version} mounts images.")


@check("semaphore")
def semaphore(view: KubernetesView, key: str) -> Finding:
    """The number of pods at once, over all batches, is set."""
    there = texts(view.get(CONFIG_MAPS, "imagekiln-gpus"), "data").get(key)
    if there is None or not there.strip().isdecimal() or not int(there):
        remedy = f'Set it to how many pods may run at once, such as {key}: "16".'
        return wrong(f"ConfigMap imagekiln-gpus has no number in {key}.", remedy)
    return ok(f"{there.strip()} pods at once, over all batches.")


def priority_classes(job: Job, profile: Profile) -> list[str]:
    """The PriorityClasses that the pods of a job ask for."""
    steps = (each.priority_class or job.cluster.priority_class for each in (profile.generate, profile.steps))
    return sorted({each for each in steps if each})
