"""User-defined quality checks: the arguments and the result of a check.

A job names a check in `checks`. It is called with each generated image and its spec, and returns a
verdict:

>>> from imagekiln.checks import ImageSpec, Verdict
>>> def not_too_wordy(image: object, spec: ImageSpec) -> Verdict:
...     if len(spec.prompt) > 1000:
...         return Verdict(ok=False, reason="the prompt is too long to judge")
...     return Verdict(ok=True)
"""

from imagekiln.steps.checks import ImageSpec, Verdict

__all__ = ["ImageSpec", "Verdict"]
