"""What v4's two ideas gain on Hopper: simulated, and as recorded in the ablation of our kernel."""

from flashlib.course.notebook import data
from flashlib.models.sm import programs

# The recording's name of a change, its name for people, and what the simulator is told.
SWITCHES = {"emulate_25": ("25 % emulated", {"emulate": 0.25}),
            "emulate_50": ("50 % emulated", {"emulate": 0.5}),
            "tau_8": ("τ = 8", {"rescales": 0.0})}
TILES = {64: {"rows": 192, "stages": 3}, 128: {"rows": 128}, 256: {"rows": 128, "keys": 64}}


def _simulated(d: int, **options) -> float:
    """Return cycles for a key tile, with the tiles of the recording."""
    return programs.schedule_of(gpu="H200", d=d, tiles=32, **TILES[d], **options).cycles_per_tile


def on_hopper(recorded: data.Measurement):
    """Return speeds relative to the kernel as it is, as `figures.predicted_gains` draws them.

    Returns:
        {shape: rows with label, predicted, measured, low, high}, and {shape: (low, high)}, the range
        of the kernel itself.
    """
    groups, strays = {}, {}
    for full in sorted(recorded.where(impl="full").rows, key=lambda row: (row["d"], row["causal"])):
        shape, own = f"d = {full['d']}{', causal' * full['causal']}", full["tflops_per_s"]
        strays[shape] = full["tflops_per_s_low"] / own, full["tflops_per_s_high"] / own
        groups[shape] = []
        for variant, (label, options) in SWITCHES.items():
            (row,) = recorded.where(impl=variant, **{k: full[k] for k in ("N_q", "d", "causal")}).rows
            groups[shape].append({
                "label": label, "measured": row["tflops_per_s"] / own,
                "low": row["tflops_per_s_low"] / own, "high": row["tflops_per_s_high"] / own,
                "predicted": _simulated(full["d"]) / _simulated(full["d"], **options)})
    return groups, strays
