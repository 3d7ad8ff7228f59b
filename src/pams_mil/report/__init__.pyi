from pams_mil.report.audit_html import audit_page as audit_page
from pams_mil.report.bench import Bench as Bench
from pams_mil.report.bench import summarize as summarize
from pams_mil.report.bench_page import write_bench as write_bench
