"""Take from a submitted notebook what one exercise needs, and no more.

A submission is read, never run as a whole: its cells are split into statements, and of these an
exercise gets the one that defines its answer and, in turn, those that define the names it uses, and
those above its check that may change them: `axes.append(1)`, `cache["axis"] = 1`, `fill(cache)`.
A name that the submission defines nowhere is looked up in the course's own notebook. What a cell
only prints, draws or calls is left out, and so is everything in a cell that does not parse.
"""

import ast
import json
import re
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
class Effects:
    """What running some code may change: the objects of these names, and what these functions do.

    `changes` comes from items and attributes that are set, and methods that are called; `hands` are
    pairs (function, argument) of calls whose value nobody keeps, as in `fill(cache)`.
    """

    changes: frozenset = frozenset()
    hands: frozenset = frozenset()
    calls: frozenset = frozenset()


@dataclass(frozen=True)
class Statement:
    """One top-level statement of a code cell, with the names that it binds and reads.

    `effects` has it when it runs; `inside` has the function that it defines when that is called.
    `declares` are the names that the function binds as `global`.
    """

    cell: int
    node: ast.stmt
    binds: frozenset
    reads: frozenset
    declares: frozenset
    effects: Effects
    inside: Effects


class Notebook:
    """The code cells of a notebook: `sources`, their `statements`, and `broken` {cell: error}."""

    def __init__(self, path):
        try:
            cells = json.loads(path.read_text(encoding="utf-8-sig"))["cells"]
            self.sources = ["".join(cell["source"]) for cell in cells
                            if cell["cell_type"] == "code"]
        except (OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError) as error:
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
            if name := _checks(statement):
                yield statement.cell, name, statement.node.value


_RUNS_ITS_CELL = re.compile(r"\s*%%(time|capture|prun)\b.*")


def _parse(source):
    """The syntax tree of a cell as Jupyter runs it: with `%magic`, `!command` and `name?`."""
    try:
        return ast.parse(source)
    except SyntaxError:
        pass
    source = _RUNS_ITS_CELL.sub("pass", source, count=1) if _RUNS_ITS_CELL.match(source) else source
    try:
        from IPython.core.inputtransformer2 import TransformerManager
    except ImportError:
        return ast.parse(source)
    blank = len(source) - len(source.lstrip("\n"))    # which IPython drops, and lines have numbers
    return ast.parse("\n" * blank + TransformerManager().transform_cell(source))


def _statement(cell, node):
    top = symtable.symtable(ast.unparse(node), "cell", "exec")
    binds = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    reads, scopes = {s.get_name() for s in top.get_symbols() if s.is_referenced()}, [top]
    reads |= binds & {part.target.id for part in ast.walk(node) if isinstance(part, ast.AugAssign)
                      and isinstance(part.target, ast.Name)}         # symtable: x += 1 only binds x
    declares = set()
    while scopes:
        scope = scopes.pop()
        scopes += scope.get_children()
        if scope is not top:
            mine = [s for s in scope.get_symbols() if s.is_global()]
            reads |= {s.get_name() for s in mine}
            declares |= {s.get_name() for s in mine if s.is_declared_global() and s.is_assigned()}
    inside = _effects(node.body) if isinstance(node, ast.FunctionDef) else Effects()
    return Statement(cell, node, frozenset(binds), frozenset(reads), frozenset(declares),
                     _effects([node]), inside)


def _effects(nodes):
    """The effects of running these nodes; a function that they define has its own when it is called."""
    changes, hands, calls, pending = set(), set(), set(), list(nodes)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Lambda):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            changes |= {_root(part) for part in node.decorator_list if not isinstance(part, ast.Name)}
            continue
        pending += ast.iter_child_nodes(node)
        if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
            changes.add(_root(node))
        elif isinstance(node, ast.Call):
            (calls if isinstance(node.func, ast.Name) else changes).add(_root(node.func))
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            hands |= {(_root(call.func), _root(part))
                      for part in (*call.args, *(k.value for k in call.keywords))}
    return Effects(*(frozenset(names - {None}) for names in (changes, hands, calls)))


def _root(node):
    """The name that a chain such as `name.part[0].method()` begins with, or None."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.Starred):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


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
    needed, first = {}, len(original.statements)
    asked = {s.cell for s in submission.statements if s.cell > chosen.cell and _checks(s) == task.check}
    last = max([chosen.cell, *asked])
    while pending:
        statement = pending.pop()
        place = places.get(id(statement), start)
        if place in needed:
            continue
        needed[place] = statement
        for name in statement.reads:
            found = _binding(name, place, pool, first)
            if found is not None:
                pending += [*_earlier(name, found, pool, first),
                            *_changing(name, found, pool, first, last)]
    ordered = [needed[place] for place in sorted(needed)]
    return [s for s in ordered if id(s) in places], chosen, expression


def _binding(name, place, pool, first):
    """The statement that `name` means at `place`: the last one before, or else the next one."""
    mine = ([n for n, s in enumerate(pool) if name in s.binds and n != place]
            or [n for n, s in enumerate(pool) if name in s.declares])
    if place >= first and any(n >= first for n in mine):
        mine = [n for n in mine if n >= first]
    else:
        mine = [n for n in mine if n < first]
    before = [n for n in mine if n < place]
    return before[-1] if before else (mine[0] if mine else None)


def _earlier(name, found, pool, first):
    """The statement that binds a name and, where it may not do so (`if …:`), those before it."""
    taken = [pool[found]]
    for statement in reversed(pool[first if found >= first else 0:found]):
        if not isinstance(taken[-1].node, ast.If | ast.Try | ast.For | ast.While):
            break
        if name in statement.binds:
            taken.append(statement)
    return taken


def _changing(name, found, pool, first, last):
    """The statements that may change what `name` is, between its binding and the check.

    In the course's own cells, only those beside the binding: the rest of them draws and prints, which
    is what flashlib does with an argument, too.
    """
    binding = pool[found]
    if isinstance(binding.node, ast.Import | ast.ImportFrom):
        return []
    handed = not isinstance(binding.node, ast.FunctionDef | ast.ClassDef)
    if found < first or binding.cell > last:
        last = binding.cell
    after = [s for s in pool[found + 1:len(pool) if found >= first else first] if s.cell <= last]
    shows = {"print", "display"} | {n for s in pool if isinstance(s.node, ast.Import | ast.ImportFrom)
                                    and "flashlib" in ast.unparse(s.node) for n in s.binds}
    defined = {s.node.name: s for s in (pool[first:] if found >= first else pool[:first])
               if isinstance(s.node, ast.FunctionDef)}
    return [s for s in after if not _checks(s) and (
        name in _changes(s.effects, defined, set()) or (
            handed and any(name == given and who not in shows for who, given in s.effects.hands)))]


def _changes(effects, defined, seen):
    """All that the effects change, those of the functions called included."""
    changed = set(effects.changes)
    for name in (effects.calls & defined.keys()) - seen:
        called = defined[name]
        changed |= called.declares | _changes(called.inside, defined, seen | {name})
    return changed


def _checks(statement):
    """The name of the check that a statement calls, or None."""
    call = getattr(statement.node, "value", None)
    if isinstance(call, ast.Call) and call.args:
        name = getattr(call.func, "attr", None) or getattr(call.func, "id", "")
        return name if name.startswith("check_") else None
    return None


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
