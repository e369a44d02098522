"""A template of one container: our command, where the profile puts it, and locked down."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hera.workflows import models as m

from imagekiln.workflows.profiles.profile import NodeLabel, PodSettings, Retries
from imagekiln.workflows.templates.retry import memory_expression, retry_strategy
from imagekiln.workflows.templates.security import argo_containers_patch, container_security_context
from imagekiln.workflows.templates.yaml import to_yaml


def node_affinity(pod: PodSettings) -> m.Affinity | None:
    """The labels that a node must have, and had better have."""
    if not pod.labels and not pod.preferred:
        return None
    terms = [
        m.NodeSelectorTerm(match_expressions=[_label_requirement(label) for label in pod.labels])
    ]
    preferred = [
        m.PreferredSchedulingTerm(
            weight=100, preference=m.NodeSelectorTerm(match_expressions=[_label_requirement(label)])
        )
        for label in pod.preferred
    ]
    return m.Affinity(
        node_affinity=m.NodeAffinity(
            required_during_scheduling_ignored_during_execution=m.NodeSelector(
                node_selector_terms=terms
            )
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
    """What a pod does: the command's arguments, each one text, and what goes in and out."""

    name: str
    arguments: Sequence[str]
    image: str
    inputs: Sequence[str] = ()
    env: Sequence[m.EnvVar] = ()
    secrets: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    outputs: m.Outputs | None = None


@dataclass(frozen=True, slots=True)
class PodExtras:
    """What only some pods have: resources beyond CPU and memory, claims, and a folder of models."""

    resources: dict[str, str] | None = None
    claim: str | None = None
    volume: m.Volume | None = None
    mount: m.VolumeMount | None = None
    synchronization: m.Synchronization | None = None


def container_template(
    work: StepCommand, pod: PodSettings, retries: Retries, extras: PodExtras | None = None
) -> m.Template:
    """The template of a pod that does `work`."""
    extras = extras or PodExtras()
    mounts = [m.VolumeMount(name="tmp", mount_path=TMP)]
    volumes = [
        m.Volume(
            name="tmp", empty_dir=m.EmptyDirVolumeSource(size_limit=_memory_quantity(pod.disk))
        )
    ]
    if pod.shared_memory is not None:
        mounts.append(m.VolumeMount(name="shared-memory", mount_path="/dev/shm"))  # noqa: S108  # as above
        memory = m.EmptyDirVolumeSource(
            medium="Memory", size_limit=_memory_quantity(pod.shared_memory)
        )
        volumes.append(m.Volume(name="shared-memory", empty_dir=memory))
    if extras.volume is not None and extras.mount is not None:
        mounts.append(extras.mount)
        volumes.append(extras.volume)
    return m.Template(
        name=work.name,
        metadata=m.Metadata(
            labels={"imagekiln/step": work.name}, annotations=pod.annotations or None
        ),
        inputs=m.Inputs(parameters=[m.Parameter(name=name) for name in work.inputs])
        if work.inputs
        else None,
        outputs=work.outputs,
        container=_main_container(work, pod, extras, mounts),
        volumes=volumes,
        node_selector=pod.node_selector or None,
        affinity=node_affinity(pod),
        tolerations=pod_tolerations(pod),
        priority_class_name=pod.priority_class,
        active_deadline_seconds=m.IntOrString(round(pod.hours * 3600)),
        retry_strategy=retry_strategy(retries),
        synchronization=extras.synchronization,
        pod_spec_patch=to_yaml(_pod_spec_patch(pod, extras)),
    )


def _main_container(
    work: StepCommand, pod: PodSettings, extras: PodExtras, mounts: list[m.VolumeMount]
) -> m.Container:
    resources = {"cpu": m.Quantity(_cpu_quantity(pod.cpu))} | {
        name: m.Quantity(count) for name, count in (extras.resources or {}).items()
    }
    return m.Container(
        image=work.image,
        image_pull_policy="IfNotPresent",
        command=["imagekiln"],
        args=list(work.arguments),
        env=[
            m.EnvVar(name=name, value=value)
            for name, value in _container_environment(pod, extras).items()
        ]
        + [_secret_env(variable, *place) for variable, place in work.secrets.items()]
        + list(work.env),
        env_from=[
            m.EnvFromSource(
                config_map_ref=m.ConfigMapEnvSource(name=DEFAULTS_CONFIG_MAP, optional=True)
            )
        ],
        resources=m.ResourceRequirements(requests=resources, limits=_limits(extras)),
        security_context=container_security_context(),
        volume_mounts=mounts,
    )


def _container_environment(pod: PodSettings, extras: PodExtras) -> dict[str, str]:
    models = extras.mount.mount_path if extras.mount else f"{TMP}/models"
    return {"HOME": TMP, "HF_HOME": models} | pod.env


def _limits(extras: PodExtras) -> dict[str, m.Quantity] | None:
    return (
        {name: m.Quantity(count) for name, count in extras.resources.items()}
        if extras.resources
        else None
    )


def _pod_spec_patch(pod: PodSettings, extras: PodExtras) -> dict[str, object]:
    """What templates of Argo have no field for. Memory is here because a quantity takes no expression."""
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


def _secret_env(variable: str, name: str, key: str) -> m.EnvVar:
    # Optional: with workload identity, or a model that is open to all, there is none.
    source = m.EnvVarSource(secret_key_ref=m.SecretKeySelector(name=name, key=key, optional=True))
    return m.EnvVar(name=variable, value_from=source)


def _cpu_quantity(cores: float) -> str:
    return f"{round(cores * 1000)}m"


def _mib(gib: float) -> int:
    return round(gib * 1024)


def _memory_quantity(gib: float | None) -> m.Quantity | None:
    return None if gib is None else m.Quantity(f"{_mib(gib)}Mi")
