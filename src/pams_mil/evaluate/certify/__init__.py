"""Guarantees on missed urgency: the smallest cost ratio κ at which at most a share α is missed.

`certify` makes a `Certificate` from labeled predictions of calibration patients, `apply_certificate` calls new slides
with it, `certify_orders` bounds the misses of several orders of urgency at once, `monitor` tests whether bounds still
hold.
"""

from pams_mil.evaluate.certify.apply import CertifiedCalls, apply_certificate
from pams_mil.evaluate.certify.bounds import Bound, Guarantee, Shortfall
from pams_mil.evaluate.certify.certificate import Certificate
from pams_mil.evaluate.certify.make import certify
from pams_mil.evaluate.certify.monitor import Monitoring, monitor
from pams_mil.evaluate.certify.order_certificate import OrderCertificate, certify_orders, load_certificate

__all__ = [
    "Bound",
    "Certificate",
    "CertifiedCalls",
    "Guarantee",
    "Monitoring",
    "OrderCertificate",
    "Shortfall",
    "apply_certificate",
    "certify",
    "certify_orders",
    "load_certificate",
    "monitor",
]
