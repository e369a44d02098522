"""The card of an output: its successful runs as one dataset that a hub and `datasets` load as is.

It follows from the registry of runs and is written anew after each of them. It serves readers, and
no step relies on it: where it cannot be written, the run is still a success.
"""

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import yaml

from imagekiln.steps.aggregate.card import (
    card_template,
    content_facts,
    describe_configuration,
    run_file_patterns,
    size_category,
)
from imagekiln.steps.aggregate.summary import Summary, load_summary
from imagekiln.steps.errors import BadInput, KilnError, Missing
from imagekiln.steps.runs.added_columns import added_fields
from imagekiln.steps.runs.features import part_features, sample_features
from imagekiln.steps.runs.keys import CARD_KEY
from imagekiln.steps.runs.plan import Plan, load_plan
from imagekiln.steps.runs.registry import RunEntry, iter_successful, read_entries, register_run
from imagekiln.steps.runs.shard import read_row_schema
from imagekiln.steps.runs.webui_text import model_label
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store

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

    @property
    def files(self) -> list[str]:
        """The patterns of its files with images, from the output on."""
        patterns = run_file_patterns(self.plan.job, self.summary)
        return [f"{self.plan.run_id}/{pattern}" for pattern in patterns]


@dataclass(slots=True)
class Configuration:
    """Runs that load as one dataset, newest first: `columns` are those of all of them."""

    runs: list[CardRun]
    columns: pa.Schema

    @property
    def format(self) -> str:
        """The format of its runs."""
        return self.runs[0].plan.job.format

    @property
    def images(self) -> int:
        """The images of all its runs that are ok."""
        return sum(run.summary.ok for run in self.runs)

    @property
    def is_mixed(self) -> bool:
        """Whether the runs differ in their columns."""
        return any(run.columns != self.columns for run in self.runs)

    def content_facts(self) -> list[object]:
        """What is different wherever their files are different."""
        return [content_facts(run.plan, run.summary) for run in self.runs]

    def add(self, run: CardRun) -> bool:
        """Add a run where it fits; False where it does not."""
        job = self.runs[0].plan.job
        other = run.plan.job
        if job.encoding.kind != other.encoding.kind:
            return False
        united = _unite(self.columns, run.columns)
        # Readers of the other formats take the columns of their first file for those of all.
        fits = run.columns == self.columns or job.format == "parquet"
        if united is None or not fits:
            return False
        self.columns = united
        self.runs.append(run)
        return True

    def features(self) -> list[dict[str, object]] | None:
        """What the card declares of the columns; None where readers see it in the files."""
        job = self.runs[0].plan.job
        if job.format == "webdataset":
            return sample_features(self.columns, job.encoding)
        return part_features(self.columns) if self.is_mixed else None


def update_card_with(run_uri: str, plan: Plan) -> None:
    """Write the card of the output that has this run again; a copy elsewhere has none."""
    output = register_run(run_uri, RunEntry(plan.run_id, plan.job.name))
    if output is not None:
        update_output_card(output)


def update_output_card(output: str) -> None:
    """Write the card of an output, unless its README.md is somebody else's."""
    try:
        _write_current_card(open_store(output), output)
    except KilnError as error:
        log.warning("%s: the card of all runs was not written. %s", output, error)


def _write_current_card(store: Store, output: str) -> None:
    if not _is_own_card(store):
        return
    entries = read_entries(output)
    names = [entry.run_id for entry in iter_successful(output, entries)]
    with ThreadPoolExecutor(READERS) as pool:
        runs = list(pool.map(partial(_read_run, output), names))
    card = render_output_card(runs)
    content = card.encode(errors="replace")
    store.replace(CARD_KEY, content)


def _is_own_card(store: Store) -> bool:
    try:
        return MARK.encode() in store.read(CARD_KEY)
    except Missing:
        return True


def _read_run(output: str, run_id: str) -> CardRun | None:
    """A run; None where it cannot be read."""
    try:
        store = open_store(f"{output}/{run_id}")
        plan = load_plan(store)
        columns = pa.schema([*read_row_schema(store, plan), *added_fields(plan.job)])
        # Each of a thousand nights names all nights before it: together, that is half a million.
        return CardRun(replace(plan, existing_runs=()), load_summary(store), columns)
    except BadInput as error:
        log.warning("%s: the card of all runs leaves out %s. %s", output, run_id, error)
        return None


def render_output_card(runs: Sequence[CardRun | None]) -> str:
    """The card of these runs, oldest first, as Markdown. None stands for one that is unreadable."""
    readable = [run for run in runs if run is not None]
    with_images = [run for run in readable if run.summary.ok]
    loadable, separate = _split_by_reader(with_images or readable[-1:])
    configurations = _configurations(loadable)
    images = sum(run.summary.ok for run in readable)
    return card_template("output_card.md.j2").render(
        front=yaml.safe_dump(_front_matter(configurations, images), sort_keys=False),
        mark=MARK,
        name=readable[-1].plan.job.name if readable else "images",
        images=images,
        runs=readable[::-1][:MAX_LISTED_RUNS],
        run_count=len(readable),
        unreadable=len(runs) - len(readable),
        default=configurations[0][1] if configurations else None,
        others=[name for name, _ in configurations[1:]],
        separate=separate[::-1],
        max_names=MAX_LISTED_RUNS,
    )


def _split_by_reader(runs: Sequence[CardRun]) -> tuple[list[CardRun], list[CardRun]]:
    """The runs in the format of the newest, and those in another format.

    `datasets` reads all configurations of a card with the reader of the first one.
    """
    same_format: list[CardRun] = []
    separate: list[CardRun] = []
    for run in runs:
        is_same = run.plan.job.format == runs[-1].plan.job.format
        (same_format if is_same else separate).append(run)
    return same_format, separate


def _configurations(runs: Sequence[CardRun]) -> list[tuple[str, Configuration]]:
    """The runs in as few configurations as there can be, that of the newest run as the default."""
    configurations: list[Configuration] = []
    for run in reversed(runs):
        if not any(configuration.add(run) for configuration in configurations):
            configurations.append(Configuration([run], run.columns))
    names = [configuration.runs[0].plan.run_id for configuration in configurations]
    names[:1] = ["default"] if names else []
    return list(zip(names, configurations, strict=True))


def _unite(first: pa.Schema, second: pa.Schema) -> pa.Schema | None:
    """The columns of both; None where they differ in a type that no reader could unite."""
    try:
        united = pa.unify_schemas([first, second])
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return None
    is_plain = first == second or part_features(united) is not None
    return united if is_plain else None


def _front_matter(
    configurations: Sequence[tuple[str, Configuration]], images: int
) -> dict[str, object]:
    front: dict[str, object] = {
        "task_categories": ["text-to-image"],
        "tags": ["synthetic", "imagekiln"],
        "size_categories": [size_category(images)],
    }
    licenses = {
        run.plan.job.card.license
        for _, configuration in configurations
        for run in configuration.runs
    }
    if len(licenses) == 1 and None not in licenses:
        front = {"license": licenses.pop()} | front
    front["configs"] = [
        describe_configuration(
            name, _files(configuration), configuration.images, configuration.content_facts()
        )
        for name, configuration in configurations
    ]
    declared = list(_declared_features(configurations))
    if declared:
        front["dataset_info"] = declared
    return front


def _declared_features(
    configurations: Sequence[tuple[str, Configuration]],
) -> Iterator[dict[str, object]]:
    for name, configuration in configurations:
        features = configuration.features()
        if features is not None and configuration.runs[0].summary.ok:
            yield {"config_name": name, "features": features}


def _files(configuration: Configuration) -> list[str]:
    """The files of all runs of a configuration, oldest first."""
    return [pattern for run in reversed(configuration.runs) for pattern in run.files]
