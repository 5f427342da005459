"""The course's running examples and recorded measurements, read from files beside the package.

Two inputs run through every notebook: a toy that is small enough to print, and four attention
heads of a trained language model over one English sentence. Recorded GPU measurements are read
here too, with the header that says where each came from.
"""

import contextlib
import csv
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

PACKAGE = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, eq=False)
class Toy:
    """A 6 × 4 attention problem whose every number fits on one line."""

    Q: np.ndarray
    K: np.ndarray
    V: np.ndarray

    @property
    def logits(self):
        """The logits QKᵀ/√d, (6, 6): all of them halves of integers."""
        return self.Q @ self.K.T / self.Q.shape[1] ** 0.5


def toy():
    """Return the toy: six queries, keys and values of dimension four, in float64.

    The row maximum behaves differently in every row. Row 0 meets a new maximum at four keys in
    turn (1, 2, 3, 4), so that an online softmax must rescale again and again; row 5 meets its
    maximum at the first key and never rescales; row 3 does so only at the last key.

    Example:
        >>> toy().logits[0].tolist()
        [-1.5, 1.5, 2.5, 3.0, 3.5, -1.5]
    """
    Q = [[0, 2, 2, -1], [1, 0, 2, 1], [0, 1, 1, 2], [0, 0, -1, 2], [2, 0, 2, 1], [2, -1, -1, 0]]
    K = [[2, -1, 0, 1], [1, 1, 1, 1], [2, 0, 2, -1], [0, 1, 2, 0], [1, 1, 2, -1], [0, 0, -1, 1]]
    V = [[1, 0, 2, 0], [0, 1, 0, 2], [2, 1, 0, 0], [0, 0, 1, 1], [1, 2, 1, 0], [0, 2, -1, 1]]
    return Toy(*(np.array(rows, dtype=np.float64) for rows in (Q, K, V)))


@dataclass(frozen=True, eq=False)
class Sentence:
    """Q, K and V of a few real attention heads over one sentence, with its tokens.

    Attributes:
        Q, K, V: (heads, N, d), projected with bias, not yet scaled by 1/√d.
        tokens: the N wordpieces, `[CLS]` and `[SEP]` included.
        text: the sentence itself.
        heads: one description for each head.
        places: (layer, head) of each head inside the model, counted from 0.
        source: which model it is, and its licence.
    """

    Q: np.ndarray
    K: np.ndarray
    V: np.ndarray
    tokens: tuple[str, ...]
    text: str
    heads: tuple[str, ...]
    places: tuple[tuple[int, int], ...]
    source: str

    def head(self, h):
        """Return (Q, K, V) of head `h`, each (N, d)."""
        h = self._checked(h)
        return self.Q[h], self.K[h], self.V[h]

    def logits(self, h):
        """Return QKᵀ/√d of head `h`, (N, N): row = the token that looks, column = looked at."""
        Q, K, _ = self.head(h)
        return Q @ K.T * Q.dtype.type(Q.shape[1] ** -0.5)

    def _checked(self, h):
        count = len(self.heads)
        if isinstance(h, bool) or not isinstance(h, (int, np.integer)):
            raise TypeError(f"h: expected a head number from 0 to {count - 1}, got {h!r}")
        if not 0 <= h < count:
            raise ValueError(f"h: expected a head number from 0 to {count - 1}, got {h}")
        return int(h)


def sentence(dtype=np.float64):
    """Return the course's sentence: four heads of all-MiniLM-L6-v2 over 56 tokens, d = 32.

    The file holds float32; `dtype` (a floating type) is what comes back. How the heads were
    taken, and what each of them does, stands in `assets/data/README.md`.

    Example:
        >>> sentence().Q.shape
        (4, 56, 32)
    """
    try:
        floating = np.issubdtype(np.dtype(dtype), np.floating)
    except TypeError:
        floating = False
    if not floating:
        raise TypeError(f"dtype: expected a floating type such as np.float64, got {dtype!r}")
    with np.load(asset("data", "sentence_heads.npz"), allow_pickle=False) as file:
        places = zip(file["layers"].tolist(), file["heads"].tolist(), strict=True)
        return Sentence(**{name: file[name].astype(dtype) for name in "QKV"}, text=str(file["text"]),
                        tokens=tuple(map(str, file["tokens"])), places=tuple(places),
                        heads=tuple(map(str, file["descriptions"])), source=str(file["source"]))


@dataclass(frozen=True, eq=False)
class Measurement:
    """A recorded measurement: rows of numbers, and the provenance that makes them mean something.

    Attributes:
        provenance: the `# key: value` lines at the file's head: GPU, versions, date, command.
        rows: one dictionary a line; numbers are int or float, an empty cell is None.
        columns: the names of the columns, in the file's order.
    """

    provenance: dict[str, str]
    rows: list[dict]
    columns: tuple[str, ...] = field(default=())

    def column(self, name):
        """Return one column as an array; in a column of numbers an empty cell becomes NaN."""
        self._check_columns([name])
        cells = [row[name] for row in self.rows]
        if any(isinstance(cell, str) for cell in cells):
            return np.array(["" if cell is None else str(cell) for cell in cells])
        return np.array([np.nan if cell is None else cell for cell in cells])

    def where(self, **equal):
        """Return the rows whose cells equal the given ones, as a Measurement of the same origin.

        Example: `measurements("attention_demo_h200").where(impl="flash", mode="forward")`.
        """
        self._check_columns(equal)
        kept = [row for row in self.rows if all(row[k] == v for k, v in equal.items())]
        return Measurement(self.provenance, kept, self.columns)

    def number(self, key):
        """Return the number that a line of the provenance holds, such as `ceiling_copy_bytes_per_s`."""
        if key not in self.provenance:
            raise ValueError(f"key: expected one of {', '.join(self.provenance)}, got {key!r}")
        try:
            return float(self.provenance[key])
        except ValueError:
            raise ValueError(f"{key}: expected a number, got {self.provenance[key]!r}") from None

    def numbers(self, prefix):
        """Return the numbers of all keys that begin with a prefix, by the rest of their names.

        Example: `measurements("attention_h200").numbers("overhead_us_")["ours"]`.
        """
        found = {key.removeprefix(prefix): self.number(key) for key in self.provenance
                 if key.startswith(prefix)}
        if not found:
            raise ValueError(f"prefix: expected the beginning of one of {', '.join(self.provenance)},"
                             f" got {prefix!r}")
        return found

    def _check_columns(self, names):
        for name in names:
            if name not in self.columns:
                raise ValueError(f"column: expected one of {', '.join(self.columns)}, got {name!r}")


def measurements(name):
    """Return the measurement recorded in `assets/measurements/<name>.csv`.

    Example: `measurements("attention_demo_h200").provenance["gpu"]`.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f"name: expected the name of a file without .csv, got {name!r}")
    return read_measurement(asset("measurements", f"{name.removesuffix('.csv')}.csv"))


def read_measurement(path):
    """Read a CSV file that begins with `# key: value` lines, such as `flashlib.course.bench` writes."""
    provenance, table = {}, []
    with open(path, encoding="utf-8", newline="") as file:
        for line in file:
            if table or not line.startswith("#"):
                table.append(line)
                continue
            key, colon, value = line[1:].partition(":")
            if not colon:
                raise ValueError(f"{path}: expected '# key: value' at its head, got {line.strip()!r}")
            provenance[key.strip()] = value.strip()
    reader = csv.DictReader(table)
    rows = [{key: _parsed(cell) for key, cell in row.items()} for row in reader]
    return Measurement(provenance, rows, tuple(reader.fieldnames or ()))


def asset(*parts):
    """Return the path of a file of the course, in the installed package or in the checkout.

    Example: `asset("data", "sentence_heads.npz")`.

    Raises:
        FileNotFoundError: it is in neither place.
    """
    if not parts or not all(isinstance(part, str) and part for part in parts):
        raise TypeError(f"parts: expected names such as 'data', 'toy.npz', got {parts!r}")
    # A wheel carries its own copy; a folder named assets beside it could be anyone's.
    installed = PACKAGE / "_assets"
    root = installed if installed.is_dir() else PACKAGE.parent / "assets"
    path = root.joinpath(*parts)
    if not path.exists():
        raise FileNotFoundError(f"The course's file {'/'.join(parts)} is not in {root}: install"
                                " flashlib anew, or import it from a complete checkout of the course.")
    return path


def _parsed(cell):
    for kind in (int, float):
        with contextlib.suppress(ValueError, TypeError):         # an empty cell may be None
            return kind(cell)
    return cell or None
