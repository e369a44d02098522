"""The templates that run our commands. What a user wrote reaches them as base64, in the environment.

Argo pastes parameters into templates as text, several times over: braces in a job's text would be taken for variables.
An expression that encodes them is evaluated once and leaves nothing to paste. No parameter passes through a shell.
"""

from hera.workflows import models as m

from imagekiln.workflows.profiles.profile import Profile, Retries
from imagekiln.workflows.templates.child_workflows import SCHEDULING_PARAMETERS
from imagekiln.workflows.templates.pod import (
    MODEL_SECRETS,
    SIGNING_SECRETS,
    STORAGE_SECRETS,
    TMP,
    PodExtras,
    StepCommand,
    container_template,
)

OUTPUTS_FOLDER = f"{TMP}/imagekiln"
MODELS_FOLDER = "/models"
MAX_FAILURES_CHARS = 20_000  # signs of Argo's list of failures that reach the report
RUN_INPUT = "{{inputs.parameters.run}}"
PLAN_OUTPUTS = ("run", "pods", "pods_here", "workflows", *SCHEDULING_PARAMETERS, "images")


def step_templates(profile: Profile) -> list[m.Template]:
    """Plan, generate, aggregate and report; and fetch, where one pod fills the model cache for all."""
    made = [
        _plan_template(profile),
        _generate_template(profile),
        _aggregate_template(profile),
        _report_template(profile),
    ]
    return [*made, _fetch_template(profile)] if profile.cache and profile.cache.claim else made


def _plan_template(profile: Profile) -> m.Template:
    work = StepCommand(
        "plan",
        [
            "plan",
            "--argo",
            "--device",
            profile.gpu.device,
            *_workers_option(profile),
            "--outputs",
            OUTPUTS_FOLDER,
        ],
        "{{workflow.parameters.cpu-image}}",
        env=[
            *(
                _encoded_env(f"IMAGEKILN_{key}", parameter)
                for key, parameter in ENCODED_PARAMETERS.items()
            ),
            # Not encoded: a schedule's is itself a variable that Argo resolves later.
            m.EnvVar(name="IMAGEKILN_LOGICAL_DATE", value="{{workflow.parameters.logical-date}}"),
        ],
        outputs=m.Outputs(parameters=[_output_parameter(name) for name in PLAN_OUTPUTS]),
        secrets=MODEL_SECRETS,
    )
    return _cpu_template(work, profile)


ENCODED_PARAMETERS = {
    "JOB": "job",
    "JOB_URI": "job-uri",
    "RUN_ID": "run-id",
    "TIMEZONE": "timezone",
    "SETTINGS": "settings",
    "RETRY": "retry",
}


def _encoded_env(variable: str, parameter: str) -> m.EnvVar:
    return m.EnvVar(
        name=variable, value=f"{{{{=sprig.b64enc(workflow.parameters['{parameter}'])}}}}"
    )


def _output_parameter(name: str) -> m.Parameter:
    # The run is known to the exit handler too.
    shared = "run" if name == "run" else None
    return m.Parameter(
        name=name, value_from=m.ValueFrom(path=f"{OUTPUTS_FOLDER}/{name}"), global_name=shared
    )


def _generate_template(profile: Profile) -> m.Template:
    gpu, cache = profile.gpu, profile.cache
    offline = (
        [m.EnvVar(name="HF_HUB_OFFLINE", value="1")]
        if cache and (cache.claim or cache.image)
        else []
    )
    work = StepCommand(
        "generate",
        [
            "generate",
            "--shard",
            "{{inputs.parameters.shard}}",
            *_workers_option(profile),
            "--",
            RUN_INPUT,
        ],
        "{{workflow.parameters.gpu-image}}",
        inputs=("run", "shard"),
        env=offline,
        secrets=MODEL_SECRETS | SIGNING_SECRETS,
    )
    resources = None if gpu.claim else {gpu.resource: str(gpu.count)}
    semaphore = profile.sharing.semaphore
    key = m.ConfigMapKeySelector(name="imagekiln-gpus", key=semaphore) if semaphore else None
    lock = m.Synchronization(semaphores=[m.SemaphoreRef(config_map_key_ref=key)]) if key else None
    volume, mount = _model_cache_volume(profile, read_only=bool(offline))
    return container_template(
        work,
        profile.generate,
        profile.retries,
        PodExtras(resources, gpu.claim, volume, mount, lock),
    )


def _workers_option(profile: Profile) -> list[str]:
    # A shard on each GPU: `shard` then counts lots of as many shards as the pod has GPUs, in plan and generate alike.
    return ["--workers", str(profile.gpu.count)] if profile.gpu.count > 1 else []


def _fetch_template(profile: Profile) -> m.Template:
    """The GPU image, which knows what files a pipeline needs, on a CPU node."""
    image = "{{workflow.parameters.gpu-image}}"
    work = StepCommand(
        "fetch", ["fetch", "--", RUN_INPUT], image, inputs=("run",), secrets=MODEL_SECRETS
    )
    volume, mount = _model_cache_volume(profile, read_only=False)
    return _cpu_template(work, profile, PodExtras(volume=volume, mount=mount))


def _cpu_template(
    work: StepCommand, profile: Profile, extras: PodExtras | None = None
) -> m.Template:
    # On any node: CPU nodes may be few, and they do not break as GPUs do.
    return container_template(work, profile.steps, Retries(limit=profile.retries.limit), extras)


def _model_cache_volume(
    profile: Profile, *, read_only: bool
) -> tuple[m.Volume | None, m.VolumeMount | None]:
    cache = profile.cache
    if cache is None:
        return None, None
    volume = m.Volume(name="models")
    if cache.claim:
        volume.persistent_volume_claim = m.PersistentVolumeClaimVolumeSource(claim_name=cache.claim)
    elif cache.host_path:
        volume.host_path = m.HostPathVolumeSource(path=cache.host_path, type="Directory")
    else:
        volume.image = m.ImageVolumeSource(reference=cache.image, pull_policy="IfNotPresent")
    return volume, m.VolumeMount(
        name="models", mount_path=MODELS_FOLDER, read_only=read_only or None
    )


def _aggregate_template(profile: Profile) -> m.Template:
    # Kept as files, in a folder whose name ends in a slash: so Argo's page opens it, pictures and all.
    report = m.Artifact(
        name="report",
        path=f"{OUTPUTS_FOLDER}/report",
        optional=True,
        archive=m.ArchiveStrategy(none=m.NoneStrategy()),
        s3=m.S3Artifact(key="{{workflow.namespace}}/{{workflow.name}}/report/"),
    )
    work = StepCommand(
        "aggregate",
        ["aggregate", "--outputs", OUTPUTS_FOLDER, "--", RUN_INPUT],
        "{{workflow.parameters.cpu-image}}",
        inputs=("run",),
        outputs=m.Outputs(artifacts=[report]) if profile.report_artifact else None,
        secrets=STORAGE_SECRETS,
    )
    return _cpu_template(work, profile)


def _report_template(profile: Profile) -> m.Template:
    """The exit handler. Where plan did not get so far, the run is not known and stays Argo's variable."""
    failures = f"{{{{=sprig.b64enc(sprig.trunc({MAX_FAILURES_CHARS}, workflow.failures))}}}}"
    work = StepCommand(
        "report",
        ["outcome"],
        "{{workflow.parameters.cpu-image}}",
        env=[
            m.EnvVar(name="IMAGEKILN_WORKFLOW", value="{{workflow.namespace}}/{{workflow.name}}"),
            m.EnvVar(name="IMAGEKILN_STATUS", value="{{workflow.status}}"),
            m.EnvVar(name="IMAGEKILN_FAILURES", value=failures),
            m.EnvVar(name="IMAGEKILN_RUN", value="{{workflow.outputs.parameters.run}}"),
        ],
        secrets={"IMAGEKILN_WEBHOOK": ("imagekiln-webhook", "url")},
    )
    return _cpu_template(work, profile)
