"""Published algorithms; importing this package registers them."""

import importlib
import pkgutil

for found in pkgutil.iter_modules(__path__, f"{__name__}."):  # a new one is a file and nothing else
    importlib.import_module(found.name)
