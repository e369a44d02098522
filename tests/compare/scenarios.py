"""What both states are asked to do. A scenario takes seconds, and works in a folder of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import pyarrow.parquet as pq
import yaml

from tests.compare.workspace import Workspace
from tests.pictures import half, noise

TINY = 16  # pixels: the size that the tiny models draw
COLORS = ("red", "blue", "green", "yellow", "purple", "orange", "black", "white", "gray", "pink")
CIRCLES = tuple(f"a {color} circle" for color in COLORS)
OWN_CHECK = """
def is_light(image, row):
    return bool(image.mean() > 140)
"""
OWN_SCORE = """
def brightness(images, specs):
    return [float(image.mean()) for image in images]
"""
RENDERED = {
    "name": "postcards",
    "prompts": "s3://prompts/postcards/{date}/*.parquet",
    "output": "s3://datasets/postcards",
    "model": {
        "id": "stabilityai/stable-diffusion-xl-base-1.0",
        "revision": "462165984030d82259a11f4367a4eed129e94a7b",
    },
    "defaults": {"negative_prompt": "{{workflow.name}} \"double\" 'single' $(id) é"},
    "cluster": {"namespace": "images", "parallelism": 8},
}
PROFILES = ("gpu", "h100", "cached-claim")


def demo(work: Workspace) -> None:
    """The bundled job on a few of its prompts. Its run id is derived from settings and input."""
    datasets = work.checkout / "datasets"
    settings = yaml.safe_load((datasets / "demo.yaml").read_text(encoding="utf-8"))
    settings |= {"prompts": "prompts.parquet", "output": work.output.uri}
    settings |= {"device": "cpu"}
    rows = pq.read_table(datasets / "prompts.parquet").slice(0, 10)
    pq.write_table(rows, work.folder / "prompts.parquet")
    work.imagekiln("run", work.job_file(settings), "--set", "defaults.steps=4")


def mixed(work: Workspace) -> None:
    """Rows with settings of their own, step by step as pods do it, and a lost part."""
    work.prompts(
        {
            "uid": list(range(100, 109)),
            "caption": CIRCLES[:9],
            "negative_prompt": [None, "a square", None, "", "text", None, None, None, "blur"],
            "seed": [None, 5, 6, None, 2**40, None, 7, 8, None],
            "width": [None, 96, 64, 96, None, None, 32, 64, 64],
            "height": [None, 64, 64, 64, None, None, 96, 64, 64],
            "steps": [None, 2, 4, 2, None, None, 2, 3, 5],
            "guidance": [None, 1.0, 5.5, 1.0, None, 0.0, 3.0, 3.0, None],
            "images": [1, 2, None, 1, None, 3, 1, 1, None],
            "campaign": [f"campaign {row % 3}" for row in range(9)],
            "score": [row / 8 for row in range(9)],
        }
    )
    columns = {"prompt": "caption", "id": "uid"}
    job = work.job("mixed", columns=columns, carry=["campaign", "score"], shard={"images": 20})
    run = work.run_uri("mixed")
    work.imagekiln("plan", job)
    work.imagekiln("generate", run, "--shard", "0")
    work.output.remove("mixed/images/00000-0001.parquet")
    work.imagekiln("aggregate", run)
    work.imagekiln("verify", run)
    work.imagekiln("generate", run, "--shard", "0")
    work.imagekiln("aggregate", run)
    work.imagekiln("verify", run)


def samplers(work: Workspace) -> None:
    """Samplers by the row, which are only planned."""
    work.prompts({"prompt": CIRCLES[:4], "sampler": ["ddim", None, "unipc", "no such"]})
    work.imagekiln("plan", work.job("samplers", limits={"rejected_share": 1}))


def webdataset(work: Workspace) -> None:
    """Small JPEGs in tars, each image saying only that a model made it."""
    work.prompts({"prompt": CIRCLES[:6], "id": COLORS[:6]})
    encoding = {"kind": "jpeg", "quality": 80, "subsampling": 420}
    job = work.job("webdataset", format="webdataset", encoding=encoding, metadata="mark")
    work.imagekiln("run", job)
    work.imagekiln("verify", work.run_uri("webdataset"))


def files(work: Workspace) -> None:
    """Lossless WebP, each image in a file, by a sampler that draws noise at each step."""
    work.prompts({"prompt": CIRCLES[:6], "id": COLORS[:6], "tag": COLORS[:6]})
    encoding = {"kind": "webp", "lossless": True}
    sampler = {"steps": 4, "sampler": "euler_a"}
    job = work.job("files", format="files", encoding=encoding, carry=["tag"], defaults=sampler)
    work.imagekiln("run", job)
    work.imagekiln("verify", work.run_uri("files"))


def pictures(work: Workspace) -> None:
    """Image-to-image, inpainting, ControlNet and IP-Adapter, alone and together."""
    sources = [None, noise(0), noise(1), noise(0), None, None, noise(2), None, b"no picture"]
    masks = [None, None, None, half(), None, None, None, half(), None]
    controls = [None, None, None, None, noise(3), None, noise(3), None, None]
    references = [None, None, None, None, None, noise(4), noise(4), None, None]
    work.prompts(
        {
            "prompt": CIRCLES[:9],
            "source_image": sources,
            "strength": [None, None, 0.5, 0.6, None, None, 0.5, None, None],
            "mask_image": masks,
            "control_image": controls,
            "reference_image": references,
        }
    )
    ip_adapter = {"id": "models/ip-adapter", "weight_name": "adapter.safetensors", "scale": 0.8}
    model = {
        "id": "models/sd",
        "dtype": "float32",
        "controlnet": {"id": "models/controlnet", "scale": 0.7},
        "ip_adapter": ip_adapter,
    }
    size = {"width": TINY, "height": TINY, "steps": 3}
    job = work.job("pictures", model=model, defaults=size, limits={"rejected_share": 1})
    work.imagekiln("run", job)
    work.imagekiln("verify", work.run_uri("pictures"))


def flux(work: Workspace) -> None:
    """A transformer, which is guided in another way than a UNet."""
    work.prompts({"prompt": CIRCLES[:3], "guidance": [None, 1.0, 3.5]})
    model = {"id": "models/flux", "dtype": "float32"}
    size = {"width": TINY, "height": TINY, "steps": 2}
    work.imagekiln("run", work.job("flux", model=model, defaults=size))


def loras(work: Workspace) -> None:
    """LoRAs for SDXL by the row, by default, none, and one that is not there."""
    texts = [None, "style:0.8", "style:0.5, detail:0.7", "", "detail", "no-such:1"]
    work.prompts({"prompt": CIRCLES[:6], "loras": texts})
    model = {
        "id": "models/sdxl",
        "dtype": "float32",
        "loras": {"style": {"id": "models/lora-style"}, "detail": {"id": "models/lora-detail"}},
    }
    size = {"width": TINY, "height": TINY, "steps": 2, "loras": "detail:0.3"}
    job = work.job("loras", model=model, defaults=size, limits={"rejected_share": 1})
    work.imagekiln("run", job)


def rejected(work: Workspace) -> None:
    """Rows that are refused, ids with other content, and images that are planned twice."""
    first, second = CIRCLES[:2]
    work.prompts(
        {
            "prompt": [first, first, None, " ", "x" * 5000, second, second, second, first, second],
            "id": ["a", "b", "c", "d", "e", "a", "g", "h", "i", "a"],
            "seed": [5, 5, 1, 1, 1, 1, -1, 1, 4, 1],
            "width": [None, None, None, None, None, None, None, 65, None, None],
            "steps": [None, None, None, None, None, None, None, None, None, 0],
            "images": [1, 1, 1, 1, 1, 1, 1, 1, 3, 1],
        }
    )
    job = work.job("rejected")
    work.imagekiln("plan", job)
    work.imagekiln("plan", job, "--set", "limits.rejected_share=1")


def retry(work: Workspace) -> None:
    """An image that fails whenever it is drawn, and a part that is lost and made again."""
    # The sampler of LCM takes no more than 50 steps.
    steps = [2, 2, 60, 2, 2, 2, 2, 2, 2, 2]
    work.prompts({"prompt": CIRCLES, "steps": steps})
    job = work.job("retry", defaults={"guidance": 1.5, "sampler": "lcm", "seed": 3})
    run = work.run_uri("retry")
    work.imagekiln("run", job)
    work.output.remove("retry/images/00000-0001.parquet")
    work.imagekiln("aggregate", run)
    work.imagekiln("retry", run)
    work.imagekiln("aggregate", run, "--failed-share", "0.2")
    work.imagekiln("verify", run)


def nights(work: Workspace) -> None:
    """Three nights: all is new, some is there already, all is there already."""
    work.prompts({"prompt": CIRCLES[:5]}, "prompts-2026-01-01.parquet")
    work.prompts({"prompt": CIRCLES[2:8]}, "prompts-2026-01-02.parquet")
    work.prompts({"prompt": CIRCLES[1:4]}, "prompts-2026-01-03.parquet")
    job = work.job("nights", run_id=None, prompts="prompts-{date}.parquet", skip_existing=True)
    work.imagekiln("run", job, "--date", "2026-01-01")
    work.imagekiln("plan", job, "--date", "2026-01-02", "--timezone", "Europe/Berlin")
    work.imagekiln("run", job, "--date", "2026-01-03")


def gates(work: Workspace) -> None:
    """Every gate that marks, on lossy WebP; the run fails by one of them, and is then accepted."""
    _write_module(work, "own_checks", OWN_CHECK)
    # The same seed with hardly another guidance gives hardly another image.
    work.prompts(
        {
            "prompt": [*CIRCLES[:4], *CIRCLES[:4]],
            "seed": [1, 2, 3, 4, 1, 2, 3, 4],
            "guidance": [3.0] * 4 + [3.01] * 4,
        }
    )
    marking = {
        "low_contrast": {"below": 0.5, "share": 0.0},
        "over_saturated": {},
        "near_duplicate": {},
        "checks": [{"name": "light", "entry": "own_checks:is_light"}],
    }
    settings = {"encoding": {"kind": "webp", "quality": 70}, "card": {"license": "cc0-1.0"}}
    sampler = {"steps": 10, "sampler": "dpmpp_2m_karras"}
    job = work.job("gates", gates=marking, metadata="none", defaults=sampler, **settings)
    work.imagekiln("run", job)
    work.imagekiln("aggregate", work.run_uri("gates"), "--accept", "low_contrast")


def best_of_three(work: Workspace) -> None:
    """Three candidates for each prompt, and the brightest of them."""
    _write_module(work, "own_scores", OWN_SCORE)
    work.prompts({"prompt": CIRCLES[:4], "seed": [1, None, 3, 4]})
    scores = {"light": {"kind": "own", "entry": "own_scores:brightness", "min": 20}}
    job = work.job("best", scores=scores, keep="best 1 of 3 by light")
    work.imagekiln("run", job)
    work.imagekiln("verify", work.run_uri("best"))


def passes(work: Workspace) -> None:
    """Images that are drawn over, enlarged and described before they are stored."""
    work.prompts({"prompt": CIRCLES[:4]})
    steps = {
        "larger": {"kind": "upscale", "id": "models/upscaler"},
        "fine": {"kind": "refine", "strength": 0.5, "width": TINY, "height": TINY},
        "words": {"kind": "caption", "id": "models/captioner", "max_tokens": 4},
    }
    size = {"width": TINY, "height": TINY, "steps": 2}
    model = {"id": "models/sd", "dtype": "float32"}
    job = work.job("passes", model=model, defaults=size, passes=steps)
    work.imagekiln("run", job)
    work.imagekiln("verify", work.run_uri("passes"))


def mistakes(work: Workspace) -> None:
    """What is refused: the exit code says so, and a sentence says why."""
    work.prompts({"prompt": CIRCLES[:2]})
    work.imagekiln("plan", work.job("misspelled", defaults={"stepz": 3}))
    work.imagekiln("plan", work.job("no-prompts", prompts="no-such.parquet"))
    work.imagekiln("plan", work.job("no-model", model={"id": "models/no-such"}))
    work.imagekiln("verify", work.run_uri("no-such"))
    work.imagekiln("retry", work.run_uri("no-such"))


def render(work: Workspace) -> None:
    """The YAML of a cluster's objects: once for each profile, on a schedule, and for events."""
    job = work.job_file(RENDERED)
    for profile in PROFILES:
        work.imagekiln("render", job, "--set", f"cluster.profile={profile}")
    cron = ("--cron", "30 1 * * *", "--timezone", "Europe/Berlin")
    work.imagekiln("render", job, *cron, "--set", "cluster.priority_class=batch")
    work.imagekiln("render", job, "--event")


def _write_module(work: Workspace, name: str, source: str) -> None:
    package = work.folder / "python"
    package.mkdir()
    (package / f"{name}.py").write_text(source, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A function that carries it out, and where the runs go."""

    play: Callable[[Workspace], None]
    store: Literal["disk", "s3"] = "disk"

    @property
    def name(self) -> str:
        """What the table and the snapshot's file call it."""
        return self.play.__name__ if self.store == "disk" else f"{self.play.__name__}-{self.store}"


ON_DISK = (
    demo, mixed, samplers, files, flux, loras, rejected, retry, gates, best_of_three, passes,
    mistakes, render,
)  # fmt: skip
ON_S3 = (demo, mixed, loras, webdataset, pictures, retry, best_of_three, passes, nights)
SCENARIOS = (
    *(Scenario(play) for play in ON_DISK),
    *(Scenario(play, "s3") for play in ON_S3),
)
