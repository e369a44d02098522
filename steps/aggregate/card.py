"""The dataset's card: a README whose front matter lets a hub, and `datasets`, take the folder as it is."""

import re
import unicodedata

import pyarrow as pa
import yaml
from jinja2 import Environment, PackageLoader

from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.output import file_suffix
from imagekiln.steps.runs.keys import CARD_KEY, folder_metadata_key, round_folder, shard_key
from imagekiln.steps.runs.plan import Plan
from imagekiln.steps.runs.tables import IMAGE_ROW_SCHEMA, read_table
from imagekiln.steps.runs.webdataset_features import sample_features
from imagekiln.steps.runs.webui_text import model_label
from imagekiln.steps.storage.store import Store

SIZE_CATEGORIES = [
    "n<1K",
    "1K<n<10K",
    "10K<n<100K",
    "100K<n<1M",
    "1M<n<10M",
    "10M<n<100M",
    "100M<n<1B",
    "1B<n<10B",
]
INVISIBLE_CATEGORIES = {
    "Cc",
    "Cf",
    "Cs",
    "Zl",
    "Zp",
}  # controls, marks that reorder text, line ends


def write_card(store: Store, plan: Plan, summary: Summary) -> None:
    """Write the card into the run."""
    rows = read_table(store, shard_key(0)).schema if plan.shards else IMAGE_ROW_SCHEMA
    store.replace(CARD_KEY, render_card(plan, rows, summary).encode(errors="replace"))


def render_card(plan: Plan, rows: pa.Schema, summary: Summary) -> str:
    """The card of a run with these image rows, as Markdown. Texts of the user's stand in it as data."""
    environment = Environment(  # noqa: S701  # Markdown: what is not ours goes through `code`
        loader=PackageLoader("imagekiln.steps.aggregate", "."),
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["code"] = code_span
    model = model_label(plan)  # of a local folder, not where it was
    front = yaml.safe_dump(_front_matter(plan.job, rows, summary), sort_keys=False)
    return environment.get_template("card.md.j2").render(
        plan=plan, summary=summary, front=front, name=plan.job.name, run_id=plan.run_id, model=model
    )


def code_span(text: str) -> str:
    """Text as a Markdown code span, which ends where it should and hides nothing."""
    seen = "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(sign) in INVISIBLE_CATEGORIES else sign
        for sign in text
    )
    fence = "`" * (1 + max(map(len, re.findall("`+", seen)), default=0))
    return f"{fence} {seen} {fence}".replace(
        "|", "\\|"
    )  # the cell of a table ends at a bar, even within code


def _front_matter(job: Job, rows: pa.Schema, summary: Summary) -> dict[str, object]:
    known = job.format == "webdataset"  # the other formats have types
    info = {"dataset_info": {"features": sample_features(rows, job.encoding)}} if known else {}
    licence = {} if job.card.license is None else {"license": job.card.license}
    return {
        **licence,
        "pretty_name": job.name,
        "task_categories": ["text-to-image"],
        "tags": ["synthetic", "imagekiln"],
        "size_categories": [
            SIZE_CATEGORIES[min(max(len(str(summary.ok)) - 3, 0), len(SIZE_CATEGORIES) - 1)]
        ],
        # Not the manifest: `datasets` takes all that a card names for one format.
        "configs": [
            {
                "config_name": "default",
                "data_files": [
                    {"split": "train", "path": _data_file_patterns(job, summary.rounds)}
                ],
            }
        ],
        **info,
    }


def _data_file_patterns(job: Job, rounds: int) -> list[str]:
    """Where the images are, also those of rounds, and what else a reader must see to know of them."""
    each = {
        "parquet": ["images/*.parquet"],
        "webdataset": ["images/*.tar"],
        "files": [f"images/*/*{file_suffix(job.encoding)}", folder_metadata_key("images/*")],
    }
    folders = ["", *(f"{round_folder(number)}/" for number in range(1, rounds + 1))]
    return [f"{folder}{pattern}" for folder in folders for pattern in each[job.format]]
