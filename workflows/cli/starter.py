"""Starter files: a job, and the Kubernetes objects of a namespace."""

import json
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from string import Template

import yaml

from imagekiln.steps.errors import BadInput
from imagekiln.steps.plan.columns import OUR_NAMES, find_spellings
from imagekiln.steps.plan.input_files import read_source
from imagekiln.steps.plan.source_files import convert_sources, expand_pattern, gather_sources
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.local import temporary_folder
from imagekiln.steps.storage.uri import is_remote_uri

STARTER_JOB = Path(__file__).with_name("starter_job.yaml")
CLUSTER_MANIFESTS = Path(__file__).parent.with_name("cluster")
MONITORING_COMPONENT = "components: [../../monitoring]\n"
MAX_NAME_CHARS = 40
DEFAULT_NAME = "images"
EXAMPLE_COLUMNS = """\
# Columns of yours that have other names, and columns to keep in the dataset:
# columns: {prompt: caption, id: uid}
# carry: [category]
"""


@dataclass(frozen=True, slots=True)
class TableColumns:
    """Columns of prompts: names of known columns in the table, and all others."""

    ours: dict[str, str]
    others: tuple[str, ...]


def read_columns(pattern: str) -> TableColumns | None:
    """Read the columns that all prompt files have; None if there are none, or they are remote.

    Raises BadInput if they cannot be read, TryAgain.
    """
    if is_remote_uri(pattern) or not expand_pattern(pattern):
        return None
    with temporary_folder("imagekiln-columns-") as folder:
        sources = convert_sources(gather_sources((pattern,), Path(folder)), Path(folder))
        schemas = [read_source(source)[1] for source in sources]
    names = [name for name in schemas[0].names if all(name in each.names for each in schemas)]
    found = {ours: find_spellings(names, ours)[:1] for ours in OUR_NAMES}
    ours = {name: likely[0] for name, likely in found.items() if likely}
    return TableColumns(ours, tuple(name for name in names if name not in ours.values()))


def write_starter_job(file: Path, prompts: str, model: str, columns: TableColumns | None) -> None:
    """Write a job file with these prompts and this model. Raises BadInput if the file exists.

    `columns` are the columns of the prompts, if they can be read already.
    """
    values = {
        "name": job_name(prompts),
        "prompts": _quote(prompts),
        "output": _quote("out"),
        "model": _quote(model),
        "columns": EXAMPLE_COLUMNS if columns is None else _columns_yaml(columns),
    }
    text = Template(STARTER_JOB.read_text(encoding="utf-8")).substitute(values)
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        raise BadInput(f"{file}: exists. Name another file: --to FILE.") from error
    except OSError as error:
        raise BadInput(
            f"{file}: cannot be written ({error.strerror}). Name another file: --to FILE."
        ) from error


def _columns_yaml(columns: TableColumns) -> str:
    """Format the settings `columns` and `carry` as lines of a job file."""
    chosen = {
        ours: theirs
        for ours, theirs in columns.ours.items()
        if ours in ("prompt", "id") or theirs != ours
    }
    lines = [f"columns: {_to_flow(chosen)}"]
    if "prompt" not in chosen:
        example = _to_flow({"prompt": next(iter(columns.others), "NAME"), **chosen})
        lines = ["# Name the column that holds the prompts:", f"# columns: {example}"]
    if columns.others:
        lines.append("# To keep columns in the dataset, without effect on the images:")
        lines.append(f"# carry: {_to_flow([*columns.others])}")
    return "".join(f"{line}\n" for line in lines)


def _to_flow(value: object) -> str:
    text = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6
    )
    return text.strip()


def job_name(prompts: str) -> str:
    """Derive a job name from the file of its prompts, such as `postcards` from `Postcards.csv`."""
    stem = prompts.rstrip("/").rpartition("/")[2].partition(".")[0]
    decomposed = unicodedata.normalize("NFKD", stem)  # to keep the letter of an accented character
    ascii_stem = re.sub(r"[\u0300-\u036f]", "", decomposed).lower()
    name = re.sub(r"[^a-z0-9]+", "-", ascii_stem).strip("-")[:MAX_NAME_CHARS]
    return name.strip("-") or DEFAULT_NAME


def _quote(value: str) -> str:
    """Quote a string for YAML, as in JSON, but without escaping letters of other languages."""
    return json.dumps(value, ensure_ascii=not value.isprintable())


def write_manifests(folder: Path, *, monitoring: bool = False) -> None:
    """Copy the namespace's objects into a new folder, for `kubectl apply -k` and overlays.

    With `monitoring`, the overlays include metrics, alerts and dashboards, which need the
    Prometheus Operator. Raises BadInput if the folder exists, TryAgain if the disk is full.
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
