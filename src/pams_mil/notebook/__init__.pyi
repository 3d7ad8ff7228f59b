from pams_mil.notebook.audit_report import AuditReport as AuditReport
from pams_mil.notebook.audit_report import audit as audit
from pams_mil.notebook.displays import OperatingCurveDisplay as OperatingCurveDisplay
from pams_mil.notebook.displays import SeverityConfusionDisplay as SeverityConfusionDisplay
from pams_mil.notebook.severity_classifier import SeverityClassifier as SeverityClassifier
from pams_mil.notebook.tuning_report import read_tuning as read_tuning
