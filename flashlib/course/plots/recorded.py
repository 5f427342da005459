"""What a figure says of a measurement that was recorded."""

from flashlib.course.notebook.data import Measurement


def origin(race: Measurement) -> str:
    """Return where and when a measurement was recorded, in words."""
    return f"recorded on {race.provenance['gpu']}, {race.provenance['date']}"
