"""One run on disk: its folder, lock, checkpoints, and how far it is."""
