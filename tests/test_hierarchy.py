"""Class hierarchies: what is derived from them, and that ill-formed ones cannot be constructed."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import re
from dataclasses import replace

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from tests.strategies import trees, trees_and_levels

from pams_mil import ClassHierarchy
from pams_mil.class_checks import Level
from pams_mil.errors import HierarchyError, LabelError, ParameterError
from pams_mil.hierarchy import as_hierarchy, hierarchy_from_json, hierarchy_to_json


def test_bracs_by_hand():
    hierarchy = ClassHierarchy.load("bracs")
    assert hierarchy.num_levels == 2
    assert hierarchy.level_names == ("group", "class")
    assert hierarchy.parents().tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert hierarchy.ranks().tolist() == [0, 1, 2, 3, 3, 4, 5]
    assert hierarchy.order(0) == "Benign ≺ Atypical ≺ Malignant"
    assert hierarchy.distance()[0].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert hierarchy.lca_height()[3].tolist() == [2, 2, 2, 0, 1, 2, 2]
    assert hierarchy.groups(0).tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert hierarchy.display("N") == "Normal"


@given(trees_and_levels())
def test_outranks_is_a_strict_order_with_ties(case: tuple[ClassHierarchy, int]):
    hierarchy, level = case
    outranks, ranks = hierarchy.outranks(level), hierarchy.ranks(level)
    for i in range(hierarchy.num_classes(level)):
        for j in range(hierarchy.num_classes(level)):
            assert outranks[i, j] == (ranks[i] > ranks[j])
            assert not (outranks[i, j] and outranks[j, i])
            if outranks[i, j]:
                assert i > j  # a class index grows with urgency


@given(trees_and_levels())
def test_distance_is_at_least_one_off_the_diagonal(case: tuple[ClassHierarchy, int]):
    hierarchy, level = case
    distance = hierarchy.distance(level)
    assert (np.diagonal(distance) == 0).all()
    assert (distance[~np.eye(len(distance), dtype=bool)] >= 1).all()
    assert (distance == distance.T).all()


@given(trees())
def test_lift_follows_the_parents_one_level_at_a_time(hierarchy: ClassHierarchy):
    for leaf in range(hierarchy.num_classes()):
        index = leaf
        for level in range(hierarchy.num_levels - 1, -1, -1):
            assert hierarchy.lift([leaf], level).tolist() == [index]
            index = hierarchy.levels[level].parents[index]


@given(trees())
def test_a_more_urgent_group_has_only_more_urgent_classes(hierarchy: ClassHierarchy):
    fine = hierarchy.outranks()
    for level in range(hierarchy.num_levels):
        group, coarse = hierarchy.groups(level), hierarchy.outranks(level)
        for i in range(hierarchy.num_classes()):
            for j in range(hierarchy.num_classes()):
                if coarse[group[i], group[j]]:
                    assert fine[i, j]


@given(trees())
def test_lca_height_by_walking_up(hierarchy: ClassHierarchy):
    height = hierarchy.lca_height()
    for i in range(hierarchy.num_classes()):
        for j in range(hierarchy.num_classes()):
            a, b, steps = i, j, 0
            for level in range(hierarchy.num_levels - 1, -1, -1):
                if a == b:
                    break
                a, b, steps = hierarchy.levels[level].parents[a], hierarchy.levels[level].parents[b], steps + 1
            assert height[i, j] == steps


@given(trees(), st.data())
def test_digest_changes_with_names_and_ranks_and_nothing_else(hierarchy: ClassHierarchy, data: st.DataObject):
    again = replace(hierarchy, name="other", source="elsewhere", display_names={hierarchy.names()[0]: "shown"})
    assert again.digest == hierarchy.digest
    finest = hierarchy.levels[-1]
    position = data.draw(st.integers(0, len(finest) - 1))
    names = [f"{name}!" if index == position else name for index, name in enumerate(finest.names)]
    renamed = Level(tuple(names), finest.parents, finest.ranks)
    assert replace(hierarchy, levels=(*hierarchy.levels[:-1], renamed)).digest != hierarchy.digest
    assert re.fullmatch("[0-9a-f]{16}", hierarchy.digest)


def test_digest_changes_when_a_tie_is_broken_or_classes_swap():
    strict = ClassHierarchy.flat(["a", "b", "c"])
    assert ClassHierarchy.flat([["a", "b"], "c"]).digest != strict.digest
    assert ClassHierarchy.flat(["a", "c", "b"]).digest != strict.digest


def test_digests_of_the_presets_are_stable():
    """Outputs carry these; a change here makes old checkpoints and predictions unreadable."""
    found = {
        name: ClassHierarchy.load(name).digest for name in ("bracs", "colon", "cifar10", "isup", "bethesda", "digits")
    }
    assert found == {
        "bracs": "e87d53d9c7e4188f",
        "colon": "ee6240116ab5f339",
        "cifar10": "eb4ef35ed5df89fa",
        "isup": "9d484400f49855b2",
        "bethesda": "8fe54e64b39dcd14",
        "digits": "7e5b6a8b0bbed8ca",
    }


@given(trees())
def test_equal_trees_hash_equal_and_survive_copying(hierarchy: ClassHierarchy):
    for copied in (copy.deepcopy(hierarchy), pickle.loads(pickle.dumps(hierarchy))):
        assert copied == hierarchy
        assert hash(copied) == hash(hierarchy)
        assert copied.digest == hierarchy.digest


@given(trees(), st.data())
def test_each_mutation_is_refused_and_names_the_class(hierarchy: ClassHierarchy, data: st.DataObject):
    finest = hierarchy.levels[-1]
    last = len(finest) - 1
    mutations = {
        "twice": Level((*finest.names[:-1], finest.names[0]), finest.parents, finest.ranks),
        "parent": Level(finest.names, (*finest.parents[:-1], 99), finest.ranks),
        "least urgent": Level(finest.names, finest.parents, (*finest.ranks[:-1], -1)),
        "empty name": Level((" ", *finest.names[1:]), finest.parents, finest.ranks),
        "surrounding spaces": Level((*finest.names[:-1], finest.names[-1] + " "), finest.parents, finest.ranks),
    }
    kind = data.draw(st.sampled_from(sorted(mutations)))
    with pytest.raises(HierarchyError, match=kind) as caught:
        replace(hierarchy, levels=(*hierarchy.levels[:-1], mutations[kind]))
    if kind != "empty name":
        assert repr(finest.names[0 if kind == "twice" else last])[1:-1] in str(caught.value)


@pytest.mark.parametrize(
    ("levels", "message"),
    [
        ((), "no levels"),
        ((Level(("only",), (0,), (0,)),), "only the class 'only'"),
        ((Level(("a", "b"), (0,), (0, 1)),), "as many parents and ranks"),
        ((Level(("a", "b"), (0, 0), (0, 2)),), "from 0 without gaps"),
        ((Level((), (), ()),), "at least one class"),
        ((Level(("A", "B"), (0, 0), (0, 1)), Level(("a", "b"), (0, 0), (0, 1))), "The group 'B' has no classes"),
        ((Level(("A", "B"), (0, 0), (0, 1)), Level(("a", "b"), (1, 0), (0, 1))), "list the classes group by group"),
        ((Level(("A", "B"), (0, 0), (0, 1)), Level(("a", "b"), (0, 1), (0, 0))), "rank of 'b' contradicts its group"),
        ((Level(("A", "B"), (0, 0), (0, 0)), Level(("a", "b"), (0, 1), (0, 1))), "tied groups must all tie"),
        ((Level(("A", "B"), (0, 0), (0, 0)), Level(("a", "b", "c"), (0, 0, 1), (0, 1, 1))), "tied groups must all tie"),
        ((Level(("e\u0301", "b"), (0, 0), (0, 1)),), "decomposed Unicode"),
    ],
)
def test_ill_formed_levels(levels: tuple[Level, ...], message: str):
    with pytest.raises(HierarchyError, match=message):
        ClassHierarchy("bad", levels)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"level_names": ("one", "two")}, "1 levels but 2 level names"),
        ({"display_names": {"q": "Q"}}, "display names of 'x' mention 'q', which is not a class"),
        ({"aliases": {"c": ("C",)}}, "aliases of 'x' mention 'c'"),
        ({"aliases": {"a": ("z",), "b": ("z",)}}, "alias 'z' of 'b' already belongs to 'a'"),
        ({"aliases": {"a": ("b",)}}, "alias 'b' of 'a' already belongs to 'b'"),
        ({"aliases": {"a": ("",)}}, "alias of 'a' is empty"),
    ],
)
def test_ill_formed_extras(extra: dict[str, object], message: str):
    levels = (Level(("a", "b"), (0, 0), (0, 1)),)
    with pytest.raises(HierarchyError, match=message):
        ClassHierarchy("x", levels, **extra)


@pytest.mark.parametrize("label", ["n", "N ", "Normal", "", "FEA\n", "é"])
def test_labels_are_matched_exactly(label: str):
    with pytest.raises(LabelError, match="matched exactly"):
        ClassHierarchy.load("bracs").index(label)


def test_a_decomposed_label_is_refused_with_the_right_spelling():
    hierarchy = ClassHierarchy.flat(["lésion", "other"])
    with pytest.raises(LabelError, match="Did you mean 'lésion'"):
        hierarchy.index("le\u0301sion")


def test_aliases_map_on_purpose():
    hierarchy = ClassHierarchy.load("cifar10")
    torchvision = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    assert [hierarchy.index(label) for label in torchvision] == [7, 1, 0, 2, 3, 4, 5, 6, 8, 9]
    assert [hierarchy.index(str(number)) for number in range(10)] == [7, 1, 0, 2, 3, 4, 5, 6, 8, 9]


def test_flat_ties():
    assert ClassHierarchy.flat(["a", ["b", "c"]]).order() == "a ≺ b ≡ c"
    assert ClassHierarchy.flat([["a", "b"], ["c", "d", "e"]]).order() == "a ≡ b ≺ c ≡ d ≡ e"
    assert ClassHierarchy.flat("abc").order() == ClassHierarchy.flat([["a"], "b", "c"]).order() == "a ≺ b ≺ c"


def test_flat_ties_that_cannot_be_meant_are_refused():
    for names, why in (([["a", ["b"]], "c"], "must be a plain list"), ([["a", "a"], "b"], "appears twice")):
        with pytest.raises(HierarchyError, match=why):
            ClassHierarchy.flat(names)


@given(trees_and_levels())
def test_distance_by_rank_counts_steps_of_urgency(case: tuple[ClassHierarchy, int]):
    hierarchy, level = case
    by_rank = replace(hierarchy, distance_by="rank")
    ranks, found = hierarchy.ranks(level).tolist(), by_rank.distance(level)
    for i, own in enumerate(ranks):
        for j, other in enumerate(ranks):
            between = len({rank for rank in ranks if min(own, other) < rank <= max(own, other)})
            assert found[i, j] == (0 if i == j else max(1, between))
    assert by_rank.tie_notes() == ()
    assert by_rank.digest != hierarchy.digest
    assert hierarchy_from_json(json.loads(json.dumps(hierarchy_to_json(by_rank)))).digest == by_rank.digest


@given(trees_and_levels())
def test_notes_name_the_ties_whose_listed_order_counts(case: tuple[ClassHierarchy, int]):
    """Exactly where listing a tie backwards changes a distance between two classes."""
    hierarchy, _ = case
    expected = 0
    for level in range(hierarchy.num_levels):
        ranks, distance = hierarchy.ranks(level), hierarchy.distance(level)
        changed = False
        for rank in set(ranks.tolist()):
            inside = np.flatnonzero(ranks == rank)
            for first, second in itertools.pairwise(inside):
                order = np.arange(len(ranks))
                order[[first, second]] = order[[second, first]]
                changed |= bool((distance[np.ix_(order, order)] != distance).any())
        expected += changed
    assert len(hierarchy.tie_notes()) == expected


@pytest.mark.parametrize("level", [2, -3, 0.0, "class", None])
def test_levels_that_do_not_exist(level: object):
    with pytest.raises(ParameterError, match="level must be a whole number from -2 to 1"):
        ClassHierarchy.load("bracs").names(level)


@pytest.mark.parametrize("target", [[7], [-1], [0.5], [float("nan")], ["N"], [True]])
def test_lift_refuses_what_is_no_class_index(target: list[object]):
    with pytest.raises(ParameterError, match="Class indices must be"):
        ClassHierarchy.load("bracs").lift(target, 0)


def test_lift_refuses_to_go_down_and_takes_nothing():
    hierarchy = ClassHierarchy.load("bracs")
    with pytest.raises(ParameterError, match="finer"):
        hierarchy.lift([0], 1, from_level=0)
    assert hierarchy.lift([], 0).tolist() == []


@given(trees())
def test_length_iteration_and_classes_are_those_of_the_finest_level(hierarchy: ClassHierarchy):
    assert len(hierarchy) == hierarchy.num_classes()
    assert tuple(hierarchy) == hierarchy.classes == hierarchy.names()


@given(trees())
def test_the_tree_shows_every_class_once_below_its_group(hierarchy: ClassHierarchy):
    shown = repr(hierarchy)
    position = 0
    for leaf, label in enumerate(hierarchy):
        above = hierarchy.groups(0)[leaf]
        sign = "≡" if leaf and hierarchy.ranks()[leaf] == hierarchy.ranks()[leaf - 1] else ("≺" if leaf else " ")
        position = shown.index(f"─ {sign} {label}", position)
        assert shown.index(hierarchy.names(0)[above]) <= position + 4
    assert shown.count("─ ") == sum(len(level) for level in hierarchy.levels)


def test_nested_lists_and_groups():
    assert ClassHierarchy.of(["benign", ["FEA", "ADH"], "malignant"]).order() == "benign ≺ FEA ≡ ADH ≺ malignant"
    bracs = {"Benign": ["N", "PB", "UDH"], "Atypical": [["FEA", "ADH"]], "Malignant": ("DCIS", "IC")}
    assert as_hierarchy(bracs).digest == ClassHierarchy.load("bracs").digest
    with pytest.raises(HierarchyError, match="mixes depths"):
        as_hierarchy(["a", {"B": ["b"]}])
    with pytest.raises(HierarchyError, match="a tie must be a plain list"):
        as_hierarchy(["a", ["b", ["c", "d"]]])
    with pytest.raises(HierarchyError, match=r"empty name \(None\)"):
        as_hierarchy(["a", None])
    assert as_hierarchy([0, 1, 2]).digest == as_hierarchy(np.arange(3)).digest == ClassHierarchy.flat("012").digest


def test_a_hierarchy_is_itself_and_other_values_are_refused():
    hierarchy = ClassHierarchy.load("bracs")
    assert as_hierarchy(hierarchy) is hierarchy
    with pytest.raises(HierarchyError, match="found int"):
        as_hierarchy(7)
