"""What a person asks for: the settings of a job, with their bounds beside them."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from imagekiln.steps.job.adapters import (
    AdapterName,
    ControlNetSettings,
    IpAdapterSettings,
    LoraSettings,
)
from imagekiln.steps.job.columns import GUIDANCE, IMAGES_PER_ROW, STEPS
from imagekiln.steps.job.fields import (
    Integer,
    NonEmptyText,
    Number,
    ObjectName,
    PositiveInteger,
    Settings,
    Share,
)
from imagekiln.steps.job.gates import GateSettings
from imagekiln.steps.job.output import C2paSettings, Encoding, MetadataLevel, Png
from imagekiln.steps.job.samplers import Sampler
from imagekiln.steps.job.speed import SpeedSettings

DEFAULT_BATCH_IMAGES = 8  # images
MAX_SHARD_IMAGES = 100_000  # a shard's rows are held in memory


class ColumnNames(Settings):
    """What the input calls our columns. A column that is not there is taken as all null."""

    prompt: NonEmptyText = "prompt"
    id: NonEmptyText = "id"
    negative_prompt: NonEmptyText = "negative_prompt"
    seed: NonEmptyText = "seed"
    width: NonEmptyText = "width"
    height: NonEmptyText = "height"
    steps: NonEmptyText = "steps"
    guidance: NonEmptyText = "guidance"
    sampler: NonEmptyText = "sampler"
    images: NonEmptyText = "images"
    loras: NonEmptyText = "loras"
    strength: NonEmptyText = "strength"
    source_image: NonEmptyText = "source_image"
    mask_image: NonEmptyText = "mask_image"
    control_image: NonEmptyText = "control_image"
    reference_image: NonEmptyText = "reference_image"


class ModelSettings(Settings):
    """The diffusers pipeline to load."""

    id: NonEmptyText = Field(
        description="A local folder, a hub id such as org/name, or bundled:shapes."
    )
    revision: str | None = Field(
        None,
        pattern=r"^[0-9a-f]{40}$",
        description="The commit of a hub model, 40 hexadecimal digits.",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    controlnet: ControlNetSettings | None = Field(
        None, description="What reads the pictures of control_image."
    )
    ip_adapter: IpAdapterSettings | None = Field(
        None, description="What reads the pictures of reference_image."
    )
    loras: dict[AdapterName, LoraSettings] = Field(
        {}, description="LoRAs by the names that rows call them by."
    )


class RowDefaults(Settings):
    """What a prompt row gets where it says nothing itself."""

    steps: Integer = Field(30, ge=STEPS.lowest, le=STEPS.highest)
    guidance: Number = Field(5.0, ge=GUIDANCE.lowest, le=GUIDANCE.highest)
    width: PositiveInteger | None = Field(
        None, description="Pixels; the model's own size where absent."
    )
    height: PositiveInteger | None = Field(
        None, description="Pixels; the model's own size where absent."
    )
    negative_prompt: str = ""
    sampler: Sampler = "default"
    strength: Number = Field(
        0.8,
        gt=0,
        le=1,
        description="How much of a source image is drawn anew, from nothing to all.",
    )
    images_per_prompt: Integer = Field(1, ge=IMAGES_PER_ROW.lowest, le=IMAGES_PER_ROW.highest)
    seed: Integer = Field(0, ge=0, lt=2**63)
    loras: str = Field("", description="LoRAs and their weights, such as style:0.8, detail:0.5.")


class CardSettings(Settings):
    """What the dataset's card says beside what the run knows."""

    license: str | None = Field(
        None,
        pattern=r"^[a-z0-9][a-z0-9.+-]{0,63}$",
        description="A licence as Hugging Face names it, such as cc0-1.0.",
    )


class ShardSettings(Settings):
    """How much one pod does: a number of images, or minutes of work."""

    images: Annotated[PositiveInteger, Field(le=MAX_SHARD_IMAGES)] | None = None
    minutes: Number | None = Field(None, gt=0)
    seconds_per_image: Number | None = Field(
        None, gt=0, description="What an image of the default size and steps takes on one GPU."
    )

    @model_validator(mode="after")
    def _require_one_size(self) -> "ShardSettings":
        if self.images is not None and self.minutes is not None:
            raise ValueError("has both images and minutes; keep one of them")
        return self


class PartSettings(Settings):
    """How much one commit writes: a minute or two of work."""

    images: PositiveInteger = Field(64, le=10_000)


class BatchSettings(Settings):
    """How many images one call of the denoiser makes: a number, or what was tuned for the model, shape and GPU."""

    images: Annotated[PositiveInteger, Field(le=1024)] | None = Field(
        None, description=f"As tuned where absent; {DEFAULT_BATCH_IMAGES} where nothing is known."
    )
    tuning: NonEmptyText | None = Field(
        None, description="The file that `imagekiln tune` wrote: a path or URI."
    )
    gpu: NonEmptyText | None = Field(
        None, description="The GPU's name as nvidia-smi has it, where the tuning file has several."
    )


class JobLimits(Settings):
    """What is refused, and how much of it is too much."""

    prompt_chars: PositiveInteger = 4000
    pixels: PositiveInteger = Field(4096 * 4096, description="The most that one image may have.")
    picture_bytes: PositiveInteger = Field(
        32 * 2**20, le=2**30, description="The most that a picture of the input may have."
    )
    # Pillow itself takes none above twice its MAX_IMAGE_PIXELS.
    picture_pixels: PositiveInteger = Field(
        8192 * 8192, le=178_956_970, description="The most that a picture of the input may have."
    )
    rejected_share: Share = Field(0.01, description="Planning fails when more rows are rejected.")
    failed_share: Share = Field(0.0, description="The run fails when more images are not ok.")


class ClusterSettings(Settings):
    """Where and how the job runs on a cluster. It decides no pixels, so no plan holds it."""

    namespace: str = Field(
        "imagekiln",
        pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
        description="At most 63 lower-case letters, digits and, between them, hyphens.",
    )
    profile: NonEmptyText = Field(
        "gpu", description="What a pod asks for a GPU: a bundled profile, or the path of your own."
    )
    parallelism: PositiveInteger = Field(16, le=1000, description="The most pods at once.")
    priority: int = Field(
        0, description="Among workflows that wait for the controller, higher goes first."
    )
    priority_class: ObjectName | None = Field(
        None, description="The pods' PriorityClass, where the profile has none."
    )
    cpu_image: NonEmptyText | None = Field(
        None, description="The image of plan and aggregate, not the profile's."
    )
    gpu_image: NonEmptyText | None = Field(
        None, description="The image of generate, not the profile's."
    )


class Job(Settings):
    """A batch of images: prompts, model, settings and where the dataset goes."""

    name: str = Field(
        pattern=r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$",
        description="At most 40 lower-case letters, digits and, between them, hyphens.",
    )
    prompts: NonEmptyText | Annotated[tuple[NonEmptyText, ...], Field(min_length=1)] = Field(
        description="Parquet: paths, globs or URIs."
    )
    output: NonEmptyText = Field(description="The folder or URI that holds the runs.")
    model: ModelSettings
    columns: ColumnNames = ColumnNames()
    carry: tuple[NonEmptyText, ...] = Field(
        (), description="Other input columns to keep in the manifest."
    )
    defaults: RowDefaults = RowDefaults()
    format: Literal["parquet", "webdataset", "files"] = Field(
        "parquet",
        description="Images in Parquet, in a tar for each part, or each in a file of its own.",
    )
    card: CardSettings = CardSettings()
    encoding: Encoding = Png()
    metadata: MetadataLevel = "all"
    c2pa: C2paSettings | None = Field(
        None, description="Sign each image, so that its origin can be checked."
    )
    shard: ShardSettings = ShardSettings()
    part: PartSettings = PartSettings()
    batch: BatchSettings = BatchSettings()
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    threads: PositiveInteger | None = Field(
        None, description="CPU threads; part of what makes bytes equal."
    )
    speed: SpeedSettings = SpeedSettings()
    limits: JobLimits = JobLimits()
    gates: GateSettings = GateSettings()
    price_per_hour: Number | None = Field(
        None, ge=0, description="What a device costs an hour, for the report."
    )
    run_id: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="At most 100 letters, digits, dots, hyphens and underscores, the first a letter or digit.",
    )
    skip_existing: bool = Field(
        default=False,
        description="Plan only images that no successful run under this output holds.",
    )
    unconditional_writes: Literal["refuse", "accept"] = Field(
        "refuse",
        description="Accept a store without conditional PUT: two writers may then collide.",
    )
    cluster: ClusterSettings = ClusterSettings()

    @field_validator("carry")
    @classmethod
    def _require_unique_columns(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(columns)) < len(columns):
            raise ValueError("names a column twice; name it once")
        return columns

    @model_validator(mode="after")
    def _require_metadata_for_c2pa(self) -> "Job":
        if self.c2pa is not None and self.metadata == "none":
            raise ValueError(
                "has c2pa, which marks each image, and metadata: none; remove one of them"
            )
        return self

    @property
    def prompt_patterns(self) -> tuple[str, ...]:
        """The places to read prompts from, as a tuple in any case."""
        return (self.prompts,) if isinstance(self.prompts, str) else self.prompts

    def without_cluster(self) -> "Job":
        """The job as a plan holds it: the same wherever it runs."""
        return self.model_copy(update={"cluster": ClusterSettings()})
