"""Cohorts on disk: bags of features in any common layout, manifests, splits, packs and the training dataset.

Names are loaded on first use, so that reading a manifest imports neither h5py nor torch.
"""

from pams_mil.discover import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
