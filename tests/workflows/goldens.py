"""The YAML that `render` is compared with, whole. Only `make golden` writes it."""

import sys
from collections.abc import Iterator
from pathlib import Path

from imagekiln.steps.job import ClusterSettings, Job, ModelSettings, RowDefaults
from imagekiln.workflows import events, gpu_profiles, manifest, submission, templates

FOLDER = Path(__file__).parent / "golden"
NAMESPACE = "images"
JOB = Job(
    name="postcards",
    prompts="s3://prompts/postcards/{date}/*.parquet",
    output="s3://datasets/postcards",
    model=ModelSettings(
        id="stabilityai/stable-diffusion-xl-base-1.0", revision="462165984030d82259a11f4367a4eed129e94a7b"
    ),
    cluster=ClusterSettings(namespace=NAMESPACE, parallelism=8, priority=10, priority_class="imagekiln-batch"),
)
# Texts that a careless template would take for its own.
ODD = JOB.model_copy(
    update={
        "defaults": RowDefaults(
            negative_prompt="{{workflow.name}} {{=1}} \"double\" 'single' $(id) `id` %s \\ é\nline two"
        ),
    }
)


def goldens() -> Iterator[tuple[Path, str]]:
    """Each golden file, and what it should hold: one whole template, the GPU pods of every profile, and what runs."""
    gpu = gpu_profiles.load_profile("gpu")
    for name in ("gpu", "cached-claim"):
        yield (
            _file(name),
            manifest.to_yaml(templates.build_workflow_template(gpu_profiles.load_profile(name), NAMESPACE)),
        )
    for name in gpu_profiles.bundled_profiles():
        yield FOLDER / "generate" / f"{name}.yaml", manifest.to_yaml(generate(name))
    yield _file("workflow"), manifest.to_yaml(submission.build_workflow(JOB, gpu, "2026-11-21", "Europe/Berlin"))
    yield _file("workflow-odd"), manifest.to_yaml(submission.build_workflow(ODD, gpu))
    cron = submission.build_cron_workflow(JOB, gpu, ("30 1 * * *",), "Europe/Berlin")
    yield _file("cron-workflow"), manifest.to_yaml(cron)
    yield _file("event-binding"), manifest.to_yaml(events.build_event_binding(gpu, NAMESPACE))


def generate(profile: str) -> dict[str, object]:
    """The template of a profile's GPU pods."""
    made = templates.build_workflow_template(gpu_profiles.load_profile(profile), NAMESPACE)
    spec = made["spec"]
    assert isinstance(spec, dict)
    return next(each for each in spec["templates"] if each["name"] == "generate")


def write() -> None:
    """Write every golden file, and remove those that nothing makes."""
    wanted = dict(goldens())
    for path in FOLDER.rglob("*.yaml"):
        if path not in wanted:
            path.unlink()
    for path, text in wanted.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _file(name: str) -> Path:
    return FOLDER / f"{name}.yaml"


if __name__ == "__main__":
    write()
    sys.stdout.write("Read what changed: git diff tests/workflows/golden\n")
