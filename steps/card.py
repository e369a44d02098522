"""The dataset's card: a README whose front matter lets a hub, and `datasets`, take the folder as it is."""

import re
import unicodedata

import pyarrow as pa
import yaml
from jinja2 import Environment, PackageLoader

from imagekiln.steps import features, names, parameters, tables
from imagekiln.steps.encodings import suffix
from imagekiln.steps.job import Job
from imagekiln.steps.plan import Plan
from imagekiln.steps.storage import Store
from imagekiln.steps.summary import Summary

SIZES = ["n<1K", "1K<n<10K", "10K<n<100K", "100K<n<1M", "1M<n<10M", "10M<n<100M", "100M<n<1B", "1B<n<10B"]
UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # controls, marks that reorder text, line ends


def write(store: Store, plan: Plan, summary: Summary) -> None:
    """Write the card into the run."""
    rows = tables.read(store, names.shard(0)).schema if plan.shards else tables.IMAGE_ROW
    store.replace(names.CARD, card(plan, rows, summary).encode(errors="replace"))


def card(plan: Plan, rows: pa.Schema, summary: Summary) -> str:
    """The card of a run with these image rows, as Markdown. Texts of the user's stand in it as data."""
    environment = Environment(  # noqa: S701  # Markdown: what is not ours goes through `code`
        loader=PackageLoader("imagekiln.steps", "."), trim_blocks=True, keep_trailing_newline=True
    )
    environment.filters["code"] = code
    model = parameters.of(plan)  # of a local folder, not where it was
    front = yaml.safe_dump(_front(plan.job, rows, summary), sort_keys=False)
    return environment.get_template("card.md.j2").render(
        plan=plan, summary=summary, front=front, name=plan.job.name, run_id=plan.run_id, model=model
    )


def code(text: str) -> str:
    """Text as a Markdown code span, which ends where it should and hides nothing."""
    seen = "".join("\N{REPLACEMENT CHARACTER}" if unicodedata.category(sign) in UNSEEN else sign for sign in text)
    fence = "`" * (1 + max(map(len, re.findall("`+", seen)), default=0))
    return f"{fence} {seen} {fence}".replace("|", "\\|")  # the cell of a table ends at a bar, even within code


def _front(job: Job, rows: pa.Schema, summary: Summary) -> dict[str, object]:
    known = job.format == "webdataset"  # the other formats have types
    info = {"dataset_info": {"features": features.sample(rows, job.encoding)}} if known else {}
    licence = {} if job.card.license is None else {"license": job.card.license}
    return {
        **licence,
        "pretty_name": job.name,
        "task_categories": ["text-to-image"],
        "tags": ["synthetic", "imagekiln"],
        "size_categories": [SIZES[min(max(len(str(summary.ok)) - 3, 0), len(SIZES) - 1)]],
        # Not the manifest: `datasets` takes all that a card names for one format.
        "configs": [
            {"config_name": "default", "data_files": [{"split": "train", "path": _patterns(job, summary.rounds)}]}
        ],
        **info,
    }


def _patterns(job: Job, rounds: int) -> list[str]:
    """Where the images are, also those of rounds, and what else a reader must see to know of them."""
    each = {
        "parquet": ["images/*.parquet"],
        "webdataset": ["images/*.tar"],
        "files": [f"images/*/*{suffix(job.encoding)}", names.listing("images/*")],
    }
    folders = ["", *(f"{names.round_folder(number)}/" for number in range(1, rounds + 1))]
    return [f"{folder}{pattern}" for folder in folders for pattern in each[job.format]]
