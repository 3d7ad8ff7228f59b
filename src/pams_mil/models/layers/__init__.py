"""The layers that models are composed of, each the equation of one paper."""
