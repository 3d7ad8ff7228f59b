"""The parts that models are put together from, each the equation of one paper."""
