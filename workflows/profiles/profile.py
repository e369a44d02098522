"""Settings of a profile. The defaults are those of gpu.yaml: one whole NVIDIA GPU per pod."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from imagekiln.steps.job.fields import ImageReference, ObjectName, Settings

Amount = Annotated[float, Field(gt=0)]
MIG_RESOURCE = "/mig-"  # in the resource name of MIG slices, if NVIDIA's plugin offers them
GPU_LABEL = "nvidia.com/gpu.product"  # on nodes, set by GPU feature discovery


class NodeLabel(Settings):
    """Requirement on a node label."""

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"] = "In"
    values: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_values(self) -> "NodeLabel":
        if bool(self.values) == (self.operator in ("Exists", "DoesNotExist")):
            preposition = "without" if self.values else "with"
            raise ValueError(f"{self.operator} goes {preposition} values")
        return self


class Toleration(Settings):
    """Toleration of a node taint."""

    key: str
    operator: Literal["Exists", "Equal"] = "Exists"
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class PodSettings(Settings):
    """Placement and resources of a pod: memory and disk in GiB (2^30 bytes), CPU in cores."""

    image: ImageReference
    cpu: Amount
    memory: Amount
    most_memory: Amount | None = Field(
        default=None,
        description="The memory that a pod may grow to after OOMKilled, by half each time.",
    )
    disk: Amount | None = Field(
        default=None,
        description="What /tmp may take, which the pod requests of its node's disk; null: no limit "
        "and no request.",
    )
    shared_memory: Amount | None = Field(
        default=None, description="The size of /dev/shm, which counts as memory."
    )
    node_selector: dict[str, str] = Field(default_factory=dict)
    labels: tuple[NodeLabel, ...] = Field(
        default=(), description="Labels that the node must have, all of them."
    )
    preferred: tuple[NodeLabel, ...] = Field(default=(), description="Labels that are preferred.")
    tolerations: tuple[Toleration, ...] = ()
    runtime_class: ObjectName | None = None
    priority_class: ObjectName | None = None
    annotations: dict[str, str] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    hours: Amount = Field(default=24, description="A pod that runs longer is stopped.")


class Gpu(Settings):
    """GPU request of a pod: an extended resource with a count, or a claim."""

    resource: str = "nvidia.com/gpu"
    count: int = Field(
        default=1, ge=1, le=64, description="GPUs in one pod. Each gets a worker of its own."
    )
    memory: Amount | None = Field(
        default=None,
        description="GiB of the largest GPU or slice; jobs whose weights take more are refused.",
    )
    claim: ObjectName | None = Field(
        default=None,
        description="A ResourceClaimTemplate of the namespace, for `count` GPUs, "
        "instead of the resource.",
    )
    device: Literal["cuda", "cpu"] = Field(
        default="cuda", description="cpu is for clusters that only advertise GPUs."
    )

    @model_validator(mode="after")
    def _check_single_share(self) -> "Gpu":
        # CUDA counts only whole GPUs, and selects slices by their UUIDs.
        if self.count > 1 and MIG_RESOURCE in self.resource:
            raise ValueError(
                "asks for several slices in one pod, whose workers would find one; set count: 1"
            )
        return self


class ModelCache(Settings):
    """Storage of model files: a claim that all nodes mount, a folder on the node, or an image."""

    claim: ObjectName | None = None
    host_path: str | None = Field(
        default=None,
        pattern=r"^/",
        description="A folder of each node. Pod Security must allow it.",
    )
    image: ImageReference | None = Field(
        default=None,
        description="An OCI image that is HF_HOME, with the hub's cache in /hub (Kubernetes 1.35).",
    )

    @model_validator(mode="after")
    def _check_one_source(self) -> "ModelCache":
        if [self.claim, self.host_path, self.image].count(None) != 2:
            raise ValueError("needs one of claim, host_path and image")
        return self


class Retries(Settings):
    """Retries of a pod whose failure may be transient."""

    limit: int = Field(default=5, ge=0, le=100, description="The most retries of one pod.")
    elsewhere: bool = Field(
        default=False,
        description="Never on a node where it failed. The pool needs more nodes than `limit`, "
        "or grows.",
    )


class GpuSharing(Settings):
    """Locks between batches that share GPUs."""

    semaphore: str | None = Field(
        default=None,
        description="A key of ConfigMap imagekiln-gpus, whose value limits pods at once.",
    )
    mutex: ObjectName | None = Field(
        default=None, description="Batches with this name generate one after the other."
    )
    namespace: ObjectName | None = Field(
        default=None,
        description="The namespace of the ConfigMap, or of the mutex, that teams with namespaces "
        "of their own share; by default, the workflow's.",
    )


class KueueQueue(Settings):
    """Kueue queue that admits GPU pods one by one. CPU pods do not use it."""

    name: ObjectName = Field(description="A LocalQueue of the namespace.")
    priority_class: ObjectName | None = Field(
        default=None,
        description="A WorkloadPriorityClass. Without it, the pods' PriorityClass orders the "
        "queue.",
    )


class Profile(Settings):
    """Settings of GPU pods, and of the CPU pods of the same workflow."""

    name: str = Field(
        pattern=r"^[a-z0-9]([-a-z0-9]{0,36}[a-z0-9])?$",
        description="At most 38 lower-case letters, digits and hyphens, no hyphen first or last. "
        "If absent, the file's name without its suffix.",
    )
    description: str
    gpu: Gpu = Gpu()
    generate: PodSettings
    steps: PodSettings
    cache: ModelCache | None = None
    retries: Retries = Retries()
    sharing: GpuSharing = GpuSharing()
    queue: KueueQueue | None = None
    parallelism: int = Field(
        default=16, ge=1, description="The most pods at once, where the submission sets no limit."
    )
    days: Amount = Field(default=7, description="A workflow that runs longer is stopped.")
    report_artifact: bool = Field(
        default=True, description="Show the report in the Argo UI, from an S3 artifact repository."
    )
    archive_logs: bool = Field(
        default=False,
        description="Keep the logs of all pods in the artifact repository. Argo fails a pod whose "
        "log it cannot store, so that a store out of reach then fails the workflow. Without it, "
        "the logs of pods that succeeded are gone with the pod.",
    )
    metrics_port: int | None = Field(
        default=9464,
        ge=1024,
        le=65535,
        description="Where pods that generate serve their metrics; null: nowhere.",
    )
    disruption_budget: bool = Field(
        default=False,
        description="Keep nodes from being drained while a workflow has pods on them, for up to "
        "`days`. Without it, a drained shard is resumed elsewhere and loses one part at most.",
    )

    @property
    def gpu_name(self) -> str | None:
        """The GPU named by the node label; None if several or none are named."""
        for label in self.generate.labels:
            if label.key == GPU_LABEL and len(label.values) == 1:
                return label.values[0]
        return self.generate.node_selector.get(GPU_LABEL)

    @property
    def names_gpus(self) -> bool:
        """Return whether nodes are selected by GPU, of one model or several."""
        pods = self.generate
        if GPU_LABEL in pods.node_selector:
            return True
        keys = [label.key for label in pods.labels]
        return GPU_LABEL in keys


class ProfileFile(Profile):
    """Contents of a profile file."""

    like: str | None = Field(
        default=None, description="The profile that has all settings which are not in this one."
    )
