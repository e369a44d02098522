"""Settings of a job, with their bounds."""

import operator
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from imagekiln.steps.job.adapters import (
    AdapterName,
    ControlNetSettings,
    IpAdapterSettings,
    LoraSettings,
)
from imagekiln.steps.job.columns import (
    dataset_name,
)
from imagekiln.steps.job.execution import (
    BatchSettings,
    BudgetSettings,
    JobLimits,
    PartSettings,
    PricePerHour,
    ShardSettings,
    SpeedSettings,
)
from imagekiln.steps.job.fields import (
    NO_MODEL_ID,
    RUN_ID_PATTERN,
    ImageReference,
    Location,
    NonEmptyText,
    ObjectName,
    PipelineSettings,
    PositiveInteger,
    Settings,
    is_unset,
    require_unique,
)
from imagekiln.steps.job.gates import Gate, GateSettings
from imagekiln.steps.job.output import (
    MAX_EXPORTS,
    C2paSettings,
    Encoding,
    MetadataLevel,
    Png,
    RunExport,
    check_exports,
)
from imagekiln.steps.job.passes import (
    MAX_PASSES,
    AnyPass,
    PassName,
    RefinePass,
    check_passes,
)
from imagekiln.steps.job.prompts import (
    RECIPE_COLUMNS,
    REWRITE_COLUMNS,
    PromptList,
    PromptTemplate,
    RewriteSettings,
    RunPrompts,
)
from imagekiln.steps.job.rows import ColumnNames, RowDefaults
from imagekiln.steps.job.scores import MAX_SCORES, AnyScore, KeepSettings, ScoreName, check_scores

MAX_SAMPLE_IMAGES = 1000  # of a preview, or a canary


class ModelSettings(PipelineSettings):
    """The diffusers pipeline of a job, and the networks added to it."""

    controlnet: ControlNetSettings | None = Field(
        default=None, description="The network that reads the images of control_image."
    )
    ip_adapter: IpAdapterSettings | None = Field(
        default=None, description="The network that reads the images of reference_images."
    )
    loras: dict[AdapterName, LoraSettings] = Field(
        default={}, description="LoRAs, by the names that rows use for them."
    )


NO_MODEL = ModelSettings(id=NO_MODEL_ID, dtype="float32")


class CardSettings(Settings):
    """Statements of the dataset card that do not follow from the run."""

    license: str | None = Field(
        default=None,
        pattern=r"^[a-z0-9][a-z0-9.+-]{0,63}$",
        description="A license as Hugging Face names it, such as cc0-1.0.",
    )


class ClusterSettings(Settings):
    """Cluster settings of a job. Plans do not contain them, since no image depends on them."""

    namespace: str = Field(
        default="imagekiln",
        pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
        description="At most 63 lower-case letters, digits and hyphens, no hyphen first or last.",
    )
    profile: NonEmptyText = Field(
        default="gpu",
        description="The GPU profile: the name of a bundled one, or the path of your own.",
    )
    parallelism: PositiveInteger = Field(
        default=16, le=1000, description="The most pods at a time."
    )
    canary: Annotated[PositiveInteger, Field(le=MAX_SAMPLE_IMAGES)] | None = Field(
        default=None,
        exclude_if=is_unset,  # so that workflows keep their names
        description="The images of a sample that is made and judged before all others.",
    )
    priority_class: ObjectName | None = Field(
        default=None, description="The PriorityClass of the pods, if the profile has none."
    )
    cpu_image: ImageReference | None = Field(
        default=None, description="The image of plan and aggregate, in place of the profile's."
    )
    gpu_image: ImageReference | None = Field(
        default=None, description="The image of generate, in place of the profile's."
    )


def _same_folder(one: str, other: str) -> bool:
    first, second = (
        place.rstrip("/") if "://" in place else str(Path(place).absolute())
        for place in (one, other)
    )
    return first == second


def _prompts_kind(value: object) -> str:
    """Return the kind of a job's prompts, to report only mistakes of that kind."""
    if isinstance(value, PromptList) or (isinstance(value, dict) and "texts" in value):
        return "prompts in the job"
    if isinstance(value, RunPrompts) or (isinstance(value, dict) and value.keys() == {"run"}):
        return "images of a run"
    if isinstance(value, dict | PromptTemplate):
        return "prompts from templates"
    return "places" if isinstance(value, list | tuple) else "place"


class Job(Settings):
    """A job: prompts, a model, settings, and the output location."""

    name: str = Field(
        pattern=r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$",
        description="At most 40 lower-case letters, digits and hyphens, no hyphen first or last.",
    )
    prompts: (
        Annotated[Location, Tag("place")]
        | Annotated[tuple[Location, ...], Field(min_length=1), Tag("places")]
        | Annotated[PromptTemplate, Tag("prompts from templates")]
        | Annotated[PromptList, Tag("prompts in the job")]
        | Annotated[RunPrompts, Tag("images of a run")]
    ) = Field(
        discriminator=Discriminator(_prompts_kind),
        description="Paths, globs, folders or URIs of Parquet, CSV, JSON or Arrow files, a "
        "template, some texts, or the images of a run.",
    )
    # Omitted from the serialized job if it is not set, to keep run ids stable.
    rewrite: RewriteSettings | None = Field(
        default=None,
        exclude_if=is_unset,
        description="A language model that rewrites each prompt before the run is planned.",
    )
    output: Location = Field(description="The folder or URI that holds the runs.")
    model: ModelSettings = Field(
        default=NO_MODEL,
        description="The diffusers pipeline. Without one, the images of prompts.run are not drawn "
        "but taken as they are, for passes, scores and another encoding.",
    )
    columns: ColumnNames = ColumnNames()
    carry: tuple[NonEmptyText, ...] = Field(
        default=(), description="Other input columns to keep in the manifest."
    )
    defaults: RowDefaults = RowDefaults()
    export: Annotated[tuple[RunExport, ...], Field(max_length=MAX_EXPORTS)] = Field(
        default=(),
        exclude_if=operator.not_,
        description="Copies of each finished run, such as WebDataset or folders of pictures.",
    )
    card: CardSettings = CardSettings()
    encoding: Encoding = Png()
    metadata: MetadataLevel = "all"
    c2pa: C2paSettings | None = Field(
        default=None, description="Signs each image, so that its origin can be verified."
    )
    shard: ShardSettings = ShardSettings()
    part: PartSettings = PartSettings()
    batch: BatchSettings = BatchSettings()
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    speed: SpeedSettings = SpeedSettings()
    limits: JobLimits = JobLimits()
    gates: GateSettings = GateSettings()
    scores: Annotated[dict[ScoreName, AnyScore], Field(max_length=MAX_SCORES)] = Field(
        default={},
        exclude_if=operator.not_,
        description="Numbers that are computed of each image, by the names of their columns.",
    )
    keep: KeepSettings | None = Field(
        default=None,
        exclude_if=is_unset,
        description="Keeps the best of several images of a prompt: best 1 of 4 by clip_score.",
    )
    passes: Annotated[dict[PassName, AnyPass], Field(max_length=MAX_PASSES)] = Field(
        default={},
        exclude_if=operator.not_,
        description="What is done to each image before it is stored, in this order.",
    )
    price_per_hour: PricePerHour | None = Field(
        default=None,
        description="The price of a device per hour: a number, or one for each name of a GPU in "
        "nvidia-smi or in the node label nvidia.com/gpu.product.",
    )
    budget: BudgetSettings = Field(
        default=BudgetSettings(),
        exclude_if=lambda budget: not budget.is_limited,
        description="The most that the run may take or cost.",
    )
    run_id: str | None = Field(
        default=None,
        pattern=RUN_ID_PATTERN,
        description=(
            "At most 100 letters, digits, dots, hyphens and underscores, a letter or digit first."
        ),
    )
    skip_existing: bool = Field(
        default=False,
        description="Skips images that a successful run under this output already has.",
    )
    unconditional_writes: Literal["refuse", "accept"] = Field(
        default="refuse",
        description="accept allows a store without conditional PUT: two writers can collide.",
    )
    cluster: ClusterSettings = ClusterSettings()

    @field_validator("model", mode="before")
    @classmethod
    def _read_null(cls, model: object) -> object:
        return NO_MODEL if model is None else model

    @field_validator("carry")
    @classmethod
    def _require_unique_columns(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        require_unique("column", columns)
        return columns

    @model_validator(mode="after")
    def _check_groups(self) -> "Job":
        rewritten = next((name for name in REWRITE_COLUMNS if name in self.carry), None)
        if self.rewrite is not None and rewritten is not None:
            raise ValueError(
                f'has rewrite, which writes column "{rewritten}", and carries another; '
                "rename that in the table"
            )
        if self.c2pa is not None and self.metadata == "none":
            raise ValueError(
                "has c2pa, which marks each image, and metadata: none; remove one of them"
            )
        if self.budget.cost is not None and self.price_per_hour is None:
            raise ValueError("has budget.cost and no price; set price_per_hour")
        if self.refines_with_own_model and (self.model.controlnet or self.model.ip_adapter):
            raise ValueError(
                "has a pass of the kind refine, which does not work with model.controlnet or "
                "model.ip_adapter; give the pass a model of its own, or remove one of them"
            )
        if self.source_run is not None and _same_folder(self.source_run, self.output):
            raise ValueError(
                "has prompts.run and output in one folder, so that each run would take the images "
                "of those before it; name one of the runs, or another output"
            )
        self._check_model()
        check_scores(self.scores, self.keep, {*self.gates.all_gates, *self.carried_names})
        check_passes(self.passes, self.all_gates, self.carried_names)
        check_exports(self.export, self.output)
        return self

    def _check_model(self) -> None:
        """Raise ValueError if there is no model, and a setting that needs one."""
        if self.draws:
            return
        if self.source_run is None:
            raise ValueError("has no model; add one (only a job over prompts.run can do without)")
        of_model = {
            "other settings of model": self.model != NO_MODEL,
            "defaults": self.defaults != RowDefaults(),
            "speed": self.speed != SpeedSettings() and not self.pass_models,
            "keep": self.keep is not None,
            "batch.tuning": self.batch.tuning is not None,
            "prompts.sweep": bool(self.swept),
            "a refine pass without a model": self.refines_with_own_model,
        }
        needless = next((name for name, is_there in of_model.items() if is_there), None)
        if needless is not None:
            raise ValueError(f"has no model, and {needless}; remove that, or set model")

    @property
    def draws(self) -> bool:
        """Return whether the job has a model that draws, rather than images of a run alone."""
        return self.model.id != NO_MODEL_ID

    @property
    def pass_models(self) -> dict[str, PipelineSettings]:
        """The diffusion models of passes that have their own, by the names of the passes."""
        return {
            name: settings.model
            for name, settings in self.passes.items()
            if isinstance(settings, RefinePass) and settings.model is not None
        }

    @property
    def refines_with_own_model(self) -> bool:
        """Return whether a refine pass uses the job's own model."""
        return any(
            isinstance(settings, RefinePass) and settings.model is None
            for settings in self.passes.values()
        )

    @property
    def marking_gates(self) -> dict[str, Gate]:
        """Gates and scores that mark images, by the names of their marks."""
        return {**self.gates.marking_gates, **self.scores}

    @property
    def all_gates(self) -> dict[str, Gate]:
        """All gates and scores by name, including gates that set a status."""
        return {**self.gates.all_gates, **self.scores}

    @property
    def candidates(self) -> int:
        """Number of images generated per requested image."""
        return 1 if self.keep is None else self.keep.of

    @property
    def swept(self) -> dict[str, tuple[int | float | str, ...]]:
        """Values of each column that the job's sweep sets."""
        return self.prompts.sweep.values if isinstance(self.prompts, PromptTemplate) else {}

    @property
    def source_run(self) -> str | None:
        """The run, or the output, whose images are the prompt rows; None if there is none."""
        if isinstance(self.prompts, RunPrompts | PromptTemplate):
            return self.prompts.run
        return None

    @property
    def prompt_patterns(self) -> tuple[str, ...]:
        """Locations in `prompts`. For a template, its table or run and its wildcard files."""
        if isinstance(self.prompts, str):
            return (self.prompts,)
        if isinstance(self.prompts, PromptList):
            return ()
        if isinstance(self.prompts, RunPrompts):
            return (self.prompts.run,)
        if isinstance(self.prompts, PromptTemplate):
            others = [self.prompts.run, self.prompts.wildcards]
            return (*self.prompts.table_patterns, *filter(None, others))
        return self.prompts

    @property
    def carried_columns(self) -> tuple[str, ...]:
        """Columns in `carry`, and the columns that describe how a prompt was made."""
        rewritten = () if self.rewrite is None else REWRITE_COLUMNS
        return (*self.read_columns, *rewritten)

    @property
    def carried_names(self) -> tuple[str, ...]:
        """Names of the carried columns in the dataset."""
        return tuple(map(dataset_name, self.carried_columns))

    @property
    def read_columns(self) -> tuple[str, ...]:
        """Carried columns of the input, before prompts are rewritten."""
        if isinstance(self.prompts, PromptTemplate):
            return (*self.carry, *(name for name in RECIPE_COLUMNS if name not in self.carry))
        return self.carry

    def without_cluster(self) -> "Job":
        """Return the job as stored in a plan, without cluster, budget and export settings."""
        outside = {"cluster": ClusterSettings(), "budget": BudgetSettings(), "export": ()}
        return self.model_copy(update=outside)
