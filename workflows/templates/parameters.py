"""Parameters that one template hands to the next."""

from hera.workflows import Parameter

# What plan outputs for the labels of the pods that generate, and of their metrics.
LABELS = ("job_name", "run_id")


def declare_inputs(*names: str) -> list[Parameter]:
    """The inputs of a template."""
    return [Parameter(name=name) for name in names]


def forward_inputs(*names: str) -> list[Parameter]:
    """A template's own inputs, as arguments of one of its tasks."""
    return [Parameter(name=name, value=f"{{{{inputs.parameters.{name}}}}}") for name in names]
