"""Predictions tables: what every audit starts from, in our layout, other tools' and readers'."""
