"""Parameters that go from one template to the next."""

from hera.workflows import models as m

RUN_ARGUMENT = m.Parameter(name="run", value="{{inputs.parameters.run}}")


def declare_inputs(*names: str) -> m.Inputs:
    """What a template is given."""
    return m.Inputs(parameters=[m.Parameter(name=name) for name in names])


def forward_inputs(*names: str) -> dict[str, str]:
    """A template's own inputs, to be handed on."""
    return {name: f"{{{{inputs.parameters.{name}}}}}" for name in names}


def task_arguments(run: m.Parameter, **values: str) -> m.Arguments:
    """What a task hands to its template: the run, and values by name."""
    return m.Arguments(
        parameters=[run, *(m.Parameter(name=name, value=value) for name, value in values.items())]
    )
