"""All promises of `flash_attention` by name: what every backend is held to."""

from tests.kernels import behaviours, behaviours_autograd

PROMISES = {name.removeprefix("check_"): check
            for module in (behaviours, behaviours_autograd) for name, check in vars(module).items()
            if name.startswith("check_") and name != "check_values"}
