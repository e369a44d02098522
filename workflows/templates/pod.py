"""A template of one container: an imagekiln command, where the profile puts it, locked down."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hera.workflows import Artifact, ConfigMapEnvFrom, Container, Env, Parameter, SecretEnv
from hera.workflows import models as m

from imagekiln.workflows.profiles.profile import NodeLabel, PodSettings, Retries
from imagekiln.workflows.templates.parameters import declare_inputs
from imagekiln.workflows.templates.retry import memory_expression, retry_strategy
from imagekiln.workflows.templates.security import argo_containers_patch, container_security_context
from imagekiln.workflows.templates.yaml import to_yaml

TMP = "/tmp"  # noqa: S108  # an emptyDir of the pod's own: the root is read-only
DEFAULTS_CONFIG_MAP = "imagekiln-defaults"
# By variable: the Secret, and its key.
STORAGE_SECRETS = {
    "AWS_ACCESS_KEY_ID": ("s3-credentials", "accesskey"),
    "AWS_SECRET_ACCESS_KEY": ("s3-credentials", "secretkey"),
}
MODEL_SECRETS = STORAGE_SECRETS | {"HF_TOKEN": ("huggingface", "token")}
SIGNING_SECRETS = {
    "IMAGEKILN_C2PA_CERTIFICATE": ("imagekiln-c2pa", "certificate"),
    "IMAGEKILN_C2PA_KEY": ("imagekiln-c2pa", "key"),
}


@dataclass(frozen=True, slots=True)
class StepCommand:
    """What a pod does: an imagekiln command, and what goes in and out."""

    name: str
    arguments: Sequence[str]
    image: str
    inputs: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    outputs: Sequence[Parameter | Artifact] = ()


@dataclass(frozen=True, slots=True)
class PodExtras:
    """What only some pods have: resources beyond CPU and memory, claims, a folder of models."""

    resources: dict[str, str] = field(default_factory=dict)
    claim: str | None = None
    volume: m.Volume | None = None
    mount: m.VolumeMount | None = None
    synchronization: m.Synchronization | None = None


def step_container(
    step: StepCommand, pod: PodSettings, retries: Retries, extras: PodExtras | None = None
) -> Container:
    """The template of a pod that runs `step`."""
    extras = extras or PodExtras()
    volumes, mounts = _volumes(pod, extras)

    return Container(
        name=step.name,
        labels={"imagekiln/step": step.name},
        annotations=pod.annotations or None,
        inputs=declare_inputs(*step.inputs),
        outputs=list(step.outputs),
        image=step.image,
        image_pull_policy="IfNotPresent",
        command=["imagekiln"],
        args=list(step.arguments),
        env=_environment(step, pod, extras),
        env_from=[ConfigMapEnvFrom(name=DEFAULTS_CONFIG_MAP, optional=True)],
        resources=_resources(pod, extras),
        security_context=container_security_context(),
        volumes=volumes,
        volume_mounts=mounts,
        node_selector=pod.node_selector or None,
        affinity=node_affinity(pod),
        tolerations=pod_tolerations(pod),
        priority_class_name=pod.priority_class,
        active_deadline_seconds=round(pod.hours * 3600),
        retry_strategy=retry_strategy(retries),
        synchronization=extras.synchronization,
        pod_spec_patch=to_yaml(_pod_spec_patch(pod, extras)),
    )


def node_affinity(pod: PodSettings) -> m.Affinity | None:
    """The labels that a node must have, and those that are preferred."""
    if not pod.labels and not pod.preferred:
        return None

    required = None
    if pod.labels:
        term = m.NodeSelectorTerm(match_expressions=[_requirement(label) for label in pod.labels])
        required = m.NodeSelector(node_selector_terms=[term])

    preferred = [
        m.PreferredSchedulingTerm(
            weight=100, preference=m.NodeSelectorTerm(match_expressions=[_requirement(label)])
        )
        for label in pod.preferred
    ]
    return m.Affinity(
        node_affinity=m.NodeAffinity(
            required_during_scheduling_ignored_during_execution=required,
            preferred_during_scheduling_ignored_during_execution=preferred or None,
        )
    )


def pod_tolerations(pod: PodSettings) -> list[m.Toleration] | None:
    """The taints that the pod tolerates."""
    tolerations = [
        m.Toleration(key=taint.key, operator=taint.operator, value=taint.value, effect=taint.effect)
        for taint in pod.tolerations
    ]
    return tolerations or None


def _requirement(label: NodeLabel) -> m.NodeSelectorRequirement:
    values = list(label.values) if label.values else None
    return m.NodeSelectorRequirement(key=label.key, operator=label.operator, values=values)


def _environment(step: StepCommand, pod: PodSettings, extras: PodExtras) -> list[Env | SecretEnv]:
    models = extras.mount.mount_path if extras.mount else f"{TMP}/models"
    values = {"HOME": TMP, "HF_HOME": models} | pod.env
    return [
        *(Env(name=variable, value=value) for variable, value in values.items()),
        *(_secret_env(variable, *place) for variable, place in step.secrets.items()),
        *(Env(name=variable, value=value) for variable, value in step.env.items()),
    ]


def _secret_env(variable: str, secret: str, key: str) -> SecretEnv:
    # Optional: with workload identity, or a model that is open to all, there is none.
    return SecretEnv(name=variable, secret_name=secret, secret_key=key, optional=True)


def _resources(pod: PodSettings, extras: PodExtras) -> m.ResourceRequirements:
    # Hera's Resources takes one kind of GPU by name; a profile may ask for any resource.
    devices = {name: m.Quantity(count) for name, count in extras.resources.items()}
    requests = {"cpu": m.Quantity(f"{round(pod.cpu * 1000)}m"), **devices}
    return m.ResourceRequirements(requests=requests, limits=devices or None)


def _volumes(pod: PodSettings, extras: PodExtras) -> tuple[list[m.Volume], list[m.VolumeMount]]:
    disk = m.EmptyDirVolumeSource(size_limit=_memory_quantity(pod.disk))
    volumes = [m.Volume(name="tmp", empty_dir=disk)]
    mounts = [m.VolumeMount(name="tmp", mount_path=TMP)]

    if pod.shared_memory is not None:
        size = _memory_quantity(pod.shared_memory)
        memory = m.EmptyDirVolumeSource(medium="Memory", size_limit=size)
        volumes.append(m.Volume(name="shared-memory", empty_dir=memory))
        mounts.append(m.VolumeMount(name="shared-memory", mount_path="/dev/shm"))  # noqa: S108

    if extras.volume is not None and extras.mount is not None:
        volumes.append(extras.volume)
        mounts.append(extras.mount)
    return volumes, mounts


def _pod_spec_patch(pod: PodSettings, extras: PodExtras) -> dict[str, object]:
    """What templates have no field for. Memory is here because a quantity takes no expression."""
    memory = memory_expression(_mib(pod.memory), _mib(pod.most_memory) if pod.most_memory else None)
    resources: dict[str, object] = {"requests": {"memory": memory}, "limits": {"memory": memory}}
    if extras.claim:
        resources["claims"] = [{"name": "gpu"}]
    patch = argo_containers_patch()
    patch["containers"] = [*_as_list(patch["containers"]), {"name": "main", "resources": resources}]
    if pod.runtime_class:
        patch["runtimeClassName"] = pod.runtime_class
    if extras.claim:
        patch["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": extras.claim}]
    return patch


def _as_list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _mib(gib: float) -> int:
    return round(gib * 1024)


def _memory_quantity(gib: float | None) -> m.Quantity | None:
    return None if gib is None else m.Quantity(f"{_mib(gib)}Mi")
