"""The card of an export: a README whose front matter lets a hub and `datasets` load the folder."""

import pyarrow as pa
import yaml

from imagekiln.steps.aggregate.card import card_template, describe_configuration, size_category
from imagekiln.steps.export.plan import ExportPlan
from imagekiln.steps.runs.features import column_features
from imagekiln.steps.runtime.figures import format_bytes

DATA_PATTERNS = {"parquet": "data/**/*.parquet", "webdataset": "data/**/*.tar"}
MAX_LISTED_RUNS = 20


def render_export_card(plan: ExportPlan, columns: pa.Schema, images: int, size: int) -> str:
    """The card, as Markdown, of an export of so many images, of so many bytes in all."""
    configuration = describe_configuration(
        "default",
        DATA_PATTERNS[plan.settings.format],
        images,
        [size, *(file.sha256 for file in plan.files)],
    )
    front: dict[str, object] = {
        "task_categories": ["text-to-image"],
        "tags": ["synthetic", "imagekiln"],
        "size_categories": [size_category(images)],
        "configs": [configuration],
    }
    suffixes = {run.suffix for run in plan.runs}
    if plan.settings.format == "webdataset" and len(suffixes) == 1:
        front["dataset_info"] = {"features": column_features(columns, *suffixes)}
    return card_template("export_card.md.j2", "imagekiln.steps.export").render(
        front=yaml.safe_dump(front, sort_keys=False),
        plan=plan,
        images=images,
        size=format_bytes(size),
        run_ids=[run.run_id for run in plan.runs[:MAX_LISTED_RUNS]],
        unlisted=max(0, len(plan.runs) - MAX_LISTED_RUNS),
    )
