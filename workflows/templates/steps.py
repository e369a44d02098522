"""Templates that run imagekiln's commands. User input reaches them as base64 in the environment.

Argo substitutes parameters in templates as strings, repeatedly, so braces in a job would be taken
for variables. An expression that encodes them is evaluated once, and its result has no braces. No
parameter passes through a shell.
"""

from collections.abc import Mapping, Sequence

from hera.workflows import Container, NoneArchiveStrategy, Parameter, S3Artifact
from hera.workflows import models as m

from imagekiln.workflows.profiles.profile import ModelCache, Profile
from imagekiln.workflows.templates.dag import SCHEDULING_PARAMETERS, gpu_synchronization
from imagekiln.workflows.templates.metrics import (
    UNKNOWN_JOB,
    outcome_metrics,
    plan_metrics,
    run_outputs,
    shard_metrics,
)
from imagekiln.workflows.templates.pod import (
    COMPILED_CODE_FOLDER,
    GPU_IMAGE_PARAMETER,
    LABELS,
    MODEL_SECRETS,
    SIGNING_SECRETS,
    STORAGE_SECRETS,
    TMP,
    WEBHOOK_SECRETS,
    ModelVolume,
    StepCommand,
    cpu_container,
    finish_container,
    gpu_container,
)

OUTPUTS_FOLDER = f"{TMP}/imagekiln"
MODELS_FOLDER = "/models"
REPORT_TIMEOUT = "15m"
# A store accepts a report in seconds. Argo would retry an unresponsive one for five minutes.
PUBLISH_TIMEOUT = "2m"
MAX_FAILURES_CHARS = 20_000  # of Argo's list of failures, in the report
# On the pods that generate, besides Argo's labels.
POD_LABELS = {
    "imagekiln.dev/job": "{{inputs.parameters.job_name}}",
    "imagekiln.dev/run": "{{inputs.parameters.run_id}}",
    "imagekiln.dev/shard": "{{inputs.parameters.shard}}",
}
RUN_INPUT = "{{inputs.parameters.run}}"
ENDED_RUN = "{{workflow.outputs.parameters.run}}"  # in the exit handler; unresolved without a run
PLAN_OUTPUTS = (
    "run",
    "pods",
    "canary",
    "pods_here",
    "workflows",
    *SCHEDULING_PARAMETERS,
    *LABELS,
    "images",
    "exports",
)
# Outputs of the whole workflow, for the exit handler, and for workflows with this batch as a task.
WORKFLOW_OUTPUTS = ("run", "images", "ok")
# Also for the exit handler.
GLOBAL_OUTPUTS = (*WORKFLOW_OUTPUTS, "job_name", "figures")
# Defaults for a step that fails before it writes them, since its metrics need values.
DEFAULT_OUTPUTS = {"images": "0", "job_name": UNKNOWN_JOB, "figures": "{}"}
REPORT_NODE = "onExit.publish-report"  # node with the report: its name after the workflow's
# Workflow parameters by variable, which reach the pod as base64.
ENCODED_PARAMETERS = {
    "IMAGEKILN_JOB": "job",
    "IMAGEKILN_JOB_URI": "job-uri",
    "IMAGEKILN_RUN_ID": "run-id",
    "IMAGEKILN_TIMEZONE": "timezone",
    "IMAGEKILN_SETTINGS": "settings",
    "IMAGEKILN_RETRY": "retry",
}


def rewrite_step(profile: Profile) -> Container:
    """Build the step that rewrites the prompts, on one GPU of the profile."""
    cache = profile.cache
    offline = _is_offline(cache)
    step = StepCommand(
        "rewrite",
        ["rewrite", "--argo", "--device", profile.gpu.device],
        profile.generate.image,
        GPU_IMAGE_PARAMETER,
        env=_job_environment() | _offline_environment(cache),
        secrets=MODEL_SECRETS,
        synchronization=gpu_synchronization(profile.sharing, mutex=True, semaphore=True),
    )
    one_gpu = profile.model_copy(update={"gpu": profile.gpu.model_copy(update={"count": 1})})
    return gpu_container(step, one_gpu, _model_volume(cache, read_only=offline))


def plan_step(profile: Profile) -> Container:
    """Build the step that reads the job, plans the run, and outputs the number of pods."""
    arguments = ["plan", "--argo", "--device", profile.gpu.device, *_workers_option(profile)]
    if profile.gpu.memory is not None:
        arguments += ["--gpu-memory", f"{profile.gpu.memory:g}"]
    step = StepCommand(
        "plan",
        [*arguments, "--outputs", OUTPUTS_FOLDER],
        profile.steps.image,
        env=_job_environment(),
        outputs=[_output_parameter(name) for name in PLAN_OUTPUTS],
        secrets=MODEL_SECRETS,
        metrics=plan_metrics(),
    )
    return cpu_container(step, profile)


def fetch_language_model_step(profile: Profile) -> Container:
    """Build the step that fills the model cache for `rewrite`, as `fetch` does for `generate`."""
    return _fetch_step(
        profile,
        "fetch-language-model",
        ["rewrite", "--argo", "--fetch"],
        env=_job_environment(),
    )


def fetch_step(profile: Profile) -> Container:
    """Build the step that fills the model cache, with the GPU image on a CPU node."""
    return _fetch_step(profile, "fetch", ["fetch", "--", RUN_INPUT], inputs=("run",))


def _fetch_step(
    profile: Profile,
    name: str,
    arguments: Sequence[str],
    inputs: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Container:
    step = StepCommand(
        name,
        arguments,
        profile.generate.image,
        GPU_IMAGE_PARAMETER,
        inputs=inputs,
        env=env or {},
        secrets=MODEL_SECRETS,
    )
    return cpu_container(step, profile, _model_volume(profile.cache, read_only=False))


def generate_step(profile: Profile) -> Container:
    """Build the step that generates a shard on the profile's GPU."""
    cache = profile.cache
    offline = _is_offline(cache)
    shard = ["--shard", "{{inputs.parameters.shard}}", "--judge", "{{inputs.parameters.judge}}"]
    arguments = ["generate", *shard, *_workers_option(profile)]
    step = StepCommand(
        "generate",
        [*arguments, "--", RUN_INPUT],
        profile.generate.image,
        GPU_IMAGE_PARAMETER,
        inputs=("run", "shard", "judge", *LABELS),
        env=_offline_environment(cache) | _metrics_environment(profile),
        secrets=MODEL_SECRETS | SIGNING_SECRETS,
        labels=POD_LABELS,
        metrics=shard_metrics(),
        synchronization=gpu_synchronization(profile.sharing, semaphore=True),
    )
    container = gpu_container(step, profile, _model_volume(cache, read_only=offline))
    if profile.metrics_port:
        container.ports = [m.ContainerPort(name="metrics", container_port=profile.metrics_port)]
    return container


def aggregate_step(profile: Profile) -> Container:
    """Build the step that accounts for every planned image."""
    step = StepCommand(
        "aggregate",
        ["aggregate", "--outputs", OUTPUTS_FOLDER, "--", RUN_INPUT],
        profile.steps.image,
        inputs=("run",),
        # Argo stops at the first missing output without a default. An incomplete run has no `ok`.
        outputs=[_output_parameter("figures"), _output_parameter("ok")],
        secrets=STORAGE_SECRETS,
    )
    return cpu_container(step, profile)


def export_step(profile: Profile) -> Container:
    """Build the step that copies the finished run to each destination of the job's `export`."""
    step = StepCommand(
        "export",
        ["copy", "--argo", f"--run={RUN_INPUT}"],
        profile.steps.image,
        inputs=("run",),
        env=_job_environment(),
        secrets=STORAGE_SECRETS,
    )
    return cpu_container(step, profile)


def publish_step(profile: Profile) -> Container:
    """Build the step that shows the report in Argo's page. The dataset contains it in any case.

    Argo fails a pod whose artifact it cannot store. This step is therefore separate, in the exit
    handler, where a failure has no effect.
    """
    # Stored as files, under a key that ends in a slash, so that Argo's page opens it with pictures.
    report = S3Artifact(
        name="report",
        path=f"{OUTPUTS_FOLDER}/report",
        optional=True,
        archive=NoneArchiveStrategy(),
        key="{{workflow.namespace}}/{{workflow.name}}/report/",
    )
    step = StepCommand(
        "publish-report",
        ["publish", "--outputs", OUTPUTS_FOLDER],
        profile.steps.image,
        env={"IMAGEKILN_RUN": ENDED_RUN},
        outputs=[report],
        secrets=STORAGE_SECRETS,
        timeout=PUBLISH_TIMEOUT,
        is_retried=False,
    )
    return finish_container(step, profile)


def report_step(profile: Profile) -> Container:
    """Build the step that reports the end. If planning failed, the run stays Argo's variable."""
    failures = f"sprig.trunc({MAX_FAILURES_CHARS}, workflow.failures)"
    # Names and numbers only. The user's URI and messages are in the environment.
    options = {
        "workflow": "{{workflow.namespace}}/{{workflow.name}}",
        "status": "{{workflow.status}}",
        "labels": "{{workflow.labels.json}}",
        "created-at": "{{workflow.creationTimestamp.s}}",
        "job": "{{workflow.outputs.parameters.job_name}}",
        "images": "{{workflow.outputs.parameters.images}}",
        "figures": "{{workflow.outputs.parameters.figures}}",
    }
    if profile.report_artifact:
        options["report-node"] = REPORT_NODE
    arguments = [f"--{name}={value}" for name, value in options.items()]
    step = StepCommand(
        "report",
        ["outcome", "--outputs", OUTPUTS_FOLDER, *arguments],
        profile.steps.image,
        env={
            "IMAGEKILN_FAILURES": f"{{{{=sprig.b64enc({failures})}}}}",
            "IMAGEKILN_RUN": ENDED_RUN,
        },
        outputs=[_local_parameter(name) for name in run_outputs()],
        secrets=WEBHOOK_SECRETS,
        metrics=outcome_metrics(),
        timeout=REPORT_TIMEOUT,  # also for a pod that finds no node
    )
    return finish_container(step, profile)


def _job_environment() -> dict[str, str]:
    """Return the variables from which a pod reads the job before it is planned."""
    environment = {
        variable: f"{{{{=sprig.b64enc(workflow.parameters['{parameter}'])}}}}"
        for variable, parameter in ENCODED_PARAMETERS.items()
    }
    # Not encoded: in a schedule, the value is a variable that Argo resolves later.
    environment["IMAGEKILN_LOGICAL_DATE"] = "{{workflow.parameters.logical-date}}"
    return environment


def _metrics_environment(profile: Profile) -> dict[str, str]:
    """Return the variables of the pod's metrics: their port, and the profile."""
    if profile.metrics_port is None:
        return {}
    return {
        "IMAGEKILN_METRICS_PORT": str(profile.metrics_port),
        "IMAGEKILN_PROFILE": profile.name,
    }


def _output_parameter(name: str) -> Parameter:
    parameter = _local_parameter(name, DEFAULT_OUTPUTS.get(name))
    parameter.global_name = name if name in GLOBAL_OUTPUTS else None
    return parameter


def _local_parameter(name: str, default: str | None = None) -> Parameter:
    source = m.ValueFrom(path=f"{OUTPUTS_FOLDER}/{name}", default=default)
    return Parameter(name=name, value_from=source)


def _workers_option(profile: Profile) -> list[str]:
    # A shard per GPU: in plan and generate, `--shard` then counts groups of as many shards as the
    # pod has GPUs.
    return ["--workers", str(profile.gpu.count)] if profile.gpu.count > 1 else []


def _is_offline(cache: ModelCache | None) -> bool:
    """Return whether GPU pods read all model files from the cache, and never contact the hub."""
    return cache is not None and cache.host_path is None


def _offline_environment(cache: ModelCache | None) -> dict[str, str]:
    return {"HF_HUB_OFFLINE": "1"} if _is_offline(cache) else {}


def _model_volume(cache: ModelCache | None, *, read_only: bool) -> ModelVolume | None:
    if cache is None:
        return None
    # Hera's volumes do not support images, and would make a claim itself read-only, not its mount.
    source: dict[str, object] = {"image": {"reference": cache.image, "pullPolicy": "IfNotPresent"}}
    if cache.claim:
        source = {"persistentVolumeClaim": {"claimName": cache.claim}}
    elif cache.host_path:
        source = {"hostPath": {"path": cache.host_path, "type": "Directory"}}
    volume = m.Volume.model_validate({"name": "models", **source})
    mount = m.VolumeMount(name="models", mount_path=MODELS_FOLDER, read_only=read_only or None)
    mounts = [mount]
    if cache.claim and read_only:
        # GPU pods write only compiled code there; model files stay read-only.
        mounts.append(
            m.VolumeMount(
                name="models",
                mount_path=f"{MODELS_FOLDER}/{COMPILED_CODE_FOLDER}",
                sub_path=COMPILED_CODE_FOLDER,
            )
        )
    return ModelVolume(volume, mounts)
