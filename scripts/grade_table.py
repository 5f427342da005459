"""The CSV files that `grade.py` writes: no row that was graded is lost."""

import contextlib
import csv
import io


class Table:
    """A CSV file that holds every row as soon as it is known.

    Rows go into `<name>.part`, which gets its name when all are there: a run that is stopped leaves the
    rows so far, and the table of an earlier run. It begins with the mark by which Excel knows UTF-8.

    Raises:
        OSError: the file cannot be made, which is known before anything is graded.
    """

    def __init__(self, path, columns):
        self.path, self.part = path, path.with_name(f"{path.name}.part")
        self.rows, self.failure = [], None
        if path.exists() and not path.is_file():
            raise OSError(None, "it is no file", str(path))
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = self._open()
        self.write([columns])

    def _open(self):
        return open(self.part, "w", encoding="utf-8-sig", errors="backslashreplace", newline="")

    def write(self, rows):
        """Add rows; where that fails they are kept for `finish`."""
        rows = [[_plain(value) for value in row] for row in rows]
        self.rows += rows
        if self.failure is None:
            try:
                csv.writer(self.file).writerows(rows)
                self.file.flush()
            except OSError as error:                  # the disk is full
                self.failure = error

    def finish(self):
        """Give the file its name, once more from the start if a row could not be written."""
        with contextlib.suppress(OSError):
            self.file.close()
        if self.failure is not None:
            with self._open() as file:
                csv.writer(file).writerows(self.rows)
        self.part.replace(self.path)

    def text(self):
        """All rows as CSV, to be shown where no file can hold them."""
        shown = io.StringIO(newline="")
        csv.writer(shown).writerows(self.rows)
        return shown.getvalue()


def _plain(value):
    """Return a cell that a spreadsheet shows and does not compute: `=1+1` is text, too."""
    if not isinstance(value, str):
        return value
    value = " ".join(value.replace("\0", "\\0").split())
    return f"'{value}" if value.startswith(("=", "+", "-", "@")) else value
