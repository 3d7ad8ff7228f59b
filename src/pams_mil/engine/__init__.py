"""Training, prediction and benchmarks: runs that survive interruption and give the same result again.

    from pams_mil.engine import configure, predict, train

    run = train(configure("cohort/manifest.csv", classes="digits", method="pams", model="abmil"), "runs/pams")
    predictions = predict([run.path], "cohort/manifest.csv", split="test")

Names are loaded on first use, so that reading settings imports no torch.
"""

from pams_mil.discover import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
