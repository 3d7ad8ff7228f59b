"""Guarantees on missed urgency: the smallest cost ratio κ at which at most a share α is missed.

`certify` makes a `Certificate` from labeled predictions of calibration patients, by one order of urgency or by several
at once; `apply_certificate` calls new slides with it, `monitor` tests whether its bounds still hold.
"""

from pams_mil.evaluate.certify.apply import CertifiedCalls, apply_certificate
from pams_mil.evaluate.certify.bounds import Bound, Guarantee, Shortfall
from pams_mil.evaluate.certify.certificate import Certificate
from pams_mil.evaluate.certify.make import certify, certify_subgroups
from pams_mil.evaluate.certify.monitor import Monitoring, monitor

__all__ = [
    "Bound",
    "Certificate",
    "CertifiedCalls",
    "Guarantee",
    "Monitoring",
    "Shortfall",
    "apply_certificate",
    "certify",
    "certify_subgroups",
    "monitor",
]
