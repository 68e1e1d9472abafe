"""What reads and runs a custom tool: in a child process that is alone, without network and without files. No Django.

A file is read without being run: what a model is told of its tool are literals in it, so that somebody can see them
before anything of it has run. The scan tells people where to look; the bound is the sandbox.
"""

import ast
import asyncio
import inspect
import json
import sys
import types
from collections.abc import Iterator
from typing import Any

# The class that nanobot's tools are made of, and where they import it from.
_BASE, _BASE_MODULE = "Tool", "nanobot.agent.tools.base"

MAX_FLAGS = 50

# What nanobot's own scan looks for, and how a name of Python's inner parts looks.
_MODULES = frozenset(
    [
        "asyncio",
        "builtins",
        "concurrent",
        "ctypes",
        "http",
        "httpx",
        "importlib",
        "io",
        "marshal",
        "multiprocessing",
        "os",
        "pathlib",
        "pickle",
        "pkgutil",
        "pty",
        "requests",
        "runpy",
        "shutil",
        "signal",
        "socket",
        "subprocess",
        "sys",
        "tempfile",
        "threading",
        "urllib",
        "zipimport",
    ]
)
_FUNCTIONS = frozenset(
    [
        "__import__",
        "breakpoint",
        "compile",
        "delattr",
        "eval",
        "exec",
        "getattr",
        "globals",
        "locals",
        "open",
        "setattr",
        "vars",
    ]
)


class Tool:
    """What a file's class is derived from."""


def read(source: str) -> str:
    """What a file says of its tool, as JSON: ``description``, ``schema`` and ``flagged``, what a person should look
    at; or ``unfit``: why it is none."""
    try:
        tree = ast.parse(source)
        flagged = list(dict.fromkeys(_flags(tree)))
        told = {"flagged": flagged[:MAX_FLAGS]}
        if len(flagged) > MAX_FLAGS:
            told["flagged"].append(f"and {len(flagged) - MAX_FLAGS} more")
        return json.dumps(told | _definition(_class_of(tree)))
    except SyntaxError as error:
        return json.dumps({"unfit": f"line {error.lineno or 1} is no Python: {error.msg}"})
    except (ValueError, TypeError) as error:
        return json.dumps({"unfit": str(error)})
    except (RecursionError, MemoryError):
        return json.dumps({"unfit": "it is nested too deeply"})


def _class_of(tree: ast.Module) -> ast.ClassDef:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and any(_last(base) == _BASE for base in node.bases):
            return node
    raise ValueError(f"it has no class that is derived from {_BASE}")


def _definition(found: ast.ClassDef) -> dict[str, Any]:
    description, schema = _literal(found, "description"), _literal(found, "parameters")
    if not isinstance(description, str) or not description.strip():
        raise ValueError("its description is no text")
    if not isinstance(schema, dict):
        raise ValueError("its parameters are no JSON Schema of an object")
    if not any(getattr(node, "name", "") == "execute" for node in found.body):
        raise ValueError("its class has no function execute")
    return {"description": description.strip(), "schema": schema}


def _literal(found: ast.ClassDef, name: str) -> Any:
    """What a class gives as this: a value of its own, or what a property of that name returns."""
    for node in found.body:
        value: ast.expr | None = None
        if (isinstance(node, ast.Assign) and [name] == [_last(target) for target in node.targets]) or (
            isinstance(node, ast.AnnAssign) and _last(node.target) == name
        ):
            value = node.value
        elif isinstance(node, ast.FunctionDef) and node.name == name and isinstance(node.body[-1], ast.Return):
            value = node.body[-1].value
        if value is not None:
            try:
                return ast.literal_eval(value)
            except ValueError:
                raise ValueError(f"its {name} is no literal: write out what it is") from None
    raise ValueError(f"its class has no {name}")


def _flags(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        for what in _flagged(node):
            yield f"line {getattr(node, 'lineno', 1)}: {what[:100]}"


def _flagged(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (f"import {each.name}" for each in node.names if each.name.partition(".")[0] in _MODULES)
    elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in _MODULES:
        yield f"from {node.module} import {', '.join(each.name for each in node.names)}"
    elif isinstance(node, ast.Name) and node.id in _FUNCTIONS:
        yield node.id
    elif isinstance(node, ast.Attribute) and node.attr.startswith("__") and node.attr != "__init__":
        yield f".{node.attr}"
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in _MODULES | _FUNCTIONS:
        yield repr(node.value)


def _last(node: ast.AST) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def run(source: str, file: str, arguments: dict[str, Any]) -> Any:
    """Run a file, and its tool with these arguments."""
    name = _class_of(ast.parse(source)).name
    _provide_base()
    module = types.ModuleType("custom_tool")
    sys.modules[module.__name__] = module  # where dataclasses and the like look for it
    exec(compile(source, file, "exec"), module.__dict__)  # noqa: S102 -- it is what this process is for
    result = module.__dict__[name]().execute(**arguments)
    return asyncio.run(result) if inspect.iscoroutine(result) else result


def _provide_base() -> None:
    parts = _BASE_MODULE.split(".")
    for depth in range(1, len(parts) + 1):
        path = ".".join(parts[:depth])
        sys.modules[path] = types.ModuleType(path)
    sys.modules[_BASE_MODULE].__dict__[_BASE] = Tool
