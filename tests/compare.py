"""Run two checkouts on the same jobs, and say whether they give the same.

    python -m tests.compare BASE [CHECKOUT] [--s3] [--only SCENARIO] [--ignore KEY]

A checkout needs `make install`; it is used only through its command line and the files that it
writes, on a disk or with `--s3` on an S3 server of its own. Compared are exit codes, messages
without their times, and every value of every file. A KEY is one of JSON or a column.
"""

import argparse
import hashlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from tests import adapters, image_models, loras, models
from tests.pictures import half, noise
from tests.s3 import S3Server, s3_server

ROOT = Path(__file__).parents[1]
SECONDS = 300  # for one command
# Variables that would change what a command does.
FOREIGN = ("IMAGEKILN", "PYTHON", "AWS_", "ARGO", "KUBE")
# Times, and what follows from them or from the machine.
IGNORED = (
    "seconds", "device_hours", "images_per_second", "throughput", "usage", "busy", "busy_share",
    "peak_memory", "versions", "started_at", "ended_at", "elapsed_seconds", "at", "writer", "spent",
    "spending", "working_seconds", "loading_seconds",
)  # fmt: skip
TIME = re.compile(r"\d[\d.,]*(?= ?(s|ms|min|h|seconds|a second|images/s|% of the time)\b)")
# Of the report: the section on time, what its figures cost, and when the run was.
TIMES = re.compile(
    r'<section aria-labelledby="(?:time|cost)">.*?</section>|'
    r'<tr><th scope="row">(?:images (?:a|per) second|device hours|cost)[^\n]*|'
    r"from [\d-]+ [\d:]+ UTC to [^<]*",
    re.DOTALL,
)
# Code for this machine, and what names a process.
VOLATILE = re.compile(r"_compiled/|attempts/")
TEXTS = {".html", ".md", ".txt", ".yaml"}
ABSENT = "absent"
SHOWN = 5  # differences of a scenario
PROGRESS = '{"event": "progress"'
TINY = {"width": 16, "height": 16, "steps": 2}  # what the tiny models draw
COLORS = ("red", "blue", "green", "yellow", "purple", "orange", "black", "white")
CIRCLES = [f"a {color} circle" for color in COLORS]
SETTINGS: Mapping[str, object] = {
    "name": "job",
    "run_id": "run",
    "prompts": "prompts.parquet",
    "model": {"id": "bundled:shapes", "dtype": "float32"},
    "defaults": {"steps": 3, "guidance": 3.0, "seed": 7},
    "batch": {"images": 4},
    "part": {"images": 4},
    "shard": {"images": 8},
    "device": "cpu",
}
OWN = """
def is_light(image, row):
    return bool(image.mean() > 140)

def brightness(images, specs):
    return [float(image.mean()) for image in images]
"""
LOST_PART = "out/run/images/00000-0001.parquet"
RUN_AND_VERIFY = "run job.yaml; verify out/run"
Values = Mapping[str, object]
Columns = Mapping[str, Sequence[object]]


@dataclass(frozen=True, slots=True)
class Output:
    """Where runs go: a URI, the variables that lead a command there, and what reads it here."""

    uri: str
    variables: Mapping[str, str]
    files: fsspec.AbstractFileSystem

    def read(self) -> Iterator[tuple[str, bytes]]:
        """Yield every file that is the same in each run, with its name below the output."""
        folder = self.uri.removeprefix("s3://")
        for path in sorted(self.files.find(folder) if self.files.exists(folder) else ()):
            name = path.removeprefix(f"{folder}/")
            if not VOLATILE.search(name):
                yield name, self.files.cat_file(path)


@contextmanager
def open_output(folder: Path, *, on_s3: bool) -> Iterator[Output]:
    """An empty output: a folder in `folder`, or a bucket of a server that has its data there."""
    if not on_s3:
        yield Output(str(folder / "out"), {}, fsspec.filesystem("file"))
        return
    (folder / "server").mkdir()
    with s3_server(folder / "server") as server:
        files = _connect(server)
        files.mkdir("compare")
        yield Output("s3://compare/out", server.environment(), files)


def _connect(server: S3Server) -> fsspec.AbstractFileSystem:
    variables = server.environment()
    return fsspec.filesystem(
        "s3",
        endpoint_url=variables["AWS_ENDPOINT_URL"],
        key=variables["AWS_ACCESS_KEY_ID"],
        secret=variables["AWS_SECRET_ACCESS_KEY"],
        skip_instance_cache=True,
    )


@dataclass(frozen=True, slots=True)
class Scenario:
    """Rows, a job, and commands between semicolons; `remove FILE` is what a store loses."""

    columns: Columns
    commands: str = RUN_AND_VERIFY
    settings: Mapping[str, object] = field(default_factory=dict)


def scenarios() -> dict[str, Scenario]:
    """What both states are asked to do, each in seconds."""
    mixed: Columns = {
        "prompt": CIRCLES,
        "negative_prompt": [None, "a square", None, "", "text", None, None, "blur"],
        "seed": [None, 5, 6, None, 2**40, None, 7, 8],
        "width": [None, 96, 64, 96, None, None, 32, 64],
        "guidance": [None, 1.0, 5.5, 1.0, None, 0.0, 3.0, None],
        "images": [1, 2, None, 1, None, 3, 1, None],
        "sampler": ["ddim", None, "unipc", "no such", "euler_a", None, None, None],
        "campaign": [f"campaign {row % 3}" for row in range(8)],
    }
    pictures: Columns = {
        "prompt": CIRCLES,
        "source_image": [None, noise(0), noise(1), noise(0), None, None, noise(2), b"no picture"],
        "mask_image": [None, None, None, half(), None, None, half(), None],
        "control_image": [None, None, None, None, noise(3), None, noise(3), None],
        "reference_image": [None, None, None, None, None, noise(4), noise(4), None],
    }
    texts = [None, "style:0.8", "style:0.5, detail:0.7", "", "detail", "no-such:1", None, None]
    light = {"kind": "own", "entry": "own:brightness", "min": 20}
    gates = {
        "low_contrast": {"below": 0.5, "share": 0.0},
        "near_duplicate": {},
        "checks": [{"name": "light", "entry": "own:is_light"}],
    }
    accepting = {"limits": {"rejected_share": 1}}
    return {
        "demo": Scenario({"prompt": CIRCLES}, settings={"defaults": {"steps": 4, "seed": 7}}),
        "mixed": Scenario(
            mixed,
            f"plan job.yaml; generate out/run --shard 0; remove {LOST_PART}; aggregate out/run; "
            "generate out/run --shard 0; generate out/run --shard 1; aggregate out/run; "
            "verify out/run",
            {"carry": ["campaign"], **accepting},
        ),
        "jpeg": Scenario(
            {"prompt": CIRCLES, "id": COLORS, "tag": COLORS},
            "run job.yaml; export out/run out/tars --as webdataset; verify out/run",
            {"encoding": {"kind": "jpeg", "quality": 80}, "carry": ["tag"]},
        ),
        "pictures": Scenario(pictures, settings=_tiny("sd", _adapters(), **accepting)),
        "loras": Scenario(
            {"prompt": CIRCLES, "loras": texts}, settings=_tiny("sdxl", _loras(), **accepting)
        ),
        "flux": Scenario({"prompt": CIRCLES[:3]}, settings=_tiny("flux", {})),
        "retry": Scenario(
            # The sampler of LCM takes no more than 50 steps.
            {"prompt": CIRCLES, "steps": [2, 2, 60, 2, 2, 2, 2, 2]},
            f"plan job.yaml; generate out/run --shard 0; remove {LOST_PART}; "
            "aggregate out/run; retry out/run --all; "
            "aggregate out/run --failed-share 0.2; verify out/run",
            {"defaults": {"guidance": 1.5, "sampler": "lcm", "seed": 3}},
        ),
        "nights": Scenario(
            {"prompt": CIRCLES[:5]},
            "run job.yaml --set run_id=first; run job.yaml --set run_id=second",
            {"skip_existing": True},
        ),
        "gates": Scenario(
            {"prompt": CIRCLES},
            "run job.yaml; aggregate out/run --accept low_contrast",
            {"gates": gates},
        ),
        "best": Scenario(
            {"prompt": CIRCLES[:4]},
            settings={"scores": {"light": light}, "keep": "best 1 of 3 by light"},
        ),
        "passes": Scenario({"prompt": CIRCLES[:4]}, settings=_tiny("sd", {}, passes=_passes())),
        "mistakes": Scenario(
            {"prompt": CIRCLES[:2]},
            "plan job.yaml --set defaults.stepz=3; plan job.yaml --set prompts=no-such.parquet; "
            "plan job.yaml --set model.id=models/no-such; verify out/no-such",
        ),
        "render": Scenario(
            {"prompt": CIRCLES[:2]},
            "render job.yaml --set cluster.profile=gpu; render job.yaml --event; "
            "render job.yaml --cron '30 1 * * *' --timezone Europe/Berlin",
            {"output": "s3://datasets/postcards", "prompts": "s3://prompts/{date}/*.parquet"},
        ),
    }


def _tiny(kind: models.Kind, parts: Mapping[str, object], **settings: object) -> dict[str, object]:
    model = {"id": str(models.folder(kind)), "dtype": "float32", **parts}
    return {"model": model, "defaults": TINY, **settings}


def _adapters() -> dict[str, object]:
    ip_adapter = {"id": str(adapters.ip_adapter("sd")), "weight_name": "adapter.safetensors"}
    return {"controlnet": {"id": str(adapters.controlnet("sd"))}, "ip_adapter": ip_adapter}


def _loras() -> dict[str, object]:
    folders = {"style": loras.folder("sdxl"), "detail": loras.folder("sdxl", 1, text=True)}
    return {"loras": {name: {"id": str(folder)} for name, folder in folders.items()}}


def _passes() -> dict[str, object]:
    return {
        "larger": {"kind": "upscale", "id": str(image_models.upscaler_folder())},
        "fine": {"kind": "refine", "strength": 0.5, "scale": 1},
        "words": {"kind": "caption", "id": str(image_models.captioner_folder()), "max_tokens": 4},
    }


def play(
    scenario: Scenario, checkout: Path, folder: Path, output: Output, ignored: Collection[str]
) -> Values:
    """What a checkout's commands say and leave in an empty folder and output, by labels."""
    pq.write_table(pa.table(dict(scenario.columns)), folder / "prompts.parquet")
    (folder / "own.py").write_text(OWN, encoding="utf-8")
    job = yaml.safe_dump({**SETTINGS, "output": output.uri, **scenario.settings})
    (folder / "job.yaml").write_text(job, encoding="utf-8")
    values: dict[str, object] = {}
    for number, command in enumerate(scenario.commands.split("; ")):
        verb, *arguments = shlex.split(command.replace("out/", f"{output.uri}/"))
        if verb == "remove":
            output.files.rm_file(arguments[0])
            continue
        ended = subprocess.run(
            [checkout / ".venv/bin/imagekiln", verb, *arguments],
            cwd=folder, env={**_environment(), **output.variables}, capture_output=True, text=True,
            timeout=SECONDS, check=False,
        )  # fmt: skip
        label = f"command {number} ({command})"
        values[f"{label}: exit code"] = ended.returncode
        values[f"{label}: stdout"] = TIME.sub("#", ended.stdout)
        said = [line for line in ended.stderr.splitlines() if not line.startswith(PROGRESS)]
        values[f"{label}: stderr"] = TIME.sub("#", "\n".join(said[-1:]))
    for name, content in output.read():
        values |= read_values(name, content, ignored)
    return values


def _environment() -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    fixed = {
        "PYTHONPATH": ".",  # for checks of the user's own
        "SOURCE_DATE_EPOCH": "1790000000",  # one time for all plans
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "KUBECONFIG": os.devnull,
    }
    return {**own, **fixed}


def read_values(name: str, content: bytes, ignored: Collection[str]) -> dict[str, object]:
    """Every value of a file, by its label: of JSON, of a table, of each file of a tar."""
    suffix = PurePosixPath(name).suffix
    if suffix == ".json":
        return dict(_flat(json.loads(content), name, ignored))
    if suffix == ".parquet":
        table = pq.read_table(io.BytesIO(content))
        schema = {field.name: str(field.type) for field in table.schema}
        return dict(_flat({"schema": schema, "rows": table.to_pylist()}, name, ignored))
    if suffix == ".tar":
        values: dict[str, object] = {}
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            for member in tar:
                if file := tar.extractfile(member):
                    values |= read_values(f"{name}/{member.name}", file.read(), ignored)
        return values
    if suffix in TEXTS:
        return {name: TIMES.sub("", content.decode())}
    return {name: hashlib.sha256(content).hexdigest()}


def _flat(value: object, label: str, ignored: Collection[str]) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            if key not in ignored:
                yield from _flat(item, f"{label}.{key}", ignored)
    elif isinstance(value, list) and value:
        for place, item in enumerate(value):
            yield from _flat(item, f"{label}[{place}]", ignored)
    else:
        yield label, hashlib.sha256(value).hexdigest() if isinstance(value, bytes) else value


def differences(before: Values, after: Values) -> list[str]:
    """The labels whose values differ, each with both."""
    return [
        f"{label}\n    before: {_short(before, label)}\n    after:  {_short(after, label)}"
        for label in dict.fromkeys([*before, *after])
        if before.get(label, ABSENT) != after.get(label, ABSENT)
    ]


def _short(values: Values, label: str) -> str:
    return repr(values.get(label, ABSENT))[:300]


def main() -> int:
    """Play the scenarios with both checkouts; the exit code is 1 where they differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.compare", description=__doc__)
    parser.add_argument("base", type=Path)
    parser.add_argument("checkout", type=Path, nargs="?", default=ROOT)
    parser.add_argument("--s3", action="store_true", help="runs go to an S3 server")
    parser.add_argument("--only", action="append", default=[], help="a scenario")
    parser.add_argument("--ignore", action="append", default=[], help="a key or column")
    options = parser.parse_args()
    ignored = {*IGNORED, *options.ignore}
    found = 0
    for name, scenario in scenarios().items():
        if options.only and name not in options.only:
            continue
        played = []
        with tempfile.TemporaryDirectory(prefix="imagekiln-compare-") as scratch:
            folder = Path(scratch, "work")  # one name for both: their messages have it
            for checkout in (options.base, options.checkout):
                folder.mkdir()
                with open_output(folder, on_s3=options.s3) as output:
                    played.append(play(scenario, checkout.resolve(), folder, output, ignored))
                folder.rename(Path(scratch, str(len(played))))
        differing = differences(*played)
        found += len(differing)
        sys.stdout.write(f"{name}: {len(played[1])} values, {len(differing)} differ\n")
        sys.stdout.writelines(f"{difference}\n" for difference in differing[:SHOWN])
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
