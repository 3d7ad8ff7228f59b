"""Guarantees on missed urgency: how far the dial κ must be turned so that at most a share α is missed.

`certify` makes a `Certificate` from labelled predictions of calibration patients, `apply_certificate` calls new slides
with it, `monitor` asks whether the promise is still kept.
"""

from pams_mil.evaluate.certify.apply import CertifiedCalls, apply_certificate
from pams_mil.evaluate.certify.certificate import Certificate
from pams_mil.evaluate.certify.make import certify
from pams_mil.evaluate.certify.monitor import Monitoring, monitor, monitor_unlabelled
from pams_mil.evaluate.certify.promise import Guarantee, Promise, Shortfall

__all__ = [
    "Certificate",
    "CertifiedCalls",
    "Guarantee",
    "Monitoring",
    "Promise",
    "Shortfall",
    "apply_certificate",
    "certify",
    "monitor",
    "monitor_unlabelled",
]
