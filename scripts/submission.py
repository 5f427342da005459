"""Take from a submitted notebook what one exercise needs, and no more.

A submission is read, never run as a whole: its cells are split into statements, and of these an
exercise gets the one that defines its answer and, in turn, those that define the names it uses.
A name that the submission defines nowhere is looked up in the course's own notebook. What a cell
only prints, draws or calls is left out, and so is everything in a cell that does not parse.
"""

import ast
import json
import symtable
from dataclasses import dataclass


class NoAnswer(Exception):
    """The submission holds no answer that could be run; the text says why."""


@dataclass(frozen=True)
class Task:
    """An exercise as the course's notebook asks it: `check(argument)`."""

    exercise: str
    check: str
    argument: ast.expr


@dataclass(frozen=True)
class Statement:
    """One top-level statement of a code cell, with the names that it binds and reads."""

    cell: int
    node: ast.stmt
    binds: frozenset
    reads: frozenset


class Notebook:
    """The code cells of a notebook: `sources`, their `statements`, and `broken` {cell: error}."""

    def __init__(self, path):
        try:
            cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
            self.sources = ["".join(cell["source"]) for cell in cells
                            if cell["cell_type"] == "code"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise NoAnswer(f"the file is no notebook ({type(error).__name__})") from None
        self.statements, self.broken = [], {}
        for cell, source in enumerate(self.sources):
            try:
                self.statements += [_statement(cell, node) for node in _parse(source).body]
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                self.broken[cell] = error

    def calls(self):
        """Yield (cell, name, call) of every top-level call like `ex.check_this(answer)`."""
        for statement in self.statements:
            call = getattr(statement.node, "value", None)
            if isinstance(call, ast.Call) and call.args:
                name = getattr(call.func, "attr", None) or getattr(call.func, "id", "")
                if name.startswith("check_"):
                    yield statement.cell, name, call


def _parse(source):
    try:
        return ast.parse(source)
    except SyntaxError:
        lines = [line[:len(line) - len(line.lstrip())] + "pass" if line.lstrip()[:1] in ("%", "!")
                 else line for line in source.splitlines()]          # IPython's magics
        return ast.parse("\n".join(lines))


def _statement(cell, node):
    top = symtable.symtable(ast.unparse(node), "cell", "exec")
    binds = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    reads, scopes = {s.get_name() for s in top.get_symbols() if s.is_referenced()}, [top]
    while scopes:
        scope = scopes.pop()
        scopes += scope.get_children()
        if scope is not top:
            reads |= {s.get_name() for s in scope.get_symbols() if s.is_global()}
    return Statement(cell, node, frozenset(binds), frozenset(reads))


def tasks(original, exercises):
    """Return {exercise: Task} from the course's notebook; `exercises` is {check's name: exercise}."""
    return {exercises[name]: Task(exercises[name], name, call.args[0])
            for _, name, call in original.calls() if name in exercises}


def answer(task, submission, original):
    """Return (statements, chosen, expression): what to run in order, and what to hand in.

    `chosen` is the statement among them that makes the answer.
    """
    if isinstance(task.argument, ast.Name):
        chosen = _definition(task, submission, original)
        expression, pending = task.argument, [chosen]
    else:
        calls = [(cell, call) for cell, name, call in submission.calls() if name == task.check]
        if not calls:
            raise NoAnswer(_missing(task, submission, f"nothing calls {task.check}"))
        cell, call = calls[-1]
        expression = call.args[0]
        chosen = _statement(cell, ast.Expr(expression))
        pending = [chosen]
    pool = original.statements + submission.statements
    places = {id(statement): place for place, statement in enumerate(pool)}
    start = max([place for place, s in enumerate(pool) if place >= len(original.statements)
                 and s.cell <= chosen.cell], default=len(pool)) + 0.5      # where a bare call stands
    pending += [s for s in submission.statements if isinstance(s.node, ast.ImportFrom)
                and s.node.names[0].name == "*"]
    needed = {}
    while pending:
        statement = pending.pop()
        place = places.get(id(statement), start)
        if place in needed:
            continue
        needed[place] = statement
        for name in statement.reads:
            found = _binding(name, place, pool, len(original.statements))
            if found is not None and found not in needed:
                pending.append(pool[found])
    ordered = [needed[place] for place in sorted(needed)]
    return [s for s in ordered if not isinstance(s.node, ast.Expr)], chosen, expression


def _binding(name, place, pool, first):
    """The statement that `name` means at `place`: the last one before, or else the next one."""
    mine = [n for n, s in enumerate(pool) if name in s.binds and n != place]
    if place >= first and any(n >= first for n in mine):
        mine = [n for n in mine if n >= first]
    else:
        mine = [n for n in mine if n < first]
    before = [n for n in mine if n < place]
    return before[-1] if before else (mine[0] if mine else None)


def _definition(task, submission, original):
    """The statement that defines the answer, but not one that the course's text has above."""
    name = task.argument.id
    asked = {cell for cell, check, _ in original.calls() if check == task.check}
    given = {source.strip() for cell, source in enumerate(original.sources) if cell not in asked}
    found = [s for s in submission.statements if name in s.binds
             and submission.sources[s.cell].strip() not in given]
    beside = {cell for cell, check, _ in submission.calls() if check == task.check}
    found = [s for s in found if s.cell in beside] or found
    if not found:
        raise NoAnswer(_missing(task, submission, f"the notebook does not define {name}"))
    return found[-1]


def _missing(task, submission, otherwise):
    names = {task.check, getattr(task.argument, "id", task.check)}
    for cell, error in submission.broken.items():
        if any(name in submission.sources[cell] for name in names):
            place = f", line {error.lineno}" if getattr(error, "lineno", None) else ""
            return f"the cell does not parse: {getattr(error, 'msg', error)}{place}"
    return otherwise
