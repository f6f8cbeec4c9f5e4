"""C++ lexer of the contract checks: lines, directives, tokens, attributes.

Each language adds its lists of headers, pragmas, words and compiler names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from retuned.errors import CandidateError
from retuned.lab.languages.cpp_text import without_comments

_DIRECTIVES = frozenset(
    {
        "define",
        "undef",
        "if",
        "ifdef",
        "ifndef",
        "else",
        "elif",
        "endif",
        "include",
        "pragma",
        "error",
    }
)
_TRIGRAPH = re.compile(r"\?\?[=/'()!<>-]")
_DIGRAPHS = ("<:", ":>", "<%", "%>", "%:")
_MACRO = re.compile(r"([A-Z][A-Z0-9_]*)(?:\(|\s|$)")
"""Names that the headers do not use themselves: a macro called `return` would rewrite them."""
_LINE_CHARS = 20_000
_ATTRIBUTE_TOKENS = 200
_TOKEN = re.compile(
    r'"(?:[^"\\\n]|\\.)*"'
    r"|'(?:[^'\\\n]|\\.)*'"
    r"|\.?\d(?:[eEpP][+-]|'\w|[\w.])*"
    r"|[A-Za-z_]\w*"
    r"|##|::|[^\s\w]"
)
_RAW_STRING = re.compile(r'(?<![A-Za-z0-9_])(?:u8|u|U|L)?R"')


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRules:
    """Allowed contents of a language's text."""

    headers: frozenset[str]
    pragmas: re.Pattern[str]


class ContractViolated(CandidateError):
    """The source violates the contract; it was neither compiled nor run."""

    def __init__(self, detail: str) -> None:
        super().__init__("contract-violated", detail=detail)


def tokens_of(text: str) -> list[str]:
    """Return the tokens of a text without comments.

    Examples
    --------
    >>> tokens_of('x[10] += "a" ## y;')
    ['x', '[', '10', ']', '+', '=', '"a"', '##', 'y', ';']
    """
    return [match.group(0) for match in _TOKEN.finditer(text)]


def check_text(
    text: str, rules: TextRules, *, where: str, own_headers: frozenset[str] = frozenset()
) -> str:
    """Check one file as written, and return it without comments.

    `own_headers` are files that it may include by ``"name"``.

    Raises
    ------
    ContractViolated
        On the first thing outside the allow-list; names the line.
    """
    text = text.replace("\r\n", "\n")
    for number, line in enumerate(text.split("\n"), 1):
        if not line.replace("\t", "").isprintable():
            raise ContractViolated(f"{where}:{number}: control or invisible characters")
        if len(line) > _LINE_CHARS:
            raise ContractViolated(f"{where}:{number}: a line of {len(line)} characters")
    if _TRIGRAPH.search(text):
        raise ContractViolated(f"{where}: trigraphs are not allowed")
    try:
        bare = without_comments(text)
    except ValueError as error:
        raise ContractViolated(f"{where}: {error}") from None
    if not bare.isascii():
        raise ContractViolated(f"{where}: only ASCII is allowed outside comments")
    for number, line in enumerate(bare.splitlines(), 1):
        check_line(line.strip(), rules, where=f"{where}:{number}", own_headers=own_headers)
    return bare


def check_line(
    line: str, rules: TextRules, *, where: str, own_headers: frozenset[str] = frozenset()
) -> None:
    if any(pair in line for pair in _DIGRAPHS) or _RAW_STRING.search(line):
        raise ContractViolated(f"{where}: digraphs and raw strings are not allowed")
    if not line.startswith("#"):
        return
    directive, _, rest = line[1:].strip().partition(" ")
    match = re.match(r"[a-z_]*", directive)
    word = match.group(0) if match else ""
    rest = (directive[len(word) :] + " " + rest).strip()
    if word not in _DIRECTIVES:
        raise ContractViolated(f"{where}: directive '#{directive[:40]}' is not allowed")
    if "__has_" in rest or "_Pragma" in rest or "__COUNTER__" in rest:
        raise ContractViolated(f"{where}: '{rest[:40]}' is not allowed in a directive")
    if word == "include":
        system = re.fullmatch(r"<([a-z0-9_.]+)>", rest)
        own = re.fullmatch(r'"([A-Za-z0-9_.-]+)"', rest)
        if not (system and system.group(1) in rules.headers) and not (
            own and own.group(1) in own_headers
        ):
            raise ContractViolated(f"{where}: header {rest[:60]} is not on the allow-list")
    if word in ("define", "undef"):
        macro = _MACRO.match(rest + " ")
        if macro is None or "__" in macro.group(1):
            raise ContractViolated(
                f"{where}: macro '{rest[:40]}' must have a name of capitals, so that no header "
                "means it"
            )
    if word == "pragma" and rules.pragmas.fullmatch(rest) is None:
        raise ContractViolated(f"{where}: '#pragma {rest[:40]}' is not allowed")


def check_attributes(tokens: list[str], *, allowed: frozenset[str]) -> None:
    """Refuse attributes outside the list, such as those that name sections or symbols.

    Raises
    ------
    ContractViolated
        On the first violation.
    """
    for index, token in enumerate(tokens):
        if token == "__attribute__":
            begin, brackets = index + 1, ("(", ")")
        elif token == "[" and tokens[index + 1 : index + 2] == ["["]:
            begin, brackets = index, ("[", "]")
        else:
            continue
        part = tokens[begin : begin + _ATTRIBUTE_TOKENS]
        for name in _names_at_depth(part, *brackets, depth=2):
            if name.strip("_") not in allowed:
                raise ContractViolated(f"attribute '{name[:40]}' is not on the allow-list")


def _names_at_depth(tokens: list[str], opening: str, closing: str, *, depth: int) -> Iterator[str]:
    """Yield words directly inside `depth` brackets, without arguments."""
    level = arguments = 0
    for token in tokens:
        if token == opening:
            level += 1
        elif token == closing:
            level -= 1
        elif token in "()":
            arguments += 1 if token == "(" else -1
        elif level == depth and not arguments and (token[0].isalpha() or token[0] == "_"):
            yield token
        if level == 0:
            return
    raise ContractViolated(f"attributes of more than {_ATTRIBUTE_TOKENS} words")
