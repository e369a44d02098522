"""A run that a stranger made: nothing of it is written elsewhere or shown as markup."""

from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from imagekiln.steps.aggregate.step import aggregate
from imagekiln.steps.dataset.dataset import open_dataset
from imagekiln.steps.errors import KilnError
from imagekiln.steps.export.step import export
from imagekiln.steps.maintain.verify import verify
from tests import jobs, runs
from tests.faults import manifest_names

MARKUP = "<script>alert(1)</script>"
OUTSIDE = "../../outside/secret"


@pytest.mark.parametrize("column", ["part", "image_id", "prompt"])
def test_nothing_of_a_strangers_run_leads_out_of_it_or_is_markup(
    tmp_path: Path, column: str
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"what is the user's")
    run = Path(runs.finished(tmp_path / "out" / "run").uri)
    path = run / manifest_names(str(run))[0]
    manifest = pq.read_table(path)
    place = manifest.column_names.index(column)
    values = pa.array([MARKUP if column == "prompt" else OUTSIDE] * manifest.num_rows)
    pq.write_table(manifest.set_column(place, column, values), path)

    exported = tmp_path / "exported"
    for command in (
        lambda: export(str(run), str(exported)),
        lambda: verify(str(run)),
        lambda: list(open_dataset(str(run), ["image"]).to_batches()),
        lambda: aggregate(str(run)),
    ):
        with suppress(KilnError):
            command()
    written = jobs.files(tmp_path)
    secret = written.pop("outside/secret")
    assert not any(name.startswith("outside/") for name in written)
    for name, content in written.items():
        assert secret not in content
        assert not name.endswith(".html") or MARKUP.encode() not in content
