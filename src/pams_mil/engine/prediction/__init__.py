"""From trained runs to predictions, and to models that can be handed on."""
