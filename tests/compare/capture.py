"""Carry out the scenarios with one checkout, and write a snapshot of what each left."""

import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import fsspec

from tests import s3
from tests.compare import snapshot, tiny_models, workspace
from tests.compare.scenarios import SCENARIOS, Scenario
from tests.compare.vocabulary import SettingNames, Vocabulary
from tests.compare.workspace import Output, Workspace

BUCKET = "compare"
CACHE = Path(__file__).parents[2] / "build" / "compare"


@dataclass(frozen=True, slots=True)
class Stage:
    """What all scenarios of a capture share."""

    checkout: Path
    folder: Path
    scratch: Path
    names: SettingNames
    server: s3.S3Server

    def play(self, scenario: Scenario) -> None:
        """Carry out one scenario, and write its snapshot."""
        started = time.monotonic()
        work = self._workspace(scenario)
        scenario.play(work)

        target = self.folder / f"{scenario.name}.json"
        snapshot.write(target, list(work.commands), work.output.read(), self._places(work))
        seconds = time.monotonic() - started
        sys.stderr.write(f"{scenario.name}: {len(work.commands)} commands, {seconds:.0f} s\n")

    def _workspace(self, scenario: Scenario) -> Workspace:
        folder = self.scratch / scenario.name
        folder.mkdir()
        (folder / "models").symlink_to(CACHE / "models")
        output = Output("out", str(folder / "out"))
        if scenario.store == "s3":
            path = f"{BUCKET}/{scenario.name}"
            output = Output(f"s3://{path}", path, "s3", _s3_options(self.server))
        variables = workspace.environment(CACHE, self.server.environment())
        return Workspace(self.checkout, folder, output, self.names, variables)

    def _places(self, work: Workspace) -> Mapping[str, str]:
        """Names for the places that are others in each capture."""
        return {
            str(work.folder): "FOLDER",
            str(self.checkout): "CHECKOUT",
            self.server.endpoint: "ENDPOINT",
        }


def capture(
    checkout: Path,
    folder: Path,
    vocabulary: Vocabulary,
    *,
    only: Sequence[str] = (),
    workers: int = 1,
) -> None:
    """Write the snapshots of all scenarios, or of those in `only`, into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tiny_models.build(CACHE / "models")
    scenarios = [scenario for scenario in SCENARIOS if not only or scenario.name in only]
    for scenario in scenarios:
        (folder / f"{scenario.name}.json").unlink(missing_ok=True)

    with _stage(checkout, folder, vocabulary) as stage, ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(stage.play, scenarios):
            pass  # raises what a scenario raised


@contextmanager
def _stage(checkout: Path, folder: Path, vocabulary: Vocabulary) -> Iterator[Stage]:
    names = SettingNames.of_checkout(checkout, vocabulary)
    with tempfile.TemporaryDirectory(prefix="imagekiln-compare-") as name:
        scratch = Path(name)
        (scratch / "store").mkdir()
        with s3.s3_server(scratch / "store") as server:
            options = _s3_options(server)
            fsspec.filesystem("s3", skip_instance_cache=True, **options).mkdir(BUCKET)
            yield Stage(checkout, folder, scratch, names, server)


def _s3_options(server: s3.S3Server) -> dict[str, object]:
    return {
        "endpoint_url": server.endpoint,
        "key": s3.WRITER.key,
        "secret": s3.WRITER.secret,
        "use_listings_cache": False,
    }
