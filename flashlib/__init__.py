"""FlashAttention from softmax to silicon: the tested implementations behind the course's notebooks.

The front door imports NumPy only; everything else arrives when it is first asked for.
"""

from typing import TYPE_CHECKING

from flashlib.lazy import attach

if TYPE_CHECKING:
    from flashlib.kernels.attention import flash_attention as flash_attention

__version__ = "0.1.0"

# Where each name lives.
_HOMES = {
    "Machine": "machine.machine", "SRAMOverflow": "errors", "Traffic": "machine.traffic",
    "naive_softmax": "algorithms.softmax", "safe_softmax": "algorithms.softmax",
    "online_softmax": "algorithms.softmax", "SoftmaxState": "algorithms.state",
    "standard_attention": "algorithms.standard", "multi_pass_attention": "algorithms.multi_pass",
    "one_pass_attention": "algorithms.one_pass", "flash_v1": "algorithms.flash_v1",
    "flash_v2": "algorithms.flash_v2", "flash_v3": "algorithms.flash_v3",
    "flash_v4": "algorithms.flash_v4", "flash_decode": "algorithms.flash_decode",
    "flash_scores": "algorithms.flash_scores", "flash_backward": "algorithms.flash_backward",
    "standard_training_forward": "algorithms.standard_backward",
    "standard_backward": "algorithms.standard_backward", "naive_matmul": "algorithms.matmul",
    "tiled_matmul": "algorithms.matmul", "largest_blocks": "models.blocks",
    "paper_blocks": "models.blocks", "flash_attention": "kernels.attention",
    "doctor": "course.notebook.doctor",
}
_MODULES = {
    **{name: name for name in ("hardware", "integrations", "kernels", "lens", "masks", "models",
                               "numerics", "parallel", "quant")},
    "data": "course.notebook.data",
    **{name: f"course.{name}" for name in ("exercises", "plots", "widgets")},
}

__all__ = [*_HOMES, *_MODULES]
__getattr__, __dir__ = attach(__name__, _HOMES, _MODULES)
