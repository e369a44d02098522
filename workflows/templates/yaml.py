"""Kubernetes objects as YAML that people can review and kubectl accepts."""

import re
from collections.abc import Iterable, Mapping
from itertools import chain
from math import inf
from typing import Any

import yaml

MAX_LINE = 130  # characters: a group that fits is written on one line
UNQUOTED = "unquoted"  # not a style of YAML itself
NUMBER_LIKE = re.compile(r"[-+.]?[0-9][0-9a-fxo_.:+-]*", re.IGNORECASE)
PLAIN_TEXT = re.compile(r"[\w./(-]([\w ./()+-]|:(?! ))*", re.ASCII)  # strings that need no quotes
# Keys that a reader looks for first, then all others in their order, then long ones.
FIRST_KEYS = (
    "name", "generateName", "namespace", "labels", "entrypoint", "onExit", "template",
    "templateRef", "depends", "withSequence", "inputs", "arguments", "image", "command", "args",
    "env", "envFrom", "key", "operator", "value", "valueFrom", "dag", "container", "resource",
    "suspend", "outputs",
)  # fmt: skip
LAST_KEYS = ("description", "podSpecPatch", "templateDefaults", "templates", "manifest")


class Unquoted(str):
    """A string that Argo replaces by a number or JSON before parsing the YAML."""

    __slots__ = ()


class _ManifestDumper(yaml.SafeDumper):
    """YAML dumper with indented lists, multi-line strings as blocks, and short groups on a line."""

    def represent(self, data: object) -> None:
        node = self.represent_data(data)
        _fold(node, indent=0, column=MAX_LINE)
        self.serialize(node)

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, indentless=False)

    def choose_scalar_style(self) -> Any:  # noqa: ANN401  # as PyYAML declares it
        if isinstance(self.event, yaml.ScalarEvent) and self.event.style == UNQUOTED:
            return ""
        return super().choose_scalar_style()

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


def _represent_text(dumper: yaml.SafeDumper, string: str) -> yaml.Node:
    # Readers differ on numbers: 1e3 is a string here and a number to Kubernetes.
    style = "|" if "\n" in string else '"' if NUMBER_LIKE.fullmatch(string) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", string, style=style)


def _represent_unquoted(dumper: yaml.SafeDumper, string: Unquoted) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", string, style=UNQUOTED)


_ManifestDumper.add_representer(str, _represent_text)
_ManifestDumper.add_representer(Unquoted, _represent_unquoted)


def to_yaml(value: Mapping[str, object]) -> str:
    """Format an object as YAML: names first, templates last, and short groups on one line."""
    # Never wrapped: a wrapped string may be parsed as another one.
    return yaml.dump(
        _in_reading_order(value),
        Dumper=_ManifestDumper,
        width=2**31,
        sort_keys=False,
        allow_unicode=True,
    )


def to_yaml_documents(objects: Iterable[Mapping[str, object]]) -> str:
    """Format several objects, one YAML document each."""
    return "---\n".join(map(to_yaml, objects))


def _in_reading_order(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: _in_reading_order(value[key]) for key in sorted(value, key=_reading_rank)}
    if isinstance(value, list):
        return [_in_reading_order(item) for item in value]
    return value


def _reading_rank(key: str) -> int:
    if key in FIRST_KEYS:
        return FIRST_KEYS.index(key)
    return len(FIRST_KEYS) + (1 + LAST_KEYS.index(key) if key in LAST_KEYS else 0)


def _fold(node: yaml.Node, indent: int, column: int) -> None:
    """Write each group on one line if it fits into the line, of which `column` is used."""
    if not isinstance(node, yaml.CollectionNode):
        return
    node.flow_style = column + _length(node) <= MAX_LINE
    if node.flow_style:
        return

    for item in node.value:
        if isinstance(node, yaml.MappingNode):
            key, value = item
            _fold(value, indent + 2, indent + len(key.value) + 2)
        else:
            _fold(item, indent + 2, indent + 2)


def _length(node: yaml.Node) -> float:
    """Return the approximate length of the node on one line; infinite if it needs several."""
    if isinstance(node, yaml.ScalarNode):
        if node.style in ("|", UNQUOTED):
            return inf
        is_plain = node.style is None and PLAIN_TEXT.fullmatch(node.value)
        return len(node.value) + (0 if is_plain else 2)
    is_mapping = isinstance(node, yaml.MappingNode)
    parts = chain.from_iterable(node.value) if is_mapping else node.value
    return sum(_length(part) + 2 for part in parts)  # a comma or a colon, and a space
