"""What is said before torch is imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from imagekiln.steps.errors import BadInput, Missing, NotInstalled
from imagekiln.steps.generate.preflight import require_libraries, require_planned_shard
from tests.runs import PROMPTS, planned


def test_missing_library_is_named_with_the_command_to_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require_libraries()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(NotInstalled) as raised:
        require_libraries()
    assert str(raised.value) == (
        "torch: not installed, and needed to generate images. "
        "Type: pip install 'imagekiln[generate]'."
    )


def test_run_and_shard_are_checked(tmp_path: Path) -> None:
    run = planned(tmp_path, str(tmp_path / "out"), PROMPTS).uri
    require_planned_shard(run, 0)
    with pytest.raises(BadInput, match="has shards 0 to "):
        require_planned_shard(run, 99)
    with pytest.raises(Missing, match="holds no plan"):
        require_planned_shard(str(tmp_path / "typo"), 0)


def test_run_that_is_not_there_is_said_without_importing_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from imagekiln.workflows.cli.main import main; "
        f"code = main(['generate', {str(tmp_path)!r}, '--shard', '0'], standalone_mode=False); "
        "print(code, 'torch' in sys.modules, 'diffusers' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "False", "False"]
    assert done.stderr.startswith(f"{tmp_path}: holds no plan.")
