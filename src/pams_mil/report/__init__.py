"""What people look at: tables, figures and self-contained HTML pages."""
