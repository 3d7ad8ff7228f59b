from __future__ import annotations

from tests.faults import survey


def pytest_terminal_summary(terminalreporter):
    """What the fault suite counted; docs/guarantees.md repeats it."""
    if survey.TABLE:
        terminalreporter.section("faults")
        for line in survey.lines():
            terminalreporter.write_line(line)
