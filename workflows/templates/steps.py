"""The templates that run our commands. A user's texts reach them as base64 in the environment.

Argo pastes parameters into templates as text, several times over: braces in a job's text would be
taken for variables. An expression that encodes them is evaluated once and leaves nothing to paste.
No parameter passes through a shell.
"""

from hera.workflows import Container, NoneArchiveStrategy, Parameter, S3Artifact
from hera.workflows import models as m

from imagekiln.workflows.profiles.profile import ModelCache, Profile
from imagekiln.workflows.templates.child_workflows import SCHEDULING_PARAMETERS
from imagekiln.workflows.templates.pod import (
    COMPILED_CODE_FOLDER,
    GPU_IMAGE_PARAMETER,
    MODEL_SECRETS,
    SIGNING_SECRETS,
    STORAGE_SECRETS,
    TMP,
    WEBHOOK_SECRETS,
    ModelVolume,
    StepCommand,
    cpu_container,
    gpu_container,
)

OUTPUTS_FOLDER = f"{TMP}/imagekiln"
MODELS_FOLDER = "/models"
REPORT_TIMEOUT = "15m"
MAX_FAILURES_CHARS = 20_000  # characters of Argo's list of failures that reach the report
RUN_INPUT = "{{inputs.parameters.run}}"
PLAN_OUTPUTS = (
    "run",
    "pods",
    "canary",
    "pods_here",
    "workflows",
    *SCHEDULING_PARAMETERS,
    "images",
)
# The whole workflow's too: for the exit handler, and for a workflow that this one is a batch of.
WORKFLOW_OUTPUTS = ("run", "images", "ok")
# By variable: the workflow's parameter, which reaches the pod as base64.
ENCODED_PARAMETERS = {
    "IMAGEKILN_JOB": "job",
    "IMAGEKILN_JOB_URI": "job-uri",
    "IMAGEKILN_RUN_ID": "run-id",
    "IMAGEKILN_TIMEZONE": "timezone",
    "IMAGEKILN_SETTINGS": "settings",
    "IMAGEKILN_RETRY": "retry",
}


def plan_step(profile: Profile) -> Container:
    """Read the job, plan the run, and hand out how many pods it takes."""
    arguments = ["plan", "--argo", "--device", profile.gpu.device, *_workers_option(profile)]
    environment = {
        variable: f"{{{{=sprig.b64enc(workflow.parameters['{parameter}'])}}}}"
        for variable, parameter in ENCODED_PARAMETERS.items()
    }
    # Not encoded: a schedule's is itself a variable that Argo resolves later.
    environment["IMAGEKILN_LOGICAL_DATE"] = "{{workflow.parameters.logical-date}}"

    step = StepCommand(
        "plan",
        [*arguments, "--outputs", OUTPUTS_FOLDER],
        profile.steps.image,
        env=environment,
        outputs=[_output_parameter(name) for name in PLAN_OUTPUTS],
        secrets=MODEL_SECRETS,
    )
    return cpu_container(step, profile)


def fetch_step(profile: Profile) -> Container:
    """Fill the model cache: the GPU image, which knows a pipeline's files, on a CPU node."""
    step = StepCommand(
        "fetch",
        ["fetch", "--", RUN_INPUT],
        profile.generate.image,
        GPU_IMAGE_PARAMETER,
        inputs=("run",),
        secrets=MODEL_SECRETS,
    )
    return cpu_container(step, profile, _model_volume(profile.cache, read_only=False))


def generate_step(profile: Profile) -> Container:
    """Draw a shard on the profile's GPU."""
    cache = profile.cache
    offline = cache is not None and cache.host_path is None
    shard = ["--shard", "{{inputs.parameters.shard}}", "--judge", "{{inputs.parameters.judge}}"]
    arguments = ["generate", *shard, *_workers_option(profile)]
    step = StepCommand(
        "generate",
        [*arguments, "--", RUN_INPUT],
        profile.generate.image,
        GPU_IMAGE_PARAMETER,
        inputs=("run", "shard", "judge"),
        env={"HF_HUB_OFFLINE": "1"} if offline else {},
        secrets=MODEL_SECRETS | SIGNING_SECRETS,
        synchronization=_semaphore(profile.sharing.semaphore),
    )
    return gpu_container(step, profile, _model_volume(cache, read_only=offline))


def aggregate_step(profile: Profile) -> Container:
    """Account for every planned image, and show the report in Argo's page."""
    # Kept as files, under a key that ends in a slash: so Argo's page opens it, pictures and all.
    report = S3Artifact(
        name="report",
        path=f"{OUTPUTS_FOLDER}/report",
        optional=True,
        archive=NoneArchiveStrategy(),
        key="{{workflow.namespace}}/{{workflow.name}}/report/",
    )
    step = StepCommand(
        "aggregate",
        ["aggregate", "--outputs", OUTPUTS_FOLDER, "--", RUN_INPUT],
        profile.steps.image,
        inputs=("run",),
        outputs=[_output_parameter("ok"), *([report] if profile.report_artifact else [])],
        secrets=STORAGE_SECRETS,
    )
    return cpu_container(step, profile)


def report_step(profile: Profile) -> Container:
    """Report how the workflow ended. Where planning failed, the run stays Argo's variable."""
    failures = f"sprig.trunc({MAX_FAILURES_CHARS}, workflow.failures)"
    step = StepCommand(
        "report",
        ["outcome"],
        profile.steps.image,
        env={
            "IMAGEKILN_WORKFLOW": "{{workflow.namespace}}/{{workflow.name}}",
            "IMAGEKILN_STATUS": "{{workflow.status}}",
            "IMAGEKILN_FAILURES": f"{{{{=sprig.b64enc({failures})}}}}",
            "IMAGEKILN_RUN": "{{workflow.outputs.parameters.run}}",
        },
        secrets=WEBHOOK_SECRETS,
    )
    container = cpu_container(step, profile)
    container.timeout = REPORT_TIMEOUT  # also of a pod that finds no node
    return container


def _output_parameter(name: str) -> Parameter:
    global_name = name if name in WORKFLOW_OUTPUTS else None
    source = m.ValueFrom(path=f"{OUTPUTS_FOLDER}/{name}")
    return Parameter(name=name, value_from=source, global_name=global_name)


def _workers_option(profile: Profile) -> list[str]:
    # A shard on each GPU: `--shard` then counts groups of as many shards as the pod has GPUs, in
    # plan and generate alike.
    return ["--workers", str(profile.gpu.count)] if profile.gpu.count > 1 else []


def _semaphore(key: str | None) -> m.Synchronization | None:
    if key is None:
        return None
    source = m.ConfigMapKeySelector(name="imagekiln-gpus", key=key)
    return m.Synchronization(semaphores=[m.SemaphoreRef(config_map_key_ref=source)])


def _model_volume(cache: ModelCache | None, *, read_only: bool) -> ModelVolume | None:
    if cache is None:
        return None
    # Hera's volumes know no image, and would make a claim itself read-only, not only its mount.
    volume = m.Volume(name="models")
    if cache.claim:
        volume.persistent_volume_claim = m.PersistentVolumeClaimVolumeSource(claim_name=cache.claim)
    elif cache.host_path:
        volume.host_path = m.HostPathVolumeSource(path=cache.host_path, type="Directory")
    else:
        volume.image = m.ImageVolumeSource(reference=cache.image, pull_policy="IfNotPresent")
    mount = m.VolumeMount(name="models", mount_path=MODELS_FOLDER, read_only=read_only or None)
    mounts = [mount]
    if cache.claim and read_only:
        # Compiled code is the one thing that GPU pods write there; model files stay read-only.
        mounts.append(
            m.VolumeMount(
                name="models",
                mount_path=f"{MODELS_FOLDER}/{COMPILED_CODE_FOLDER}",
                sub_path=COMPILED_CODE_FOLDER,
            )
        )
    return ModelVolume(volume, mounts)
