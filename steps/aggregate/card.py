"""Dataset cards: a README with front matter, so that hubs and `datasets` can load the folder."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from unicodedata import category

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from imagekiln.steps.aggregate.summary import Summary
from imagekiln.steps.runs.keys import CARD_KEY, IMAGES_FOLDER
from imagekiln.steps.runs.plan import Plan, iter_pass_plans
from imagekiln.steps.runs.webui_text import model_label
from imagekiln.steps.runtime.figures import pluralize
from imagekiln.steps.storage.store import Store

SIZE_CATEGORIES = (
    "n<1K",
    "1K<n<10K",
    "10K<n<100K",
    "100K<n<1M",
    "1M<n<10M",
    "10M<n<100M",
    "100M<n<1B",
    "1B<n<10B",
)
# Unicode categories: control and format characters, surrogates, line and paragraph separators.
INVISIBLE_CATEGORIES = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def write_card(store: Store, plan: Plan, summary: Summary) -> None:
    """Render the card and write it into the run."""
    card = render_card(plan, summary)
    store.replace(CARD_KEY, card.encode(errors="replace"))


def render_card(plan: Plan, summary: Summary) -> str:
    """Render the card of a run as Markdown."""
    return card_template("card.md.j2").render(
        plan=plan,
        summary=summary,
        front=yaml.safe_dump(_front_matter(plan, summary), sort_keys=False),
        name=plan.job.name,
        run_id=plan.run_id,
        model=model_label(plan),  # only the last name of a local folder
        pass_models={
            name: (model_label(pass_plan), pass_plan.job.model)
            for name, pass_plan in iter_pass_plans(plan)
        },
    )


@cache
def card_template(name: str, package: str = "imagekiln.steps.aggregate") -> Template:
    """Load a Markdown template of a package, with the filter `code` for user strings."""
    environment = Environment(  # noqa: S701  # Markdown: user text goes through `code`
        loader=PackageLoader(package, "."),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    environment.filters["code"] = code_span
    return environment.get_template(name)


def code_span(text: str) -> str:
    """Format a string as a Markdown code span, with invisible characters replaced."""
    visible = "".join(
        "\N{REPLACEMENT CHARACTER}" if category(character) in INVISIBLE_CATEGORIES else character
        for character in text
    )
    longest_run = max(map(len, re.findall("`+", visible)), default=0)
    fence = "`" * (longest_run + 1)
    escaped = visible.replace("|", "\\|")  # a bar ends the cell of a table, even within code
    return f"{fence} {escaped} {fence}"


def _front_matter(plan: Plan, summary: Summary) -> dict[str, object]:
    job = plan.job
    # The manifest has no configuration, since `datasets` reads all files of a card in one format.
    configuration = describe_configuration(
        "default", [f"{IMAGES_FOLDER}/*.parquet"], summary.ok, content_facts(plan, summary)
    )
    front: dict[str, object] = {}
    if job.card.license is not None:
        front["license"] = job.card.license
    front |= {
        "pretty_name": job.name,
        "task_categories": ["text-to-image"],
        "tags": ["synthetic", "imagekiln"],
        "size_categories": [size_category(summary.ok)],
        "configs": [configuration],
    }
    return front


def describe_configuration(
    name: str, patterns: str | Sequence[str], images: int, facts: Iterable[object]
) -> dict[str, object]:
    """Build a configuration of a card, with its files and a description that hashes the facts.

    `datasets` identifies a cached dataset only by its card and the folder's name.
    """
    digest = hashlib.sha256()
    for fact in facts:
        digest.update(f"{fact}\n".encode())
    return {
        "config_name": name,
        "description": f"{pluralize(images, 'image')}, {digest.hexdigest()[:16]}",
        "data_files": [{"split": "train", "path": patterns}],
    }


def content_facts(plan: Plan, summary: Summary) -> list[object]:
    """Return facts that change with the files of a run, and differ from runs of the same name."""
    hashes = [shard.sha256 for shard in plan.shards]
    return [plan.created_at, summary.statuses, summary.bytes, *hashes]


def size_category(images: int) -> str:
    """Return the hub's size category for a number of images."""
    digits = len(str(images))
    index = max(digits - 3, 0)
    largest = len(SIZE_CATEGORIES) - 1
    return SIZE_CATEGORIES[min(index, largest)]
