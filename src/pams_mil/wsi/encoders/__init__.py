"""Encoders: tiles in, feature vectors out. The name on the command line is the file's name here."""
