"""Models that turn a bag of instances into class logits; chosen by name, built by `create_model`.

Nothing here imports torch until a name is used, so listing the models is instant.
"""

from pams_mil.discover import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
