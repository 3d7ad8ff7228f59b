"""Cohorts that need no download: real digits, planted lesions, and local copies of CIFAR-10; loaded on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pams_mil.lazy import lazy_names

if TYPE_CHECKING:
    from pams_mil.cohorts.cifar10_bags import Cifar10
    from pams_mil.cohorts.digits import Digits
    from pams_mil.cohorts.made_cohort import MadeSlide, write_cohort
    from pams_mil.cohorts.synthetic import Synthetic
    from pams_mil.cohorts.synthetic_slide_file import write_slide
    from pams_mil.cohorts.synthetic_slides import Lesion, Piece, Scene

_HOMES = {
    "Cifar10": "cifar10_bags",
    "Digits": "digits",
    "Lesion": "synthetic_slides",
    "MadeSlide": "made_cohort",
    "Piece": "synthetic_slides",
    "Scene": "synthetic_slides",
    "Synthetic": "synthetic",
    "write_cohort": "made_cohort",
    "write_slide": "synthetic_slide_file",
}

__all__ = [
    "Cifar10",
    "Digits",
    "Lesion",
    "MadeSlide",
    "Piece",
    "Scene",
    "Synthetic",
    "write_cohort",
    "write_slide",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
