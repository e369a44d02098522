"""The card of an output: its successful runs as one dataset that a hub and `datasets` load as is.

It follows from the registry of runs and is written anew after each of them. It serves readers, and
no step relies on it: if it cannot be written, the run is still a success.
"""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import pyarrow as pa
import yaml

from imagekiln.steps.aggregate.card import (
    card_template,
    content_facts,
    describe_configuration,
    run_file_patterns,
    size_category,
)
from imagekiln.steps.aggregate.features import part_features
from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.errors import BadInput, KilnError, Missing
from imagekiln.steps.runs.keys import CARD_KEY
from imagekiln.steps.runs.plan import Plan, load_plan
from imagekiln.steps.runs.registry import find_finished_runs
from imagekiln.steps.runs.shard import read_row_schema
from imagekiln.steps.runs.tables import added_fields
from imagekiln.steps.runs.webui_text import model_label
from imagekiln.steps.storage import open_store

MARK = "<!-- Written by Imagekiln, anew after each run. -->"
MAX_LISTED_RUNS = 100
READERS = 16

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CardRun:
    """A run as the card has it, with the columns of its image rows."""

    plan: Plan
    summary: Summary
    columns: pa.Schema

    @property
    def model(self) -> str:
        """The model's name; of a local folder, only the last name."""
        return model_label(self.plan).name


@dataclass(slots=True)
class Configuration:
    """Runs that load as one dataset, newest first: `columns` are those of all of them."""

    name: str
    runs: list[CardRun]
    columns: pa.Schema

    @property
    def images(self) -> int:
        """The images of all its runs that are ok."""
        return sum(run.summary.ok for run in self.runs)

    def add(self, run: CardRun) -> bool:
        """Add a run if it fits; False if it does not."""
        if self.runs[0].plan.job.encoding.kind != run.plan.job.encoding.kind:
            return False
        united = _unite(self.columns, run.columns)
        if united is None:
            return False
        self.columns = united
        self.runs.append(run)
        return True

    def describe(self) -> dict[str, object]:
        """Its entry in the card, with the files of all its runs, oldest first."""
        files = [
            f"{run.plan.run_id}/{pattern}"
            for run in reversed(self.runs)
            for pattern in run_file_patterns(run.summary)
        ]
        facts = [content_facts(run.plan, run.summary) for run in self.runs]
        return describe_configuration(self.name, files, self.images, facts)

    def features(self) -> list[dict[str, object]] | None:
        """The card's declaration of the columns; None if readers see them in the files."""
        is_mixed = any(run.columns != self.columns for run in self.runs)
        if not is_mixed or not self.images:
            return None
        return part_features(self.columns)


def update_output_card(output: str) -> None:
    """Write the card of an output, unless its README.md is somebody else's."""
    try:
        store = open_store(output)
        with suppress(Missing):
            if MARK.encode() not in store.read(CARD_KEY):
                return
        names = [entry.run_id for entry in find_finished_runs(output)]
        with ThreadPoolExecutor(READERS) as pool:
            runs = list(pool.map(partial(_read_run, output), names))
        card = render_output_card(runs)
        store.replace(CARD_KEY, card.encode(errors="replace"))
    except KilnError as error:
        log.warning("%s: the card of all runs was not written. %s", output, error)


def _read_run(output: str, run_id: str) -> CardRun | None:
    """A run; None if it cannot be read."""
    try:
        store = open_store(f"{output}/{run_id}")
        plan = load_plan(store)
        columns = pa.schema([*read_row_schema(store, plan), *added_fields(plan.job)])
        # Each of a thousand runs names all runs before it: half a million together.
        return CardRun(replace(plan, existing_runs=()), load_summary(store), columns)
    except BadInput as error:
        log.warning("%s: the card of all runs leaves out %s. %s", output, run_id, error)
        return None


def render_output_card(runs: Sequence[CardRun | None]) -> str:
    """The card of these runs, oldest first, as Markdown. None stands for one that is unreadable."""
    readable = [run for run in runs if run is not None]
    with_images = [run for run in readable if run.summary.ok]
    configurations = _configurations(with_images or readable[-1:])
    images = sum(run.summary.ok for run in readable)
    front = _front_matter(configurations, images)
    return card_template("output_card.md.j2").render(
        front=yaml.safe_dump(front, sort_keys=False),
        mark=MARK,
        name=readable[-1].plan.job.name if readable else "images",
        images=images,
        runs=readable[::-1][:MAX_LISTED_RUNS],
        run_count=len(readable),
        unreadable=len(runs) - len(readable),
        default=configurations[0] if configurations else None,
        others=[configuration.name for configuration in configurations[1:]],
        max_names=MAX_LISTED_RUNS,
    )


def _configurations(runs: Sequence[CardRun]) -> list[Configuration]:
    """The runs in as few configurations as there can be, that of the newest run as the default."""
    configurations: list[Configuration] = []
    for run in reversed(runs):
        is_added = any(configuration.add(run) for configuration in configurations)
        if not is_added:
            name = run.plan.run_id if configurations else "default"
            configurations.append(Configuration(name, [run], run.columns))
    return configurations


def _unite(first: pa.Schema, second: pa.Schema) -> pa.Schema | None:
    """The columns of both; None if they differ in a type that no reader could unite."""
    try:
        united = pa.unify_schemas([first, second])
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None
    is_plain = first == second or part_features(united) is not None
    return united if is_plain else None


def _front_matter(configurations: Sequence[Configuration], images: int) -> dict[str, object]:
    front: dict[str, object] = {
        "task_categories": ["text-to-image"],
        "tags": ["synthetic", "imagekiln"],
        "size_categories": [size_category(images)],
    }
    runs = chain.from_iterable(configuration.runs for configuration in configurations)
    licenses = {run.plan.job.card.license for run in runs}
    if len(licenses) == 1 and None not in licenses:
        front = {"license": licenses.pop()} | front
    front["configs"] = [configuration.describe() for configuration in configurations]
    declared = [
        {"config_name": configuration.name, "features": features}
        for configuration in configurations
        if (features := configuration.features()) is not None
    ]
    if declared:
        front["dataset_info"] = declared
    return front
