"""What a new user starts from: a job file, and the Kubernetes objects of a namespace."""

import json
import re
import shutil
import unicodedata
from pathlib import Path
from string import Template

import yaml

from imagekiln.steps.errors import BadInput
from imagekiln.steps.job.columns import PROMPT_COLUMNS, RESERVED_COLUMNS
from imagekiln.steps.storage.failures import translate_errors
from imagekiln.steps.storage.uri import is_remote_uri

STARTER_JOB = Path(__file__).with_name("starter_job.yaml")
CLUSTER_MANIFESTS = Path(__file__).parent.with_name("cluster")
MONITORING_COMPONENT = "components: [../../monitoring]\n"
MAX_NAME_CHARS = 40
DEFAULT_NAME = "images"
# Names, in lower case, that say which of our columns a column is; others have our own name.
OBVIOUS_NAMES = {"prompt": ("prompt", "caption", "text"), "id": ("id", "uid", "uuid")}
EXAMPLE_COLUMNS = """\
# Columns of yours that have other names, and columns to keep in the dataset:
# columns: {prompt: caption, id: uid}
# carry: [category]
"""


def write_starter_job(file: Path, prompts: str, model: str, columns: list[str] | None) -> None:
    """Write a job file with these prompts and this model. Raises BadInput where there is a file.

    `columns` are those of the prompts, if they can be read already.
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


def read_columns(prompts: str) -> list[str] | None:
    """The columns of local prompts, by their first file; None if there is none.

    Raises BadInput if they cannot be read, TryAgain.
    """
    if is_remote_uri(prompts):
        return None
    # Imported only now: pyarrow is slow to import, and no other command of this module needs it.
    from imagekiln.steps.plan.input_formats import read_schema
    from imagekiln.steps.plan.source_files import SourceFile, expand_pattern

    files = expand_pattern(prompts)
    if not files:
        return None
    source = SourceFile(files[0], Path(files[0]), sha256="")
    return [*dict.fromkeys([*read_schema(source).names, *source.partitions])]


def choose_columns(columns: list[str]) -> dict[str, str]:
    """The columns with the prompts and their ids, by our names, as far as their names say so."""
    lowered = {name.lower(): name for name in reversed(columns)}
    chosen = {}
    for ours, names in OBVIOUS_NAMES.items():
        theirs = next((lowered[name] for name in names if name in lowered), None)
        if theirs is not None:
            chosen[ours] = theirs
    return chosen


def _columns_yaml(columns: list[str]) -> str:
    """The settings `columns` and `carry` as lines of a job file."""
    chosen = choose_columns(columns)
    taken = {*RESERVED_COLUMNS, *(column.name for column in PROMPT_COLUMNS), *chosen.values()}
    others = [name for name in columns if not {name, name.lower()} & taken]
    lines = [f"columns: {_to_flow(chosen)}"]
    if "prompt" not in chosen:
        example = _to_flow({"prompt": next(iter(others), "NAME"), **chosen})
        lines = ["# Name the column that holds the prompts:", f"# columns: {example}"]
    if others:
        lines.append("# To keep columns in the dataset, without effect on the images:")
        lines.append(f"# carry: {_to_flow(others)}")
    return "".join(f"{line}\n" for line in lines)


def _to_flow(value: object) -> str:
    text = yaml.safe_dump(
        value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10**6
    )
    return text.strip()


def job_name(prompts: str) -> str:
    """A name for a job, after the file of its prompts, such as `postcards` of `Postcards.csv`."""
    stem = prompts.rstrip("/").rpartition("/")[2].partition(".")[0]
    decomposed = unicodedata.normalize("NFKD", stem)  # so that an accent leaves its letter
    ascii_stem = re.sub(r"[\u0300-\u036f]", "", decomposed).lower()
    name = re.sub(r"[^a-z0-9]+", "-", ascii_stem).strip("-")[:MAX_NAME_CHARS]
    return name.strip("-") or DEFAULT_NAME


def _quote(text: str) -> str:
    """Text as YAML in quotes, which JSON's strings are; letters of any language stay legible."""
    return json.dumps(text, ensure_ascii=not text.isprintable())


def write_manifests(folder: Path, *, monitoring: bool = False) -> None:
    """Copy the namespace's objects into a new folder, for `kubectl apply -k` and overlays.

    With `monitoring`, the overlays include metrics, alerts and dashboards, which need the
    Prometheus Operator. Raises BadInput where there is such a folder, TryAgain where the disk is
    full.
    """
    with translate_errors(str(folder)):
        try:
            folder.mkdir(parents=True)
        except FileExistsError as error:
            raise BadInput(f"{folder}: exists. Name another folder.") from error
        try:
            _copy_manifests(folder, monitoring=monitoring)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)  # kubectl would apply half of the objects
            raise


def _copy_manifests(folder: Path, *, monitoring: bool) -> None:
    files = (file for file in CLUSTER_MANIFESTS.rglob("*") if file.is_file())
    for file in files:
        copy = folder / file.relative_to(CLUSTER_MANIFESTS)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(file.read_bytes())
    if monitoring:
        for overlay in folder.glob("overlays/*/kustomization.yaml"):
            with overlay.open("a", encoding="utf-8") as stream:
                stream.write(MONITORING_COMPONENT)
