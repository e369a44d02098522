"""What happens before torch is imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, Missing, NotInstalled
from imagekiln.steps.generate.start import generate
from imagekiln.steps.local import run
from imagekiln.steps.runtime.progress import NoProgress
from imagekiln.steps.runtime.signals import Stop
from tests import models
from tests.runs import PROMPTS, job, planned, write_prompts


@pytest.mark.parametrize(
    ("settings", "library", "extra"),
    [
        ({"speed": {"quantization": "fp8"}}, "torchao", "fp8"),
        ({"c2pa": {"certificate": "cert.pem", "key": "key.pem"}}, "c2pa", "c2pa"),
    ],
)
def test_what_only_a_job_needs_is_missed_before_it_is_planned(
    settings: dict[str, object],
    library: str,
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    output = tmp_path / "out"
    prompts = write_prompts(tmp_path / "prompts.parquet")
    model = {"id": str(models.folder("sd")), "dtype": "bfloat16"}
    tiny = job(prompts, str(output), **{"model": model, **settings})
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(NotInstalled, match=rf"^{library}: not installed.*imagekiln\[{extra}\]"):
        run(tiny, NoProgress(), Stop())
    assert not output.exists()


def test_run_and_shard_are_checked(tmp_path: Path) -> None:
    run = planned(tmp_path, str(tmp_path / "out"), PROMPTS).uri
    with pytest.raises(BadInput, match="has shards 0 to "):
        generate(run, 99)
    with pytest.raises(Missing, match="holds no plan"):
        generate(str(tmp_path / "typo"), 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    [
        pytest.param("import imagekiln; imagekiln.generate(run, 0)", marks=pytest.mark.slow),
        "from imagekiln.workflows.cli.main import main; "
        "main(['generate', run, '--shard', '0'], standalone_mode=False)",
    ],
    ids=["Python", "command line"],
)
def test_hashing_begins_before_torch_is_imported(statement: str, tmp_path: Path) -> None:
    run = planned(tmp_path, str(tmp_path / "out"), PROMPTS[:1]).uri
    code = (
        "import sys; from imagekiln.steps.models import facts\n"
        "class Watched(facts.WeightsCheck):\n"
        "    def __init__(self, *arguments):\n"
        "        print('hash', 'torch' in sys.modules)\n"
        "        super().__init__(*arguments)\n"
        "facts.WeightsCheck = Watched\n"
        f"run = {run!r}; {statement}\n"
        "print('end', 'torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == ("hash False", "end True")
    assert done.stdout.count("hash") == 1
