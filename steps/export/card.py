"""Card of an export: a README whose front matter lets a hub and `datasets` load the folder."""

import yaml

from imagekiln.steps.aggregate.card import card_template, describe_configuration, size_category
from imagekiln.steps.export.commits import (
    FOLDER_TABLE,
    FORMAT_SUFFIXES,
    ExportCommit,
    read_file_rows,
)
from imagekiln.steps.export.features import sample_features
from imagekiln.steps.export.formats import file_columns
from imagekiln.steps.runs.keys import CARD_KEY
from imagekiln.steps.runtime.figures import format_bytes
from imagekiln.steps.storage.store import Store

FORMAT_PHRASES = {
    "parquet": "Parquet",
    "arrow": "streams of Arrow",
    "webdataset": "WebDataset's tars",
    "files": "files, with a table of those in a folder beside them",
}
MAX_LISTED_RUNS = 20


def write_card(store: Store, commit: ExportCommit) -> None:
    """Write the card of an export, replacing an earlier one. Raises TryAgain."""
    suffixes = sorted({run.suffix for run in commit.runs})
    patterns = [f"data/**/*{FORMAT_SUFFIXES[commit.settings.format]}"]
    if commit.settings.format == "files":
        patterns = [*(f"data/**/*{suffix}" for suffix in suffixes), f"data/**{FOLDER_TABLE}"]
    configuration = describe_configuration(
        "default",
        patterns,
        commit.images,
        [file.sha256 for file in commit.files],
    )
    front: dict[str, object] = {
        "task_categories": ["image-to-image" if commit.settings.triplets else "text-to-image"],
        "tags": ["synthetic", "imagekiln"],
        "size_categories": [size_category(commit.images)],
        "configs": [configuration],
    }
    # The formats of input images, and so their names, are in no row.
    is_uniform = len(suffixes) == 1 and not commit.settings.triplets
    if commit.settings.format == "webdataset" and is_uniform and commit.files:
        rows = read_file_rows(store, commit.files[0])
        columns = rows.select(file_columns(commit, rows)).schema
        front["dataset_info"] = {"features": sample_features(columns, *suffixes)}
    card = card_template("export_card.md.j2", "imagekiln.steps.export").render(
        front=yaml.safe_dump(front, sort_keys=False),
        commit=commit,
        format_phrase=FORMAT_PHRASES[commit.settings.format],
        noun="folder" if commit.settings.format == "files" else "file",
        size=format_bytes(commit.bytes),
        runs=commit.runs[-MAX_LISTED_RUNS:],
    )
    store.replace(CARD_KEY, card.encode(errors="replace"))
