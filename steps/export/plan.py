"""The plan of an export, frozen in export.json: which files must exist, and what is in each.

The rows of each file lie in an object of their own, which the plan names by its hash. An export is
made from nothing else, so that it resumes, and two writers write the same files.
"""

import hashlib
from dataclasses import dataclass, fields, replace
from typing import Annotated

import pyarrow as pa
from pydantic import FailFast, Field, TypeAdapter, ValidationError

from imagekiln.steps.errors import BadInput, Missing, version_error
from imagekiln.steps.export.layout import DATA_KEY_PATTERN, file_rows_key
from imagekiln.steps.export.settings import ExportSettings, describe_setting
from imagekiln.steps.job.output import FILE_SUFFIXES
from imagekiln.steps.runs.keys import EXPORT_KEY, SHA256_PATTERN
from imagekiln.steps.runs.plan import Count
from imagekiln.steps.runs.registry import RunId
from imagekiln.steps.runs.tables import parse_parquet, read_whole
from imagekiln.steps.storage.store import Store

EXPORT_VERSION = 1
REQUIRED_COLUMNS = ("image_id", "prompt", "byte_size", "sha256")  # of the rows, besides places
MAX_FILES = 300_000  # the plan stays as small as a plan can be
IMAGE_SUFFIX_PATTERN = rf"^(?:{'|'.join(FILE_SUFFIXES.values())})$".replace(".", r"\.")


@dataclass(frozen=True, slots=True)
class ExportedRun:
    """A run whose images are exported, the suffix of their files, and how many it had.

    Fewer of them are in the export where newer runs have some.
    """

    run_id: RunId
    suffix: Annotated[str, Field(pattern=IMAGE_SUFFIX_PATTERN)]
    images: Count


@dataclass(frozen=True, slots=True)
class ExportFile:
    """A file: its key, its images with the sum of their bytes, and the hash of its rows' object."""

    key: Annotated[str, Field(pattern=f"^{DATA_KEY_PATTERN.pattern}$")]
    images: Annotated[int, Field(ge=1)]
    bytes: Count
    sha256: Annotated[str, Field(pattern=SHA256_PATTERN)]


@dataclass(frozen=True, slots=True)
class ExportPlan:
    """The plan of an export. `is_run` says that the source is one run, not an output of several.

    Left out are images of older runs: `duplicates`, which a newer run holds, and `superseded`,
    whose value in the column `newest_by` an image of a newer run has. `outdated` ones are exported:
    newer runs have others for their ids. `digest` is the SHA-256 of the plan's bytes without it.
    """

    schema_version: int
    settings: ExportSettings
    is_run: bool
    runs: Annotated[tuple[ExportedRun, ...], Field(min_length=1), FailFast()]
    files: Annotated[tuple[ExportFile, ...], Field(min_length=1, max_length=MAX_FILES), FailFast()]
    duplicates: Count = 0
    superseded: Count = 0
    outdated: Count = 0
    digest: str = ""

    @property
    def images(self) -> int:
        """The number of all images."""
        return sum(file.images for file in self.files)

    @property
    def bytes(self) -> int:
        """The bytes of all images."""
        return sum(file.bytes for file in self.files)


EXPORT_PLAN_TYPE_ADAPTER: TypeAdapter[ExportPlan] = TypeAdapter(ExportPlan)
VERSION_TYPE_ADAPTER: TypeAdapter[dict[str, object]] = TypeAdapter(dict[str, object])


def load_export_plan(store: Store) -> ExportPlan:
    """The plan of the export in `store`. Raises Missing, BadInput, TryAgain."""
    content = store.read(EXPORT_KEY)
    where = store.uri_of(EXPORT_KEY)
    try:
        version = VERSION_TYPE_ADAPTER.validate_json(content).get("schema_version")
        if isinstance(version, int) and version != EXPORT_VERSION:
            raise version_error(where, version, EXPORT_VERSION)
        plan = EXPORT_PLAN_TYPE_ADAPTER.validate_json(content)
    except ValidationError as error:
        raise BadInput(
            f"{where}: is not the plan of an export. Restore it, or choose another folder."
        ) from error
    if plan.digest != _digest(content.replace(plan.digest.encode(), b"")):
        raise BadInput(f"{where}: has other bytes than were planned. Restore it.")
    return plan


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_export_plan(plan: ExportPlan) -> bytes:
    """The bytes of a plan, with their digest."""
    content = EXPORT_PLAN_TYPE_ADAPTER.dump_json(replace(plan, digest=""), indent=1) + b"\n"
    sealed = replace(plan, digest=_digest(content))
    return EXPORT_PLAN_TYPE_ADAPTER.dump_json(sealed, indent=1) + b"\n"


def find_export_plan(store: Store) -> ExportPlan | None:
    """The plan of the export in `store`; None where there is none yet."""
    try:
        return load_export_plan(store)
    except Missing:
        return None


def freeze_export_plan(store: Store, plan: ExportPlan) -> ExportPlan:
    """Write a plan whose rows are all written, and return it: or the one that was there first."""
    is_first = store.create(EXPORT_KEY, write_export_plan(plan))
    return plan if is_first else load_export_plan(store)


def require_settings(store: Store, plan: ExportPlan, settings: ExportSettings) -> None:
    """Raise BadInput where an export was planned with other settings."""
    for field in fields(settings):
        planned = getattr(plan.settings, field.name)
        current = getattr(settings, field.name)
        if planned != current:
            raise BadInput(
                f"{store.uri}: holds an export with {describe_setting(field.name, planned)}, and "
                f"this one has {describe_setting(field.name, current)}. Use the same settings, or "
                "another destination."
            )


def read_file_rows(store: Store, plan: ExportPlan, number: int) -> pa.Table:
    """The rows of one file, as they were planned. Raises BadInput where they are others."""
    sha256 = plan.files[number].sha256
    key = file_rows_key(number, sha256)
    content = store.read(key)
    if _digest(content) != sha256:
        raise BadInput(
            f"{store.uri_of(key)}: has other bytes than were planned. "
            "Restore it, or export to another destination."
        )
    with parse_parquet(content, store.uri_of(key)) as parquet:
        return read_whole(parquet)
