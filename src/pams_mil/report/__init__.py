"""What people look at: tables, figures and self-contained HTML pages; names are loaded on first use.

`audit_page(pams_mil.audit(...).scores)` is the page of `pams audit`.
"""

from pams_mil.discover import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
