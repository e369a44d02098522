"""What a person asks for: the settings of a job, with their bounds beside them."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from imagekiln.steps.adapters import AdapterName, ControlNet, IpAdapter, Lora
from imagekiln.steps.encodings import Encoding, Png
from imagekiln.steps.gate_settings import Gates
from imagekiln.steps.metadata import C2pa, Metadata
from imagekiln.steps.samplers import Sampler
from imagekiln.steps.speed import Speed
from imagekiln.steps.values import Number, ObjectName, Positive, Settings, Share, Text, Whole

UNTUNED_BATCH = 8  # images
MOST_SHARD_IMAGES = 100_000  # a shard's rows are held in memory


class Columns(Settings):
    """What the input calls our columns. A column that is not there is taken as all null."""

    prompt: Text = "prompt"
    id: Text = "id"
    negative_prompt: Text = "negative_prompt"
    seed: Text = "seed"
    width: Text = "width"
    height: Text = "height"
    steps: Text = "steps"
    guidance: Text = "guidance"
    sampler: Text = "sampler"
    images: Text = "images"
    loras: Text = "loras"
    strength: Text = "strength"
    source_image: Text = "source_image"
    mask_image: Text = "mask_image"
    control_image: Text = "control_image"
    reference_image: Text = "reference_image"


class Model(Settings):
    """The diffusers pipeline to load."""

    id: Text = Field(description="A local folder, a hub id such as org/name, or bundled:shapes.")
    revision: str | None = Field(
        None, pattern=r"^[0-9a-f]{40}$", description="The commit of a hub model, 40 hexadecimal digits."
    )
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    controlnet: ControlNet | None = Field(None, description="What reads the pictures of control_image.")
    ip_adapter: IpAdapter | None = Field(None, description="What reads the pictures of reference_image.")
    loras: dict[AdapterName, Lora] = Field({}, description="LoRAs by the names that rows call them by.")


class Defaults(Settings):
    """What a prompt row gets where it says nothing itself."""

    steps: Whole = Field(30, ge=1, le=1000)
    guidance: Number = Field(5.0, ge=0, le=100)
    width: Positive | None = Field(None, description="Pixels; the model's own size where absent.")
    height: Positive | None = Field(None, description="Pixels; the model's own size where absent.")
    negative_prompt: str = ""
    sampler: Sampler = "default"
    strength: Number = Field(
        0.8, gt=0, le=1, description="How much of a source image is drawn anew, from nothing to all."
    )
    images_per_prompt: Whole = Field(1, ge=1, le=10_000)
    seed: Whole = Field(0, ge=0, lt=2**63)
    loras: str = Field("", description="LoRAs and their weights, such as style:0.8, detail:0.5.")


class Card(Settings):
    """What the dataset's card says beside what the run knows."""

    license: str | None = Field(
        None,
        pattern=r"^[a-z0-9][a-z0-9.+-]{0,63}$",
        description="A licence as Hugging Face names it, such as cc0-1.0.",
    )


class Shard(Settings):
    """How much one pod does: a number of images, or minutes of work."""

    images: Annotated[Positive, Field(le=MOST_SHARD_IMAGES)] | None = None
    minutes: Number | None = Field(None, gt=0)
    seconds_per_image: Number | None = Field(
        None, gt=0, description="What an image of the default size and steps takes on one GPU."
    )

    @model_validator(mode="after")
    def _one_size(self) -> "Shard":
        if self.images is not None and self.minutes is not None:
            raise ValueError("has both images and minutes; keep one of them")
        return self


class Part(Settings):
    """How much one commit writes: a minute or two of work."""

    images: Positive = Field(64, le=10_000)


class Batch(Settings):
    """How many images one call of the denoiser makes: a number, or what was tuned for the model, shape and GPU."""

    images: Annotated[Positive, Field(le=1024)] | None = Field(
        None, description=f"As tuned where absent; {UNTUNED_BATCH} where nothing is known."
    )
    tuning: Text | None = Field(None, description="The file that `imagekiln tune` wrote: a path or URI.")
    gpu: Text | None = Field(
        None, description="The GPU's name as nvidia-smi has it, where the tuning file has several."
    )


class Limits(Settings):
    """What is refused, and how much of it is too much."""

    prompt_chars: Positive = 4000
    pixels: Positive = Field(4096 * 4096, description="The most that one image may have.")
    picture_bytes: Positive = Field(32 * 2**20, le=2**30, description="The most that a picture of the input may have.")
    # Pillow itself takes none above twice its MAX_IMAGE_PIXELS.
    picture_pixels: Positive = Field(
        8192 * 8192, le=178_956_970, description="The most that a picture of the input may have."
    )
    rejected_share: Share = Field(0.01, description="Planning fails when more rows are rejected.")
    failed_share: Share = Field(0.0, description="The run fails when more images are not ok.")


class Cluster(Settings):
    """Where and how the job runs on a cluster. It decides no pixels, so no plan holds it."""

    namespace: str = Field(
        "imagekiln",
        pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$",
        description="At most 63 lower-case letters, digits and, between them, hyphens.",
    )
    profile: Text = Field("gpu", description="What a pod asks for a GPU: a bundled profile, or the path of your own.")
    parallelism: Positive = Field(16, le=1000, description="The most pods at once.")
    priority: int = Field(0, description="Among workflows that wait for the controller, higher goes first.")
    priority_class: ObjectName | None = Field(None, description="The pods' PriorityClass, where the profile has none.")
    cpu_image: Text | None = Field(None, description="The image of plan and aggregate, not the profile's.")
    gpu_image: Text | None = Field(None, description="The image of generate, not the profile's.")


class Job(Settings):
    """A batch of images: prompts, model, settings and where the dataset goes."""

    name: str = Field(
        pattern=r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$",
        description="At most 40 lower-case letters, digits and, between them, hyphens.",
    )
    prompts: Text | Annotated[tuple[Text, ...], Field(min_length=1)] = Field(
        description="Parquet: paths, globs or URIs."
    )
    output: Text = Field(description="The folder or URI that holds the runs.")
    model: Model
    columns: Columns = Columns()
    carry: tuple[Text, ...] = Field((), description="Other input columns to keep in the manifest.")
    defaults: Defaults = Defaults()
    format: Literal["parquet", "webdataset", "files"] = Field(
        "parquet", description="Images in Parquet, in a tar for each part, or each in a file of its own."
    )
    card: Card = Card()
    encoding: Encoding = Png()
    metadata: Metadata = "all"
    c2pa: C2pa | None = Field(None, description="Sign each image, so that its origin can be checked.")
    shard: Shard = Shard()
    part: Part = Part()
    batch: Batch = Batch()
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    threads: Positive | None = Field(None, description="CPU threads; part of what makes bytes equal.")
    speed: Speed = Speed()
    limits: Limits = Limits()
    gates: Gates = Gates()
    price_per_hour: Number | None = Field(None, ge=0, description="What a device costs an hour, for the report.")
    run_id: str | None = Field(
        None,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        description="At most 100 letters, digits, dots, hyphens and underscores, the first a letter or digit.",
    )
    skip_existing: bool = Field(
        default=False, description="Plan only images that no successful run under this output holds."
    )
    unconditional_writes: Literal["refuse", "accept"] = Field(
        "refuse", description="Accept a store without conditional PUT: two writers may then collide."
    )
    cluster: Cluster = Cluster()

    @field_validator("carry")
    @classmethod
    def _carried_once(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(columns)) < len(columns):
            raise ValueError("names a column twice; name it once")
        return columns

    @model_validator(mode="after")
    def _nothing_signed(self) -> "Job":
        if self.c2pa is not None and self.metadata == "none":
            raise ValueError("has c2pa, which marks each image, and metadata: none; remove one of them")
        return self

    @property
    def patterns(self) -> tuple[str, ...]:
        """The places to read prompts from, as a tuple in any case."""
        return (self.prompts,) if isinstance(self.prompts, str) else self.prompts

    def without_cluster(self) -> "Job":
        """The job as a plan holds it: the same wherever it runs."""
        return self.model_copy(update={"cluster": Cluster()})
