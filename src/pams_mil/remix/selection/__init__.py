"""Which rows of a bag are worth planting: neighbors and evidence."""
