"""What Argo's controller makes of the variables and expressions in a template, by its own rules.

As `SubstituteParams` and `substitutePodParams` have them from 3.6.0 to 4.1.2: a template's JSON is
filled in three times, first with what the whole workflow has, then with the template's inputs, and
once more as a pod. So a text that holds a variable is itself filled in, unless it is encoded. What
cannot be resolved stays.
"""

import ast
import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

VARIABLE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)  # to the first end, as Argo reads it

Values = Mapping[str, str]


def fill_in_template(template: Mapping[str, Any], common: Values, inputs: Values) -> dict[str, Any]:
    """The template as the pod has it. The keys of values are such as `workflow.name`."""
    own = {f"inputs.parameters.{name}": text for name, text in inputs.items()}
    text = json.dumps(template, ensure_ascii=False)
    for values in (common, {**common, **own}, {**common, **own}):
        text = fill_in(text, values)
    filled: dict[str, Any] = json.loads(text)
    return filled


def fill_in(text: str, values: Values) -> str:
    """The text of a JSON document, once filled in."""

    def replace(variable: re.Match[str]) -> str:
        tag = variable[1]
        if not tag.startswith("="):
            value = values.get(tag.strip())
        else:
            value = _evaluate(json.loads(f'"{tag[1:]}"'), values)
        if value is None:
            return variable[0]
        return json.dumps(value, ensure_ascii=False)[1:-1]  # into what is a text of the document

    return VARIABLE.sub(replace, text)


def _evaluate(expression: str, values: Values) -> str | None:
    """The value of an expression, as far as our templates need; None where it has none."""
    try:
        node = ast.parse(expression, mode="eval").body
        return str(_value(node, values))
    except (SyntaxError, LookupError, ValueError, TypeError):
        return None


def _value(node: ast.expr, values: Values) -> object:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.UnaryOp):
        return ast.literal_eval(node)  # a number below zero
    if isinstance(node, ast.Call):
        arguments = [_value(argument, values) for argument in node.args]
        return FUNCTIONS[ast.unparse(node.func)](*arguments)
    return values[_name(node)]


def _name(node: ast.expr) -> str:
    """`inputs.parameters['job-uri']` and `inputs.parameters.job` as a key of the values."""
    if isinstance(node, ast.Subscript):
        return f"{_name(node.value)}.{ast.literal_eval(node.slice)}"
    if isinstance(node, ast.Attribute):
        return f"{_name(node.value)}.{node.attr}"
    if isinstance(node, ast.Name):
        return node.id
    raise ValueError(f"{ast.unparse(node)}: not in this model of Argo's expressions")


def _to_json(value: object) -> str:
    """As Go writes it: line separators, at which YAML ends a line, are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _replace_all(pattern: str, text: str, replacement: str) -> str:
    return re.sub(pattern, replacement, text)


# Of expr-lang and of sprig, with the order of arguments that they have there.
FUNCTIONS: dict[str, Callable[..., object]] = {
    "asInt": int,
    "toJson": _to_json,
    "sprig.add": lambda *terms: sum(map(int, terms)),
    "sprig.b64enc": _base64,
    "sprig.div": lambda whole, part: int(whole) // int(part),
    "sprig.min": lambda *terms: min(map(int, terms)),
    "sprig.mul": lambda left, right: int(left) * int(right),
    "sprig.regexReplaceAll": _replace_all,
    "sprig.replace": lambda old, new, text: text.replace(old, new),
    "sprig.sub": lambda left, right: int(left) - int(right),
    "sprig.trimAll": lambda characters, text: text.strip(characters),
    "sprig.trunc": lambda length, text: text[:length] if length >= 0 else text[length:],
}
