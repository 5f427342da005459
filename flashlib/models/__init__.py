"""Closed forms: what an algorithm moves, how long a GPU needs for it, which blocks fit.

Import the module you need, as in `from flashlib.models import roofline, traffic`; or ask for it,
`flashlib.models.traffic`, which imports it then.
"""

import pkgutil

from flashlib.lazy import attach

__all__ = [module.name for module in pkgutil.iter_modules(__path__)]
__getattr__, __dir__ = attach(__name__, {}, {name: name for name in __all__})
