"""The templates that run our commands. What a user wrote reaches them as base64, in the environment.

Argo pastes parameters into templates as text, several times over: braces in a job's text would be taken for variables.
An expression that encodes them is evaluated once and leaves nothing to paste. No parameter passes through a shell.
"""

from hera.workflows import models as m

from imagekiln.workflows import further, pods
from imagekiln.workflows.pods import Extras, Work
from imagekiln.workflows.profile import Profile, Retries

OUT = f"{pods.TMP}/imagekiln"
MODELS = "/models"
MOST_FAILURES = 20_000  # signs of Argo's list of failures that reach the report
RUN = "{{inputs.parameters.run}}"
PLAN_GIVES = ("run", "pods", "pods_here", "workflows", *further.ASKED, "images")


def templates(profile: Profile) -> list[m.Template]:
    """Plan, generate, aggregate and report; and fetch, where one pod fills the model cache for all."""
    made = [_plan(profile), _generate(profile), _aggregate(profile), _report(profile)]
    return [*made, _fetch(profile)] if profile.cache and profile.cache.claim else made


def _plan(profile: Profile) -> m.Template:
    work = Work(
        "plan",
        ["plan", "--argo", "--device", profile.gpu.device, *_workers(profile), "--outputs", OUT],
        "{{workflow.parameters.cpu-image}}",
        env=[
            *(_encoded(f"IMAGEKILN_{key}", parameter) for key, parameter in ENCODED.items()),
            # Not encoded: a schedule's is itself a variable that Argo resolves later.
            m.EnvVar(name="IMAGEKILN_LOGICAL_DATE", value="{{workflow.parameters.logical-date}}"),
        ],
        outputs=m.Outputs(parameters=[_output(name) for name in PLAN_GIVES]),
        secrets=pods.MODELS,
    )
    return _on_cpu(work, profile)


ENCODED = {
    "JOB": "job",
    "JOB_URI": "job-uri",
    "RUN_ID": "run-id",
    "TIMEZONE": "timezone",
    "SETTINGS": "settings",
    "RETRY": "retry",
}


def _encoded(variable: str, parameter: str) -> m.EnvVar:
    return m.EnvVar(name=variable, value=f"{{{{=sprig.b64enc(workflow.parameters['{parameter}'])}}}}")


def _output(name: str) -> m.Parameter:
    # The run is known to the exit handler too.
    shared = "run" if name == "run" else None
    return m.Parameter(name=name, value_from=m.ValueFrom(path=f"{OUT}/{name}"), global_name=shared)


def _generate(profile: Profile) -> m.Template:
    gpu, cache = profile.gpu, profile.cache
    offline = [m.EnvVar(name="HF_HUB_OFFLINE", value="1")] if cache and (cache.claim or cache.image) else []
    work = Work(
        "generate",
        ["generate", "--shard", "{{inputs.parameters.shard}}", *_workers(profile), "--", RUN],
        "{{workflow.parameters.gpu-image}}",
        inputs=("run", "shard"),
        env=offline,
        secrets=pods.MODELS | pods.SIGNING,
    )
    resources = None if gpu.claim else {gpu.resource: str(gpu.count)}
    semaphore = profile.sharing.semaphore
    key = m.ConfigMapKeySelector(name="imagekiln-gpus", key=semaphore) if semaphore else None
    lock = m.Synchronization(semaphores=[m.SemaphoreRef(config_map_key_ref=key)]) if key else None
    volume, mount = _models(profile, read_only=bool(offline))
    return pods.template(work, profile.generate, profile.retries, Extras(resources, gpu.claim, volume, mount, lock))


def _workers(profile: Profile) -> list[str]:
    # A shard on each GPU: `shard` then counts lots of as many shards as the pod has GPUs, in plan and generate alike.
    return ["--workers", str(profile.gpu.count)] if profile.gpu.count > 1 else []


def _fetch(profile: Profile) -> m.Template:
    """The GPU image, which knows what files a pipeline needs, on a CPU node."""
    image = "{{workflow.parameters.gpu-image}}"
    work = Work("fetch", ["fetch", "--", RUN], image, inputs=("run",), secrets=pods.MODELS)
    volume, mount = _models(profile, read_only=False)
    return _on_cpu(work, profile, Extras(volume=volume, mount=mount))


def _on_cpu(work: Work, profile: Profile, extras: Extras | None = None) -> m.Template:
    # On any node: CPU nodes may be few, and they do not break as GPUs do.
    return pods.template(work, profile.steps, Retries(limit=profile.retries.limit), extras)


def _models(profile: Profile, *, read_only: bool) -> tuple[m.Volume | None, m.VolumeMount | None]:
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
    return volume, m.VolumeMount(name="models", mount_path=MODELS, read_only=read_only or None)


def _aggregate(profile: Profile) -> m.Template:
    # Kept as files, in a folder whose name ends in a slash: so Argo's page opens it, pictures and all.
    report = m.Artifact(
        name="report",
        path=f"{OUT}/report",
        optional=True,
        archive=m.ArchiveStrategy(none=m.NoneStrategy()),
        s3=m.S3Artifact(key="{{workflow.namespace}}/{{workflow.name}}/report/"),
    )
    work = Work(
        "aggregate",
        ["aggregate", "--outputs", OUT, "--", RUN],
        "{{workflow.parameters.cpu-image}}",
        inputs=("run",),
        outputs=m.Outputs(artifacts=[report]) if profile.report_artifact else None,
        secrets=pods.STORAGE,
    )
    return _on_cpu(work, profile)


def _report(profile: Profile) -> m.Template:
    """The exit handler. Where plan did not get so far, the run is not known and stays Argo's variable."""
    failures = f"{{{{=sprig.b64enc(sprig.trunc({MOST_FAILURES}, workflow.failures))}}}}"
    work = Work(
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
    return _on_cpu(work, profile)
