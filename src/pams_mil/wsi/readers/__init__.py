"""One small class per way of opening a slide; `pams_mil.wsi.slide` chooses among them."""
