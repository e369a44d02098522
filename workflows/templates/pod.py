"""Templates of one container: an imagekiln command, placed on nodes by the profile.

Settings shared by all steps are in the workflow's template defaults, and settings that every pod
needs for admission are in its patch (`security`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hera.workflows import (
    Artifact,
    Container,
    EmptyDirVolume,
    Env,
    Parameter,
    RetryStrategy,
    SecretEnv,
)
from hera.workflows import models as m

from imagekiln.steps.runtime.machine import ATTEMPT_VARIABLE, LOG_VARIABLE
from imagekiln.workflows.profiles.profile import (
    KueueQueue,
    NodeLabel,
    PodSettings,
    Profile,
    Retries,
)
from imagekiln.workflows.templates.metrics import Metric
from imagekiln.workflows.templates.pod_retries import memory_expression, retry_strategy
from imagekiln.workflows.templates.security import step_pod_patch
from imagekiln.workflows.templates.yaml import Unquoted, to_yaml

# Outputs of plan for the labels and metrics of the pods that generate.
LABELS = ("job_name", "run_id")
TMP = "/tmp"  # noqa: S108  # an emptyDir per pod, since the root is read-only
COMPILED_CODE_FOLDER = "imagekiln"  # in the folder of models
# The workflow parameters that replace the images of a run.
CPU_IMAGE_PARAMETER = "cpu-image"
GPU_IMAGE_PARAMETER = "gpu-image"
IMAGE_LINE = "OVERRIDE"  # stands for the line of a patch that Argo fills in
POD_OVERHEAD_GIB = 1  # of a node's disk, besides /tmp: the pod's log, and Argo's program
# A pod that sends a message or copies a report needs 180 MiB, and some for the report. Units are
# cores and GiB. `most_memory` is the limit after OOMKilled.
FINISH_RESOURCES = {"cpu": 0.1, "memory": 0.5, "most_memory": 2}
FINISH_DISK = 1
DEFAULTS_CONFIG_MAP = "imagekiln-defaults"
# Environment of each step, unless the profile or its model cache sets the variable.
COMMON_VARIABLES = {"HOME": TMP, "HF_HOME": f"{TMP}/models", LOG_VARIABLE: "json"}
# The Secret and its key, by variable.
STORAGE_SECRETS = {
    "AWS_ACCESS_KEY_ID": ("s3-credentials", "accesskey"),
    "AWS_SECRET_ACCESS_KEY": ("s3-credentials", "secretkey"),
}
MODEL_SECRETS = STORAGE_SECRETS | {"HF_TOKEN": ("huggingface", "token")}
WEBHOOK_SECRETS = {
    "IMAGEKILN_WEBHOOK": ("imagekiln-webhook", "url"),
    "IMAGEKILN_WEBHOOK_WHEN": ("imagekiln-webhook", "when"),
    "IMAGEKILN_WEBHOOK_BODY": ("imagekiln-webhook", "body"),
    "IMAGEKILN_WEBHOOK_AUTHORIZATION": ("imagekiln-webhook", "authorization"),
}
SIGNING_SECRETS = {
    "IMAGEKILN_C2PA_CERTIFICATE": ("imagekiln-c2pa", "certificate"),
    "IMAGEKILN_C2PA_KEY": ("imagekiln-c2pa", "key"),
}


def declare_inputs(*names: str) -> list[Parameter]:
    """Declare the inputs of a template."""
    return [Parameter(name=name) for name in names]


def forward_inputs(*names: str) -> list[Parameter]:
    """Pass a template's inputs as arguments to one of its tasks."""
    return [Parameter(name=name, value=f"{{{{inputs.parameters.{name}}}}}") for name in names]


@dataclass(frozen=True, slots=True)
class StepCommand:
    """An imagekiln command for a pod, with its inputs and outputs."""

    name: str
    arguments: Sequence[str]
    image: str
    image_parameter: str = CPU_IMAGE_PARAMETER
    inputs: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    outputs: Sequence[Parameter | Artifact] = ()
    labels: dict[str, str] = field(default_factory=dict)
    metrics: Sequence[Metric] | None = None
    synchronization: m.Synchronization | None = None
    timeout: str | None = None
    is_retried: bool = True


@dataclass(frozen=True, slots=True)
class ModelVolume:
    """Folder of model files that outlives the pod, and its mounts, the whole folder first."""

    volume: m.Volume
    mounts: Sequence[m.VolumeMount]


def template_defaults(profile: Profile) -> m.Template:
    """Return the defaults of all steps' templates. A template's own values are merged over them.

    Lists are merged by the name of their items. Variables of a template may not be included, since
    Argo mixes up the fields of neighbors if both lists have the same name (docs/decisions.md). DAGs
    get the defaults too, but do not use them. A setting that would change a DAG, such as a retry
    strategy, does not belong here.
    """
    pod = profile.steps
    replaced = _replaced_variables(profile)
    shared = {name: value for name, value in COMMON_VARIABLES.items() if name not in replaced}
    # Hera's Container requires an image, and each step sets its own.
    container = m.Container.model_validate(
        {
            "imagePullPolicy": "IfNotPresent",
            "command": ["imagekiln"],
            "env": _plain_env(shared),
            "envFrom": [{"configMapRef": {"name": DEFAULTS_CONFIG_MAP, "optional": True}}],
            "resources": {"requests": _cpu_request(pod)},
            "volumeMounts": [{"name": "tmp", "mountPath": TMP}],
        }
    )
    return m.Template(
        active_deadline_seconds=m.IntOrString(_deadline(pod)),
        container=container,
        volumes=[m.Volume(name="tmp", empty_dir=m.EmptyDirVolumeSource())],
        pod_spec_patch=_pod_patch(pod, CPU_IMAGE_PARAMETER),
    )


def cpu_container(
    step: StepCommand, profile: Profile, models: ModelVolume | None = None
) -> Container:
    """Build the template of a pod that runs `step` on a CPU node."""
    # Retried on any node: there may be few CPU nodes, and they fail less often than GPUs.
    retries = Retries(limit=profile.retries.limit)
    environment = _environment(step, profile, profile.steps, models)
    container = _container(step, profile.steps, environment, retries, models)
    if step.image_parameter != CPU_IMAGE_PARAMETER:
        container.pod_spec_patch = _pod_patch(profile.steps, step.image_parameter)
    return container


def finish_container(step: StepCommand, profile: Profile) -> Container:
    """Build the template of a pod of the exit handler: `cpu_container` with minimal resources.

    The workflow may have failed or been stopped because no node meets the requests of planning.
    """
    # Nodes may not account for their disks: then no pod of the profile has a limit of it.
    disk = None if profile.steps.disk is None else FINISH_DISK
    small = profile.steps.model_copy(update={**FINISH_RESOURCES, "disk": disk})
    container = cpu_container(step, profile.model_copy(update={"steps": small}))
    container.resources = m.ResourceRequirements(requests=_cpu_request(small))
    container.pod_spec_patch = _pod_patch(small, CPU_IMAGE_PARAMETER)
    return container


def gpu_container(
    step: StepCommand, profile: Profile, models: ModelVolume | None = None
) -> Container:
    """Build the template of a pod that runs `step` on the profile's GPU."""
    pod = profile.generate
    step = replace(step, labels=_queue_labels(profile.queue) | step.labels)
    environment = [_node_env(), *_environment(step, profile, pod, models)]
    container = _container(step, pod, environment, profile.retries, models)
    container.resources = _gpu_resources(profile)
    container.pod_spec_patch = _pod_patch(pod, step.image_parameter, profile.gpu.claim)
    container.affinity = node_affinity(pod)
    if container.affinity is None and node_affinity(profile.steps) is not None:
        container.affinity = m.Affinity()  # empty, to override the workflow's for CPU nodes
    if pod.hours != profile.steps.hours:
        container.active_deadline_seconds = _deadline(pod)
    return container


def node_affinity(pod: PodSettings) -> m.Affinity | None:
    """Return the required and the preferred node labels as an affinity."""
    if not pod.labels and not pod.preferred:
        return None
    affinity: dict[str, object] = {}
    if pod.labels:
        term = {"matchExpressions": [_match(label) for label in pod.labels]}
        affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [term]}
    if pod.preferred:
        affinity["preferredDuringSchedulingIgnoredDuringExecution"] = [
            {"weight": 100, "preference": {"matchExpressions": [_match(label)]}}
            for label in pod.preferred
        ]
    return m.Affinity.model_validate({"nodeAffinity": affinity})


def pod_tolerations(pod: PodSettings) -> list[m.Toleration] | None:
    """Return the taints that the pod tolerates."""
    return [m.Toleration(**taint.model_dump()) for taint in pod.tolerations] or None


def _match(label: NodeLabel) -> dict[str, object]:
    return label.model_dump() | {"values": [*label.values] or None}


def _container(
    step: StepCommand,
    pod: PodSettings,
    environment: Sequence[m.EnvVar | SecretEnv],
    retries: Retries,
    models: ModelVolume | None,
) -> Container:
    return Container(
        name=step.name,
        labels={"imagekiln.dev/step": step.name, **step.labels},
        annotations=pod.annotations or None,
        inputs=declare_inputs(*step.inputs),
        outputs=list(step.outputs),
        image=step.image,
        args=list(step.arguments),
        env=list(environment),
        volumes=_volumes(pod, models),
        volume_mounts=list(models.mounts) if models else None,
        node_selector=pod.node_selector or None,
        tolerations=pod_tolerations(pod),
        priority_class_name=pod.priority_class,
        # Required: the patch that sets memory refers to the number of retries.
        retry_strategy=retry_strategy(retries) if step.is_retried else RetryStrategy(limit=0),
        synchronization=step.synchronization,
        metrics=None if step.metrics is None else [*step.metrics],
        timeout=step.timeout,
    )


def _queue_labels(queue: KueueQueue | None) -> dict[str, str]:
    """Return the labels that Kueue reads. Its webhook adds the scheduling gate and a label."""
    if queue is None:
        return {}
    labels = {"kueue.x-k8s.io/queue-name": queue.name}
    if queue.priority_class is not None:
        labels["kueue.x-k8s.io/priority-class"] = queue.priority_class
    return labels


def _environment(
    step: StepCommand, profile: Profile, pod: PodSettings, models: ModelVolume | None
) -> list[m.EnvVar | SecretEnv]:
    replaced = _replaced_variables(profile)
    common = {name: value for name, value in COMMON_VARIABLES.items() if name in replaced}
    folders = _model_folders(models) if models else {}
    own = {**step.env, ATTEMPT_VARIABLE: "{{retries}}"}
    # Last, since Kubernetes expands a variable in later ones, even if $(NAME) is user input.
    secrets = [_secret_env(variable, *place) for variable, place in step.secrets.items()]
    return [*_plain_env(common | folders | pod.env), *_plain_env(own), *secrets]


def _replaced_variables(profile: Profile) -> set[str]:
    """Return the variables for which some step has its own value."""
    replaced = {*profile.steps.env, *profile.generate.env}
    return replaced if profile.cache is None else {*replaced, "HF_HOME"}


def _model_folders(models: ModelVolume) -> dict[str, str]:
    """Return variables for the folders of model files and of compiled code."""
    path = models.mounts[0].mount_path
    return {"HF_HOME": path, "TORCHINDUCTOR_CACHE_DIR": f"{path}/{COMPILED_CODE_FOLDER}"}


def _plain_env(values: Mapping[str, str]) -> list[m.EnvVar]:
    return [Env(name=variable, value=value).build() for variable, value in values.items()]


def _secret_env(variable: str, secret: str, key: str) -> SecretEnv:
    # Optional, since workload identity or a public model needs no key.
    return SecretEnv(name=variable, secret_name=secret, secret_key=key, optional=True)


def _node_env() -> m.EnvVar:
    """Return the node's name as a variable, for the message of a pod whose GPU failed."""
    field = m.ObjectFieldSelector(field_path="spec.nodeName")
    return m.EnvVar(name="IMAGEKILN_NODE", value_from=m.EnvVarSource(field_ref=field))


def _gpu_resources(profile: Profile) -> m.ResourceRequirements:
    # Kubernetes derives requests from limits. Hera's `gpus` would write both.
    gpu = profile.gpu
    limits = None if gpu.claim else {gpu.resource: m.Quantity(str(gpu.count))}
    return m.ResourceRequirements(requests=_cpu_request(profile.generate), limits=limits)


def _volumes(pod: PodSettings, models: ModelVolume | None) -> list[EmptyDirVolume | m.Volume]:
    volumes: list[EmptyDirVolume | m.Volume] = []
    if pod.disk is not None:
        source = m.EmptyDirVolumeSource(size_limit=_quantity(pod.disk))
        volumes.append(m.Volume(name="tmp", empty_dir=source))
    if pod.shared_memory is not None:
        memory = EmptyDirVolume(
            name="shared-memory",
            mount_path="/dev/shm",  # noqa: S108  # as TMP
            medium="Memory",
            size_limit=_quantity(pod.shared_memory),
        )
        volumes.append(memory)
    return [*volumes, models.volume] if models else volumes


def _pod_patch(pod: PodSettings, image_parameter: str, claim: str | None = None) -> str:
    """Build a patch of fields that templates lack, and of memory, which takes no expression."""
    maximum = _mib(pod.most_memory) if pod.most_memory else None
    # Kubernetes derives requests from limits.
    limits = {"memory": memory_expression(_mib(pod.memory), maximum)}
    if pod.disk is not None:
        limits["ephemeral-storage"] = f"{_mib(pod.disk + POD_OVERHEAD_GIB)}Mi"
    resources: dict[str, object] = {"limits": limits}
    if claim:
        resources["claims"] = [{"name": "gpu"}]

    patch = step_pod_patch({"image": Unquoted(IMAGE_LINE), "resources": resources})
    if pod.runtime_class:
        patch["runtimeClassName"] = pod.runtime_class
    if claim:
        patch["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": claim}]
    return to_yaml(patch).replace(f"image: {IMAGE_LINE}", _image_line(image_parameter))


def _image_line(parameter: str) -> str:
    """Return an expression for a patch line that sets the run's own image, if it has one.

    The template's `image` is then a plain name, which kustomize and policies can find.
    """
    value = f'workflow.parameters["{parameter}"]'
    return f'{{{{={value} == "" ? "" : "image: " + toJson({value})}}}}'


def _deadline(pod: PodSettings) -> int:
    return round(pod.hours * 3600)


def _cpu_request(pod: PodSettings) -> dict[str, m.Quantity]:
    return {"cpu": m.Quantity(f"{round(pod.cpu * 1000)}m")}


def _mib(gib: float) -> int:
    return round(gib * 1024)


def _quantity(gib: float) -> m.Quantity:
    return m.Quantity(f"{_mib(gib)}Mi")
