"""Files to start from: a job, and the Kubernetes objects of a namespace."""

import json
import re
from pathlib import Path
from string import Template

from imagekiln.steps.errors import BadInput
from imagekiln.steps.storage.failures import translate_errors

STARTER_JOB = Path(__file__).with_name("starter_job.yaml")
CLUSTER_MANIFESTS = Path(__file__).parent.with_name("cluster")
MONITORING_COMPONENT = "components: [../../monitoring]\n"
MAX_NAME_CHARS = 40
DEFAULT_NAME = "images"


def write_starter_job(file: Path, prompts: str, model: str) -> None:
    """Write a job file with these prompts and this model. Raises BadInput if the file exists."""
    values = {"name": job_name(prompts), "prompts": _quote(prompts), "model": _quote(model)}
    text = Template(STARTER_JOB.read_text(encoding="utf-8")).substitute(values)
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise BadInput(
            f"{file}: cannot be written ({error.strerror}). Name another file: --to FILE."
        ) from error


def job_name(prompts: str) -> str:
    """A name for a job, after the file of its prompts, such as `postcards` of `Postcards.csv`."""
    stem = prompts.rstrip("/").rpartition("/")[2].partition(".")[0]
    name = re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:MAX_NAME_CHARS]
    return name.strip("-") or DEFAULT_NAME


def _quote(text: str) -> str:
    """Text as YAML in quotes, which JSON's strings are; letters of any language stay legible."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def write_manifests(folder: Path, *, monitoring: bool = False) -> None:
    """Copy the namespace's objects into a new folder, for `kubectl apply -k` and overlays.

    With `monitoring`, the overlays include metrics, alerts and dashboards, which need the
    Prometheus Operator. Raises BadInput if there is such a folder, TryAgain if the disk is
    full.
    """
    with translate_errors(str(folder)):
        try:
            folder.mkdir(parents=True)
        except FileExistsError as error:
            raise BadInput(f"{folder}: exists. Name another folder.") from error
        for file in CLUSTER_MANIFESTS.rglob("*"):
            if file.is_file():
                copy = folder / file.relative_to(CLUSTER_MANIFESTS)
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(file.read_bytes())
        if monitoring:
            for overlay in folder.glob("overlays/*/kustomization.yaml"):
                with overlay.open("a", encoding="utf-8") as stream:
                    stream.write(MONITORING_COMPONENT)
