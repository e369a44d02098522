"""A plan's model opened: with the compiled code that lies beside its run, where the job wants it."""

from pathlib import Path

import pytest
import torch

from imagekiln.steps.generate.diffusion import denoiser
from imagekiln.steps.generate.diffusion.denoiser import load_denoiser
from imagekiln.steps.plan.step import PlanResult
from imagekiln.steps.storage import open_store
from imagekiln.steps.storage.store import Store
from tests import families, loras, models, runs

pytestmark = pytest.mark.filterwarnings(models.DIFFUSERS_WARNS)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Where compiled code is looked for from now on, and what decides it."""
    seen = list[tuple[str, str]]()

    def note(store: Store, _: torch.device, model: str) -> None:
        seen.append((store.uri, model))

    monkeypatch.setattr(denoiser, "CompileCache", note)
    return seen


def _planned(tmp_path: Path, run_id: str, seed: int | None = None, **speed: object) -> PlanResult:
    style = {} if seed is None else {"style": {"id": str(loras.folder("sd", seed))}}
    model = {"id": str(families.folder("sd")), "dtype": "float32", "loras": style}
    return runs.planned(tmp_path, str(tmp_path / "out"), run_id=run_id, model=model, speed=speed)


def _open(planned: PlanResult, *, code: bool = True) -> None:
    load_denoiser(planned.plan, open_store(planned.uri), code=code)


def test_all_runs_of_an_output_share_the_code_of_a_model_and_its_loras(
    tmp_path: Path, taken: list[tuple[str, str]]
) -> None:
    plans = [_planned(tmp_path, f"r{place}", seed) for place, seed in enumerate([None, None, 1, 2])]
    for each in plans:
        _open(each)
    assert {uri for uri, _ in taken} == {str(tmp_path / "out")}
    plain, same, style, other = (model for _, model in taken)
    assert plain == same
    assert len({plain, style, other}) == 3


def test_a_job_that_trusts_nobody_s_code_takes_none_and_neither_does_who_reproduces(
    tmp_path: Path, taken: list[tuple[str, str]]
) -> None:
    _open(_planned(tmp_path, "mine", compile_cache="off"))
    _open(_planned(tmp_path, "again"), code=False)
    assert taken == []
