"""Every regular expression of the project, and texts that take it the longest.

The texts are made from the expression itself: for each of its repetitions, what leads to it, many times what it repeats
(or what leads to it, where that may be repeated), and an end at which it fails. All are tried at a length at which one
that takes more than in proportion stands out, and those that take longest from 10 kB to 1 MB.
"""

import ast
import importlib
import itertools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from re import _constants as sre
from re import _parser
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("nanohost", "scheduler", "conversations", "agent", "memory", "tools")

# Functions of re that take an expression first.
_TAKE_ONE = {"compile", "sub", "subn", "match", "search", "fullmatch", "split", "findall", "finditer"}

# Lengths of texts: all are tried at the first, those that take longest at the others.
LENGTHS = (2_500, 10_000, 100_000, 1_000_000)
TRIED = (6, 2, 1)
# Four times the text may take eight times the time, and ten times the text thirty times: memory is slower than caches,
# and clocks are not exact. A quadratic expression takes sixteen times and a hundred times as long.
MOST = 1.5
# The clock says little of less.
LEAST_SECONDS = 0.0002
# How often what seems slow is tried again.
TRIES = 15


def sources() -> Iterator[Path]:
    """All modules but migrations."""
    for package in PACKAGES:
        yield from (path for path in sorted((ROOT / package).rglob("*.py")) if "migrations" not in path.parts)


Pattern = re.Pattern[Any]
Use = Callable[[Pattern, Any], object]


def expressions(path: Path) -> Iterator[tuple[str, Pattern | None, list[Use]]]:
    """The regular expressions in a module's code: where, the expression, or None if it is known only there, and what is
    done with it."""
    if not re.search(r"\bre\.|RegexValidator", code := path.read_text()):
        return
    tree, module = ast.parse(code), _module(path)
    kept_as = {id(value): name for node in ast.walk(tree) for name, value in _assigned(node)}
    for call in ast.walk(tree):
        if not (isinstance(call, ast.Call) and call.args and (function := _takes_one(call.func))):
            continue
        where = f"{path.relative_to(ROOT)}: {' '.join(ast.unparse(call.args[0]).split())[:60]}"
        methods = {function} if function != "compile" else _methods_of(kept_as.get(id(call), ""), tree)
        try:
            yield where, _compiled(call, vars(module)), _uses(methods)
        except NameError:
            yield where, None, []


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Names that are given a value, each with its own."""
    for target in node.targets if isinstance(node, ast.Assign) else ():
        if isinstance(target, ast.Name):
            yield target.id, node.value
        elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            # Of what is unpacked out of another, nobody knows which is whose.
            for each, value in zip(target.elts, node.value.elts, strict=False):
                yield ast.unparse(each), value


def _compiled(call: ast.Call, names: dict[str, Any]) -> Pattern:
    given = [*call.args[1:], *(keyword.value for keyword in call.keywords if keyword.arg == "flags")]
    flags = [ast.unparse(each) for each in given if ast.unparse(each).startswith("re.")]
    return re.compile(eval(ast.unparse(call.args[0]), names), *(eval(each, names) for each in flags))


def _takes_one(called: ast.expr) -> str:
    """The function of ``re`` that is called, if one is that takes an expression."""
    if isinstance(called, ast.Name) and called.id == "RegexValidator":
        return "search"
    of_re = isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name) and called.value.id == "re"
    return called.attr if of_re and called.attr in _TAKE_ONE else ""


def _methods_of(name: str, tree: ast.AST) -> set[str]:
    """What a module does with an expression that it keeps."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    }


def _uses(methods: set[str]) -> list[Use]:
    """Functions of an expression and a text. One whose use is not seen is looked for everywhere."""
    from_the_start = {"match": re.Pattern.match, "fullmatch": re.Pattern.fullmatch}
    if methods and methods <= from_the_start.keys():
        return [from_the_start[method] for method in methods]
    return [everywhere]


def everywhere(pattern: Pattern, text: Any) -> None:
    """Look for all that matches."""
    for _ in pattern.finditer(text):
        pass


def _module(path: Path) -> ModuleType:
    return importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))


# --- texts an expression takes long for --------------------------------------------------------------------------


Attack = tuple[str, str, str]


def attacks_on(pattern: Pattern) -> list[Attack]:
    """Texts that may take long, as what they begin with, repeat and end with."""
    tree = _parser.parse(pattern.pattern, pattern.flags)
    found: dict[Attack, None] = {}
    for before, body in _repeated("", list(tree)):
        pumps = {body, before, before + body, *(each + other for each in (body, before) for other in _CHARACTERS)}
        for pump, begin in itertools.product(pumps - {""}, {"", before}):
            for end in _ENDS:
                found[begin, pump, end] = None
    return list(found) or [("", "a", "")]


# Nothing, and what few classes of characters go on with.
_ENDS = ("", "\x00")
_CHARACTERS = ("-", ".", ";", "=", " ", ":", ",", "@", "\\", "'", "/", "_", "0")


def _repeated(before: str, nodes: list[Any]) -> Iterator[tuple[str, str]]:
    """Each repetition: what leads to it, and once what it repeats."""
    for operator, argument in nodes:
        if operator in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            least, most, inner = argument
            body = _sample(inner)
            if most > 8:
                yield before, body
                if least > 1:
                    yield before + body * (least - 1), body
            yield from _repeated(before, list(inner))
            before += body * max(least, 0)
            continue
        for inner in _inside(operator, argument):
            yield from _repeated(before, list(inner))
        piece = _sample([(operator, argument)])
        if not (operator in (sre.ASSERT, sre.BRANCH) and before.endswith(piece)):  # it has looked back
            before += piece


def _inside(operator: Any, argument: Any) -> list[Any]:
    if operator is sre.SUBPATTERN:
        return [argument[3]]
    if operator is sre.BRANCH:
        return list(argument[1])
    if operator is sre.ATOMIC_GROUP:
        return [argument]
    if operator in (sre.ASSERT, sre.ASSERT_NOT):
        return [argument[1]]
    if operator is sre.GROUPREF_EXISTS:
        return [each for each in argument[1:] if each is not None]
    return []


def _sample(nodes: Any) -> str:
    """A text that the nodes match, or nearly: what stands around them is not looked at."""
    text = ""
    for operator, argument in nodes:
        if operator is sre.LITERAL:
            text += chr(argument)
        elif operator is sre.NOT_LITERAL:
            text += "a" if argument != ord("a") else "b"
        elif operator is sre.ANY:
            text += "a"
        elif operator is sre.IN:
            text += _one_of(argument)
        elif operator in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            text += _sample(argument[2]) * max(argument[0], 0)
        elif operator is sre.BRANCH:
            text += _sample(argument[1][0])
        elif operator in (sre.SUBPATTERN, sre.ATOMIC_GROUP, sre.GROUPREF_EXISTS):
            inside = _inside(operator, argument)
            text += _sample(inside[0]) if inside else ""
        elif operator is sre.ASSERT and argument[0] < 0:
            text += _sample(argument[1])
    return text


def _one_of(members: Any) -> str:
    """A character of a class; of those that are likely to be in others, too."""
    negated = members[0][0] is sre.NEGATE
    for character in (*"a0A-_ .=/:", "\n", *map(chr, range(33, 127)), "\u00e9"):
        if any(_is_in(character, *member) for member in members if member[0] is not sre.NEGATE) != negated:
            return character
    return "\u4e00"


def _is_in(character: str, operator: Any, argument: Any) -> bool:
    if operator is sre.LITERAL:
        return ord(character) == argument
    if operator is sre.RANGE:
        return argument[0] <= ord(character) <= argument[1]
    category = str(argument).removeprefix("CATEGORY_").lower()
    of = {"digit": str.isdigit, "space": str.isspace, "word": lambda each: each.isalnum() or each == "_"}
    return bool(of[category.removeprefix("not_")](character)) != category.startswith("not_")


# --- how long it takes -------------------------------------------------------------------------------------------


def text_of(attack: Attack, length: int) -> str:
    """The text, of about that length."""
    begin, pump, end = attack
    return begin + (pump * (length // len(pump) + 1))[:length] + end


def grows_too_fast(use: Callable[[Any], object], attacks: Sequence[Attack], of: Callable[[str], Any] = str) -> str:
    """The text that takes more than in proportion to its length, and how long; "" if none is found.

    ``use`` is given what ``of`` makes of a text.
    """
    tried = list(attacks)
    for length, next_length, most in zip(LENGTHS, LENGTHS[1:], TRIED, strict=False):
        taken = {attack: _seconds(use, of(text_of(attack, length))) for attack in tried}
        tried = sorted(tried, key=taken.__getitem__, reverse=True)[:most]
        for attack in tried:
            short, long = of(text_of(attack, length)), of(text_of(attack, next_length))
            times = (next_length / length) ** MOST
            if _seconds(use, long) > times * max(taken[attack], LEAST_SECONDS):
                # A pause of the machine's is in some of many tries, and not in the best of them.
                took, before = _seconds(use, long, TRIES), _seconds(use, short, TRIES)
                if took > times * max(before, LEAST_SECONDS):
                    return f"{text_of(attack, 40)!r}…: {took:.4f} s for {next_length}, {before:.5f} s for {length}"
    return ""


def _seconds(use: Callable[[Any], object], text: Any, times: int = 1) -> float:
    """The processor's, at best."""
    best = float("inf")
    for _ in range(times):
        began = time.process_time()
        use(text)
        best = min(best, time.process_time() - began)
    return best
