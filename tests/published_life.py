"""The life of a dataset on S3 from templates to a hub, in steps, for scenarios as `tests/life` is.

Prompts come from templates and wildcards in the bucket and are rewritten by a tiny language model;
the best of several candidates is kept. The dataset is exported, images of it are forgotten, the
exports are pushed to a hub on loopback, and a gallery shows them.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache
from threading import Lock
from typing import ClassVar

import torch

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.errors import TryAgain
from imagekiln.steps.export.push import push
from imagekiln.steps.export.settings import read_settings
from imagekiln.steps.export.step import export
from imagekiln.steps.gallery.answers import answer
from imagekiln.steps.gallery.gallery import open_gallery
from imagekiln.steps.gallery.queries import MAX_PAGE_IMAGES, PageQuery
from imagekiln.steps.generate.encoder import OutputEncoder
from imagekiln.steps.generate.scores import load_scorers, score_and_rank
from imagekiln.steps.job.job import Job
from imagekiln.steps.job.rewrite import RewriteSettings
from imagekiln.steps.maintain.forget import ForgetSelection, forget
from imagekiln.steps.maintain.retry import plan_next_round
from imagekiln.steps.maintain.verify import verify
from imagekiln.steps.plan.step import make_plan
from imagekiln.steps.rewrite.language_model import LanguageModel, load_language_model
from imagekiln.steps.rewrite.step import rewrite
from imagekiln.steps.runs.drawn_parts import (
    is_drawn,
    pack_drawn_part,
    read_drawn_part,
    remove_drawn_part,
)
from imagekiln.steps.runs.forgotten import read_forgotten
from imagekiln.steps.runs.formats import format_of, recover_parts
from imagekiln.steps.runs.image import DrawnImage, ImageRow, image_rows
from imagekiln.steps.runs.plan import load_plan
from imagekiln.steps.runs.shard import missing_parts, read_shard
from imagekiln.steps.storage import open_store
from tests import jobs
from tests.dataset_hub import REPOSITORY, DatasetHub
from tests.language_models import language_model
from tests.life import SIZES, Content, Life, Step, read_images
from tests.runs import picture

INPUT = {
    "wildcards/animal.txt": "cat\ndog\n",
    "wildcards/color/warm.txt": "# of autumn\nred\n",
    "tables/first.csv": "place,id\nred house,row-0\nblue sea,row-1\n",
    "tables/last.csv": "place,id\n,row-2\n",
}
REWRITE: dict[str, object] = {"append": True}
LOADING = Lock()
CANDIDATES = 4
LOST_GROUP = range(CANDIDATES, 2 * CANDIDATES)  # all candidates of one image fail: a round has them
FAILED = (1, *LOST_GROUP)
TAKEN_DOWN_FIRST = "Red House cat"  # in prompts of one row
TAKEN_DOWN_LATER = "blue sea dog"  # in those of the other


@dataclass(slots=True)
class PublishedLife(Life):
    """From templates to a hub, whose state `hub` has. It is emptied with the rest."""

    wholes: ClassVar[tuple[str, ...]] = ("out/best", "tables", "archives")
    reading_steps: ClassVar[tuple[str, ...]] = ("verify", "gallery", "read", "push", "push again")
    more_work: ClassVar[tuple[str, ...]] = ("retry",)
    hub: DatasetHub | None = None

    @property
    def output(self) -> str:
        """The URI of the output."""
        return f"{self.root}/out"

    def list_steps(self) -> dict[str, Step]:
        """The steps in their order."""
        self._write_input()
        job = self.best_job()
        run = self.uri("best")
        tables = f"{self.root}/tables"
        archives = f"{self.root}/archives"
        as_archives = read_settings("webdataset", partition_by="prompt_original")
        first = ForgetSelection(prompt_parts=(TAKEN_DOWN_FIRST,))
        later = ForgetSelection(prompt_parts=(TAKEN_DOWN_LATER,))
        return {
            "rewrite": lambda: rewrite(job),
            "plan": lambda: make_plan(job),
            "generate": lambda: draw_best(run, FAILED),
            "passes": lambda: pass_best(run),
            "aggregate": lambda: aggregate(run),
            "retry": self._retry_best,
            "aggregate round": lambda: aggregate(run),
            "export": lambda: export(run, tables),
            "export archives": lambda: export(self.output, archives, as_archives),
            "push": lambda: self._push(tables, "v1"),
            "forget": lambda: forget(run, first, [tables, archives], remove=True),
            "verify": lambda: verify(run),
            "push again": lambda: self._push(tables, "v2"),
            "forget later": lambda: forget(self.output, later, [archives], remove=True),
            "gallery": lambda: browse(self.output),
            "read": lambda: read_images(self.output),
        }

    def best_job(self) -> Job:
        """A sweep over templates, rewritten, of which the best candidates are kept."""
        folder = self.folder / "best"
        prompts = {
            "template": "{{ place }} __animal__ {red|__color/*__}",
            "table": f"s3://{self.bucket}/tables/*.csv",
            "wildcards": f"s3://{self.bucket}/wildcards",
            "combinations": 2,
            "sweep": {"guidance": [2.0, 3.0]},
        }
        return jobs.job(
            folder,
            prompts=prompts,
            rewrite={**REWRITE, "model": tiny_model()},
            scores={"seeds": {"kind": "own", "entry": "tests.scorers:SeedScore"}},
            keep=f"best 1 of {CANDIDATES} by seeds",
            passes={"over": {"kind": "refine", "strength": 1.0}},
            separate_passes=True,
            output=self.output,
            run_id="best",
            format=self.format,
            limits={"failed_share": 0.5, "rejected_share": 0.5},
            **{key: value for key, value in SIZES.items() if key != "limits"},
        )

    def restore(self, content: Content) -> None:
        """Let the root have these objects and no others, and the hub none."""
        Life.restore(self, content)
        if self.hub is not None:
            self.hub.clear()

    def _write_input(self) -> None:
        for name, text in INPUT.items():
            self.files.pipe_file(f"{self.bucket}/{name}", text.encode())

    def _retry_best(self) -> None:
        store = open_store(self.uri("best"))
        retry_round = plan_next_round(store, load_plan(store))
        if retry_round is not None:
            draw_best(retry_round.store.uri)
            pass_best(retry_round.store.uri)

    def _push(self, export_uri: str, version: str) -> Content:
        assert self.hub is not None
        push(export_uri, f"hf://datasets/{REPOSITORY}", version)
        return self.hub.commits[self.hub.tags[version]]


@cache
def _load_once(*_: object) -> LanguageModel:
    settings = RewriteSettings.model_validate(REWRITE | {"model": tiny_model()})
    return load_language_model(settings, "cpu")


def load_safely(*_: object) -> LanguageModel:
    """The language model of the job. To load it is not safe in several threads at once."""
    with LOADING:
        return _load_once()


def tiny_model() -> dict[str, object]:
    """The settings of the language model."""
    return {"id": str(language_model("gpt2")), "dtype": "float32"}


def draw_best(uri: str, failed: Collection[int] = ()) -> None:
    """Store noise for all parts of a run that are missing, scored and ranked as it is drawn."""
    store = open_store(uri)
    plan = load_plan(store)
    scorers = load_scorers(plan, torch.device("cpu"))
    start = 0
    for number in range(len(plan.shards)):
        shard = read_shard(store, plan, number)
        missing = recover_parts(store, format_of(plan.job), missing_parts(store, shard))
        for part in shard:
            rows = image_rows(part.rows)
            if part in missing and not is_drawn(store, part):
                drawn = [_draw(row, start + row.index_in_part in failed) for row in rows]
                ranked = score_and_rank(plan.job, scorers, drawn, rows)
                pack_drawn_part(part, ranked).commit(store)
            start += len(rows)


def pass_best(uri: str) -> None:
    """Commit what is stored of all parts of a run that are missing, as if after a pass."""
    store = open_store(uri)
    plan = load_plan(store)
    part_format = format_of(plan.job)
    encode = OutputEncoder(plan, read_forgotten(store, plan).to_pylist())
    for number in range(len(plan.shards)):
        shard = read_shard(store, plan, number)
        missing = recover_parts(store, part_format, missing_parts(store, shard))
        for part in shard:
            if part in missing:
                images = read_drawn_part(store, part, plan.job.scores)
                if images is None:
                    raise TryAgain(f"{part.key}: is not drawn")
                encoded = list(map(encode, images, image_rows(part.rows)))
                part_format.pack(part, encoded).commit(store)
            remove_drawn_part(store, part)


def _draw(row: ImageRow, is_failed: bool) -> DrawnImage:
    if is_failed:
        return DrawnImage(row.index_in_part, None, "failed", "RuntimeError: a fault")
    return replace(picture(row.parameters.seed), index_in_part=row.index_in_part)


def browse(uri: str) -> list[str]:
    """What a gallery shows of each image. Raises TryAgain where it says that it lacks some."""
    with open_gallery(uri) as gallery:
        state = gallery.wait()
        if state.problems or state.indexed < state.images:
            raise TryAgain(f"the gallery shows {state.indexed} images: {state.problems}")
        shown = []
        for tile in gallery.page(PageQuery(limit=MAX_PAGE_IMAGES)):
            place = f"{tile.run}/{tile.image_id}"
            for noun in ("row", "image"):
                reply = answer(gallery, b"", f"/{noun}/{place}", {"number": "0"})
                if reply.status >= 500:
                    raise TryAgain(f"{place}: {reply.content!r}")
                shown.append(f"{noun} {reply.status} {reply.content!r}")
    return [json.dumps(state.images), *shown]
