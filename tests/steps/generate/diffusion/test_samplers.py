import diffusers
import pytest

from imagekiln.steps.job.samplers import SAMPLERS, SCHEDULERS


def test_every_sampler_but_the_models_own_has_a_scheduler() -> None:
    assert {*SAMPLERS} == {"default", *SCHEDULERS}


# diffusers calls numpy in a way that numpy 2 warns of.
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_diffusers_has_every_scheduler_and_takes_its_settings() -> None:
    for name, settings in SCHEDULERS.values():
        scheduler = getattr(diffusers, name).from_config({}, **settings)
        assert {key: scheduler.config[key] for key in settings} == settings
