"""No generator waits for threads, since the garbage collector closes generators in any thread."""

import ast

from tests.package.test_readability import product_modules


def _yields_within_a_pool(function: ast.FunctionDef) -> bool:
    """Whether the function is suspended in the block of a pool that is waited for."""
    return any(
        isinstance(inner, ast.Yield | ast.YieldFrom)
        for block in ast.walk(function)
        if isinstance(block, ast.With)
        and "ThreadPoolExecutor(" in " ".join(map(ast.unparse, block.items))
        for inner in ast.walk(block)
    )


def _generators_that_wait(source: str) -> list[str]:
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and _yields_within_a_pool(node)
    ]


def test_generators_take_their_threads_from_thread_pool() -> None:
    waiting = {
        str(path): names
        for path in product_modules()
        if (names := _generators_that_wait(path.read_text()))
    }
    assert not waiting, "use runtime/concurrency.py's thread_pool in place of ThreadPoolExecutor"


def test_a_generator_that_waits_is_found() -> None:
    source = "def read():\n with ThreadPoolExecutor(8) as pool:\n  yield from pool.map(str, '12')"
    assert _generators_that_wait(source) == ["read"]
