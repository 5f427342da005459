"""All promises of `flash_attention` by name: what every backend is held to."""

from tests.kernels import behaviours, behaviours_autograd, behaviours_scores, behaviours_window


def made_in(*modules):
    """Return name → check of some modules."""
    return {name.removeprefix("check_"): check for module in modules
            for name, check in vars(module).items()
            if name.startswith("check_") and name != "check_values"}


WINDOWS = made_in(behaviours_window)
SCORES = made_in(behaviours_scores)
PROMISES = made_in(behaviours, behaviours_autograd) | WINDOWS | SCORES
# About addresses and bookkeeping, not digits: one dtype shows them.
LAYOUT = ("layouts", "one_laid_apart", "expanded", "grouped", "repeatable", "poisoned_surroundings",
          "one_tensor_for_all", "autograd_errors", "double_backward", "tangents", "transforms",
          "negative_bit", "window_values", "window_and_causal", "window_options",
          "window_prefix", "scores_repeat", "scores_without_keys")
