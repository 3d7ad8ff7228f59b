"""Training methods and their losses; methods are chosen by name, losses imported from here.

Nothing here imports torch until a name is used, so listing the methods is instant.
"""

from pams_mil.discover import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
