"""Facts as data, with typed loaders: models, hardware, engines, workloads, deployments, and prices."""

import lazy_loader

# The public names are those of __init__.pyi; a name is imported when it is first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
