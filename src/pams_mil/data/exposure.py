"""Exposure: which patients a model has seen, in which role, and what a result may therefore be used for.

    train       the weights were fitted to the patient
    select      the patient chose the epoch
    tune        the patient chose the recipe among those that `pams tune` tried
    calibrate   the probability calibration was fitted to the patient
    certify     the patient is in the calibration set of a guarantee

`RULES` is the one table of what each purpose allows, `admit` the one function that enforces it. Scores, guarantees and
monitoring call `admit` themselves, on predictions that carry the roles of their patients, so no caller can forget it.
Patients are kept as digests: a result can be handed on without their names.
"""

from __future__ import annotations

import json
import operator
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Literal, cast, get_args

from pams_mil import atomic
from pams_mil.digests import sealed, text_digest, unsealed
from pams_mil.errors import ExposureError, listing, require_fields, stored_format

Role = Literal["train", "select", "tune", "calibrate", "certify"]
Purpose = Literal["test scores", "guarantee", "monitoring", "viewing"]
Action = Literal["allow", "note", "refuse", "badge"]
Roles = frozenset[Role]
Fingerprints = Mapping[str, Iterable[str]]
"""Slide -> fingerprints of the feature files behind it."""

ROLES: tuple[Role, ...] = get_args(Role)
RULES: Mapping[Purpose, Mapping[Role, Action]] = {
    "test scores": {"train": "refuse", "select": "refuse", "tune": "note", "calibrate": "refuse", "certify": "allow"},
    "guarantee": {"train": "refuse", "select": "refuse", "tune": "refuse", "calibrate": "refuse", "certify": "allow"},
    "monitoring": dict.fromkeys(ROLES, "refuse"),
    "viewing": dict.fromkeys(ROLES, "badge"),
}
WORDS: Mapping[Role, str] = {
    "train": "trained the model",
    "select": "chose its epoch",
    "tune": "chose its recipe",
    "calibrate": "fitted its probability calibration",
    "certify": "are calibration patients of the certificate",
}
MARK = "Seen patients"
"""How every sentence begins that says that a result was made with `--seen-patients`."""
COLUMN = "exposure"
"""Column of a predictions file: the roles of the row's patient, `train+tune`; `none` where the model never saw it."""
FILE = "exposure.json"
FORMAT, VERSION = "pams-exposure", 1
_NONE = "none"
_NO_ROLES: Roles = frozenset()
_KINDS = ("patients", "slides", "features")
_CONSEQUENCE: Mapping[Purpose, str] = {
    "test scores": "Scores of patients that a model has seen are too good; they are not test scores",
    "guarantee": "What such patients show is too good to guarantee it to others",
    "monitoring": "They are not new patients, so they say nothing about whether the guarantee still holds",
    "viewing": "",
}
_ADVICE: Mapping[Purpose, str] = {
    "test scores": "Score patients that the model has not seen, such as the split test",
    "guarantee": "Keep patients for calibration with 'pams split --calib-share 0.2'",
    "monitoring": "Leave them out",
    "viewing": "",
}


@dataclass(frozen=True)
class Exposure:
    """Patient, slide and features -> roles, all by digest; the union of two is `one | two`.

    Features are known by marks of their content, so that a copy of a slide is recognized, saved again under another id.

    >>> seen = Exposure.of([("s1", "P-1", "train"), ("s2", "P-2", "select")]) | Exposure.of([("s1", "P-1", "tune")])
    >>> [role_cell(roles) for roles in seen.roles(["x", "s2", "y"], ["p-1 ", "other", "new"])]
    ['train+tune', 'select', 'none']
    """

    seen: Mapping[tuple[str, str], Roles] = field(default_factory=dict)
    """By kind, one of patients, slides and features, and digest."""

    @classmethod
    def of(cls, rows: Iterable[tuple[str, str, Role]], fingerprints: Fingerprints | None = None) -> Exposure:
        """The exposure of (slide, patient, role), with the fingerprints of slides' features where they are known."""
        seen: dict[tuple[str, str], Roles] = {}
        for slide, patient, role in rows:
            for key in _keys(slide, patient, (fingerprints or {}).get(slide, ())):
                seen[key] = seen.get(key, _NO_ROLES) | {role}
        return cls(seen)

    def __or__(self, other: Exposure) -> Exposure:
        keys = {**self.seen, **other.seen}
        return Exposure({key: self.seen.get(key, _NO_ROLES) | other.seen.get(key, _NO_ROLES) for key in keys})

    @classmethod
    def of_all(cls, exposures: Iterable[Exposure | None]) -> Exposure | None:
        """What any of several models has seen; None when that is not known of all of them."""
        every = list(exposures)
        known = [exposure for exposure in every if exposure is not None]
        return reduce(operator.or_, known) if len(known) == len(every) else None

    def without(self, *roles: Role) -> Exposure:
        """The exposure with some roles left out."""
        return Exposure({key: value - {*roles} for key, value in self.seen.items()})

    def roles(
        self, slide_ids: Sequence[str], patient_ids: Sequence[str], features: Sequence[Iterable[str]] | None = None
    ) -> tuple[Roles, ...]:
        """The roles of every row: of its patient in any spelling, of its slide id, and of equal features.

        `features` are the fingerprints of the files behind every row.
        """
        rows = zip(slide_ids, patient_ids, features or [()] * len(slide_ids), strict=True)
        return tuple(_NO_ROLES.union(*(self.seen.get(key, _NO_ROLES) for key in _keys(*row))) for row in rows)

    def to_json(self) -> dict[str, Any]:
        """Plain values, without any name, and a digest of them."""
        content: dict[str, Any] = {kind: {} for kind in _KINDS}
        for (kind, key), roles in sorted(self.seen.items()):
            if roles:
                content[kind][key] = role_cell(roles)
        return sealed(content, FORMAT, VERSION)

    @classmethod
    def from_json(cls, content: Any, where: str) -> Exposure:
        """An exposure as `to_json` gave it; one that was changed since is refused."""
        try:
            plain = unsealed(content, FORMAT, VERSION)
        except ValueError as error:
            raise ExposureError(
                f"Cannot determine which patients the model has seen: {where} cannot be used, {error}. Restore it from "
                "a copy."
            ) from error
        with stored_format(where, ExposureError, "Restore it from a copy, or train again."):
            require_fields(plain, _KINDS)
            cells = {(kind, str(key)): cell for kind in _KINDS for key, cell in plain[kind].items()}
            # An unknown role must not count as none: the patient would pass for unseen.
            if unknown := [cell for cell in cells.values() if parse_roles(cell) is None]:
                raise ValueError(f"{unknown[0]!r} is not a list of roles")
            return cls({key: parse_roles(cell) or _NO_ROLES for key, cell in cells.items()})

    def write(self, folder: Path) -> None:
        """Write `exposure.json`."""
        atomic.write_json(folder / FILE, self.to_json())

    @classmethod
    def read(cls, folder: Path) -> Exposure | None:
        """The `exposure.json` of a folder; None where there is none."""
        try:
            text = (folder / FILE).read_text("utf-8")
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise ExposureError(f"{folder / FILE} cannot be read: {error}. Restore it from a copy.") from error
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            content = None
        return cls.from_json(content, str(folder / FILE))


def admit(
    purpose: Purpose,
    roles: Sequence[Roles] | None,
    patient_ids: Sequence[str],
    *,
    known: bool = True,
    by_weights: bool = False,
    seen_patients: bool = False,
) -> tuple[str, ...]:
    """Refuse patients that a purpose must not use, or return what has to be said about them.

    Args:
        purpose: What the predictions are used for.
        roles: Of every row; None where nothing is known.
        patient_ids: Of every row.
        known: Whether the roles come from the model itself; else they are what a table says in its column split.
        by_weights: Whether known weights predicted; a guarantee about them must know which patients they have seen.
        seen_patients: Go on where the rules refuse; what is returned then begins with `MARK`.

    Raises:
        ExposureError: how many patients, which of them, and what they did.

    >>> admit("test scores", [frozenset(["train"]), frozenset()], ["p1", "p2"])
    Traceback (most recent call last):
    pams_mil.errors.ExposureError: 1 of 2 patients trained the model ('p1'). Scores of patients that a model has seen...
    """
    if roles is None:
        reason = "Which patients trained the model is not known, so it was not checked."
        if not (by_weights and purpose == "guarantee"):
            return (reason,)
        if not seen_patients:
            raise ExposureError(
                f"{reason} A guarantee needs patients that the model has not seen. Use the run folder, or an export, "
                f"with its {FILE}; or go on with --seen-patients, which marks everything that is made from it."
            )
        return (f"{MARK}, possibly: {reason}",)
    count = len(set(patient_ids))
    by_role = {
        role: list(dict.fromkeys(p for p, one in zip(patient_ids, roles, strict=True) if role in one)) for role in ROLES
    }
    actions: dict[Action, list[str]] = {}
    for role, patients in by_role.items():
        if patients:
            words = f"{len(patients)} of {count} patients {WORDS[role]} ({listing(patients, most=3)})"
            actions.setdefault(RULES[purpose][role], []).append(words)
    notes = [f"{'; '.join(actions['note'])}, so scores may be a little too good."] if "note" in actions else []
    if "refuse" not in actions:
        return tuple(notes)
    reason = f"{'; '.join(actions['refuse'])}. {_CONSEQUENCE[purpose]}."
    if not (known or purpose != "test scores"):
        # A column of a foreign table is a statement of its author, who may well want the scores of training rows.
        return (f"{MARK}, by the column split: {reason}", *notes)
    if not seen_patients:
        raise ExposureError(
            f"{reason} {_ADVICE[purpose]}; or, if these are other patients with the same ids, give them ids of their "
            "own (slides with the same features are the same slide, whatever their ids); "
            "or go on with --seen-patients, which marks everything that is made from it."
        )
    return (f"{MARK}: {reason}", *notes)


def role_cell(roles: Roles) -> str:
    """Roles as a cell of a table."""
    return "+".join(role for role in ROLES if role in roles) or _NONE


def parse_roles(cell: str) -> Roles | None:
    """Roles from a cell of a table; None where it does not hold any.

    >>> parse_roles("none"), parse_roles("0.5") is None
    (frozenset(), True)
    """
    if cell == _NONE:
        return frozenset()
    roles = cell.split("+")
    return cast("Roles", frozenset(roles)) if set(roles) <= set(ROLES) else None


def roles_of_split(split: str) -> Roles:
    """What the column split of a table says about a patient's role."""
    roles: Mapping[str, Role] = {"train": "train", "val": "select"}
    return frozenset([roles[split]]) if split in roles else frozenset()


def same_person(patient_id: str) -> str:
    """What two spellings of one patient have in common.

    >>> same_person("Mu\u0308ller ") == same_person("m\u00fcl\u200bler"), same_person("P1") == same_person("P 1")
    (True, False)
    """
    if patient_id.isascii():
        return " ".join(patient_id.lower().split())
    text = unicodedata.normalize("NFKC", patient_id)
    text = "".join(sign for sign in text if unicodedata.category(sign) != "Cf")  # zero-width and direction marks
    # Case folding can undo the normal form, so it is taken again.
    return " ".join(unicodedata.normalize("NFKC", text.casefold()).split())


def one_spelling(patient_ids: Sequence[str]) -> list[str]:
    """Every patient by the first of its spellings, so that nobody counts as two.

    >>> one_spelling(["P1", "p1 ", "P2"])
    ['P1', 'P1', 'P2']
    """
    first: dict[str, str] = {}
    spelled = {patient: first.setdefault(same_person(patient), patient) for patient in dict.fromkeys(patient_ids)}
    return [spelled[patient] for patient in patient_ids]


def _keys(slide: str, patient: str, marks: Iterable[str]) -> list[tuple[str, str]]:
    """Under what a row is known; features without a mark are not."""
    own = [("patients", text_digest(same_person(patient))), ("slides", text_digest(slide))]
    return [*own, *(("features", mark) for mark in marks if mark)]
