"""The commands that messages name as the next step, to be typed as they are.

What was connected to by `--context` or `--server` is not part of them: these options are added.
"""

import os

DEFAULT_NAMESPACE = "imagekiln"
NAMESPACE_VARIABLE = "IMAGEKILN_NAMESPACE"


def next_command(verb: str, name: str, namespace: str) -> str:
    """A command on an object, with the namespace unless the command would take that one anyway."""
    assumed = os.environ.get(NAMESPACE_VARIABLE) or DEFAULT_NAMESPACE
    option = "" if namespace == assumed else f" -n {namespace}"
    return f"`imagekiln {verb} {name}{option}`"
