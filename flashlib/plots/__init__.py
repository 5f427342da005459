"""Pictures: data in, a figure out. Nothing is computed here that a chapter claims.

Every function returns a figure that shows itself in a notebook, or draws into `ax=` and returns
that. Importing this module also teaches IPython to show small arrays as colored grids.
"""

from __future__ import annotations

import sys
import types

from flashlib.extras import load

_HOMES = {
    "TENSOR_COLORS": "theme", "WIDTH": "theme", "describe": "theme", "figure": "theme",
    "human_bytes": "theme", "style": "theme", "styled": "theme", "subplots": "theme",
    "tensor_color": "theme", "use_theme": "theme", "version_style": "theme",
    "show": "matrices", "heatmap": "heatmap", "register_formatters": "matrices",
    "tile_visits": "tiles", "key_frames": "tiles", "compare": "tiles",
    "traffic_bars": "traffic", "sram_gauge": "traffic", "sweep": "curves",
    "roofline": "roofline", "ratio_map": "region",
    "block_lab": "blocks", "ratio_maps": "blocks", "tile_classes": "blocks",
    "overflow_map": "overflow", "exp_range": "overflow",
    "running_state": "running", "rescale_events": "running",
    "error_growth": "running", "merge_orders": "running",
    "rescale_before_after": "attention",
    "matmul_frames": "matmul", "matmul_visits": "matmul", "intensity_by_tile": "matmul",
    "matmul_lab": "matmul",
    "launch_hierarchy": "threads", "coalescing": "threads", "banks": "threads",
    "gpu_anatomy": "memory_wall", "memory_pyramids": "memory_wall", "ten_steps": "memory_wall",
    "predicted_measured": "memory_wall",
    "layer_roofline": "layer", "layer_shares": "layer", "roofline_lab": "layer",
    "saved_memory": "backward", "what_is_kept": "backward", "backward_orders": "backward",
    "training_time": "backward",
    "occupancy_grid": "reorder", "wave_steps": "reorder", "schedules": "reorder",
    "causal_rows": "reorder", "time_parts": "reorder", "warp_partition": "reorder",
    "occupancy_lab": "reorder",
    "kernel_race": "kernel_race", "race_by_shape": "kernel_race", "softmax_share": "kernel_race",
    "origin": "kernel_race",
    "lanes": "kernels", "program_grid": "kernels", "softmax_rates": "kernels",
    "time_maps": "heatmaps", "predicted_scatter": "heatmaps", "agreement": "heatmaps",
    "tuning_curves": "heatmaps", "tile_lab": "tile_lab",
    "unit_race": "exp2", "exp2_errors": "exp2", "share_sweep": "exp2", "stale_maximum": "exp2",
    "skipped_maps": "exp2", "mass_curve": "exp2", "predicted_gains": "exp2", "exp2_lab": "exp2",
    "gantt": "schedule", "utilization_bars": "schedule", "gains": "schedule",
    "schedule_lab": "schedule", "kernel_timeline": "schedule",
    "bit_fields": "fp8", "number_line": "fp8", "outlier_spread": "fp8", "scale_dilemma": "fp8",
    "error_bars": "fp8", "register_layout": "fp8", "fp8_race": "fp8", "fp8_step": "fp8",
    "fp8_lab": "fp8",
    "course_map": "course", "surprise": "course", "memory_ladder": "course",
}

__all__ = list(_HOMES)


def __getattr__(name: str):
    if name in _HOMES:
        value = getattr(load(f"{__name__}.{_HOMES[name]}", name), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'flashlib.plots' has no attribute {name!r}")


def __dir__():
    return __all__


class _Front(types.ModuleType):
    """Keeps a function reachable whose submodule has the same name: importing would hide it."""

    def __setattr__(self, name, value):
        if not (name in _HOMES and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Front

if "IPython" in sys.modules and (_shell := sys.modules["IPython"].get_ipython()) is not None:
    __getattr__("register_formatters")(_shell)
