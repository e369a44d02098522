"""The YAML that `render` is compared with, whole. Only `make golden` writes it."""

import runpy
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from hera.workflows import Workflow

from imagekiln.steps.job.job import ClusterSettings, Job, ModelSettings
from imagekiln.steps.job.rows import RowDefaults
from imagekiln.workflows.profiles.loader import bundled_profiles, load_profile
from imagekiln.workflows.templates.workflow import (
    build_cron_workflow,
    build_event_binding,
    build_workflow,
)
from imagekiln.workflows.templates.workflow_template import as_object, build_workflow_template
from imagekiln.workflows.templates.yaml import to_yaml, to_yaml_documents

FOLDER = Path(__file__).parent / "golden"
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "pipeline.py"
MONITORING = Path(__file__).parents[2] / "workflows" / "cluster" / "monitoring"
PLAIN_RULES = MONITORING / "plain" / "rules.yaml"
NAMESPACE = "images"
JOB = Job(
    name="postcards",
    prompts="s3://prompts/postcards/{date}/*.parquet",
    output="s3://datasets/postcards",
    model=ModelSettings(
        id="stabilityai/stable-diffusion-xl-base-1.0",
        revision="462165984030d82259a11f4367a4eed129e94a7b",
    ),
    cluster=ClusterSettings(namespace=NAMESPACE, parallelism=8, priority_class="imagekiln-batch"),
)
# Texts that a careless template would take for its own.
ODD = JOB.model_copy(
    update={
        "defaults": RowDefaults(
            negative_prompt="{{workflow.name}} {{=1}} \"double\" 'single' $(id) `id` %s \\ é"
            "\nline two"
        ),
    }
)


def goldens() -> Iterator[tuple[Path, str]]:
    """Each golden file, and what it should hold.

    Two whole templates, what one with `rewrite` adds, the GPU pods of every profile,
    what runs a job, and the docs' example of a workflow that a batch is part of.
    """
    gpu = load_profile("gpu")
    for name in ("gpu", "cached-claim"):
        yield (
            _file(name),
            to_yaml_documents([build_workflow_template(load_profile(name), NAMESPACE)]),
        )
    yield _file("rewriting"), to_yaml({"templates": rewriting("cached-claim")})
    for name in bundled_profiles():
        yield FOLDER / "generate" / f"{name}.yaml", to_yaml(generate(name))
    yield _file("workflow"), to_yaml(build_workflow(JOB, gpu, "2026-11-21", "Europe/Berlin"))
    yield _file("workflow-odd"), to_yaml(build_workflow(ODD, gpu))
    cron = build_cron_workflow(JOB, gpu, ("30 1 * * *",), "Europe/Berlin")
    yield _file("cron-workflow"), to_yaml_documents([cron])
    yield _file("event-binding"), to_yaml(build_event_binding(gpu, NAMESPACE))
    yield _file("pipeline"), to_yaml(example_pipeline())


def rewriting(profile: str) -> list[object]:
    """The templates that a workflow with `rewrite` has instead of, or beside, the usual ones."""
    loaded = load_profile(profile)
    specs = [
        build_workflow_template(loaded, NAMESPACE)["spec"],
        build_workflow_template(loaded, NAMESPACE, rewrites=True)["spec"],
    ]
    plain, own = (cast("dict[str, list[object]]", spec)["templates"] for spec in specs)
    return [template for template in own if template not in plain]


def generate(profile: str) -> dict[str, object]:
    """The template of a profile's GPU pods."""
    spec = build_workflow_template(load_profile(profile), NAMESPACE)["spec"]
    assert isinstance(spec, dict)
    return next(template for template in spec["templates"] if template["name"] == "generate")


def example_pipeline() -> dict[str, object]:
    """The workflow of the docs' example."""
    pipeline = runpy.run_path(str(EXAMPLE))["pipeline"]
    assert isinstance(pipeline, Workflow)
    return as_object(pipeline.build())


def plain_rules() -> str:
    """The rules as Prometheus reads them: the `spec` of the operator's object, comments and all."""
    text = (MONITORING / "rules.yaml").read_text(encoding="utf-8")
    spec = text.partition("\nspec:\n")[2]
    return "# Made of ../rules.yaml by `make golden`.\n" + textwrap.dedent(spec)


def write() -> None:
    """Write every golden file, and remove those that nothing renders."""
    texts = dict(goldens())
    for path in FOLDER.rglob("*.yaml"):
        if path not in texts:
            path.unlink()
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    PLAIN_RULES.write_text(plain_rules(), encoding="utf-8")


def _file(name: str) -> Path:
    return FOLDER / f"{name}.yaml"


if __name__ == "__main__":
    write()
    sys.stdout.write("Read what changed: git diff tests/workflows/golden workflows/cluster\n")
