"""The command `pams`: one file per verb. Heavy imports happen inside the verbs, so that help answers at once."""
