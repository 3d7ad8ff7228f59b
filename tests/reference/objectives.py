"""Whole objectives as loops: every method's named terms, from plain numbers, one bag after the other.

`OBJECTIVES[name]` takes the method's settings, the hierarchy, the logits [level][bag][class] and head rows
[level][class][feature] of the trained levels, and the true class [level][bag]; it gives every term's mean over bags.
A method without an entry here does not conform.
"""

from __future__ import annotations

from tests.reference import losses


def mean(values):
    return sum(values) / len(values)


def trained(method, hierarchy):
    return list(range(hierarchy.num_levels - 1 if method.towers == "finest" else 0, hierarchy.num_levels))


def every_level(method, hierarchy, logits, targets, loss):
    """Σ over trained levels of loss(z, t, level), for every bag."""
    values = []
    for bag in range(len(logits[0])):
        total = 0.0
        for position, level in enumerate(trained(method, hierarchy)):
            total += loss(logits[position][bag], targets[position][bag], level)
        values.append(total)
    return mean(values)


def aligned(hierarchy, logits):
    """Σ over neighboring levels of JS(p_h, ṗ_{h+1})."""
    values = []
    for bag in range(len(logits[0])):
        total = 0.0
        for level in range(hierarchy.num_levels - 1):
            parents = list(hierarchy.levels[level + 1].parents)
            total += losses.alignment(logits[level][bag], logits[level + 1][bag], parents)
        values.append(total)
    return mean(values)


def one_term(name, loss):
    def objective(method, hierarchy, logits, rows, targets):
        del rows
        return {
            name: every_level(method, hierarchy, logits, targets, lambda z, t, lv: loss(method, hierarchy, z, t, lv))
        }

    return objective


def priorities(hierarchy, level):
    ranks = list(hierarchy.levels[level].ranks)
    return [float(sorted(set(ranks)).index(rank) + 1) for rank in ranks]


def msce(method, hierarchy, z, t, level):
    return losses.msce(z, t, hierarchy, level, alpha=method.alpha, distance=method.distance)


def pams(method, hierarchy, logits, rows, targets):
    terms = one_term("msce", msce)(method, hierarchy, logits, rows, targets)
    terms = {"msce": method.lambda_msce * terms["msce"]}
    if hierarchy.num_levels > 1:
        terms["alignment"] = method.lambda_align * aligned(hierarchy, logits)
    return terms


def hong(method, hierarchy, logits, rows, targets):
    del rows
    terms = {"ce": every_level(method, hierarchy, logits, targets, lambda z, t, level: losses.ce(z, t))}
    if hierarchy.num_levels > 1:
        terms["alignment"] = method.lambda_align * aligned(hierarchy, logits)
    return terms


def haf(method, hierarchy, logits, rows, targets):
    """An empty memory: a bag meets the bags behind it in its batch, as many as the memory allows, round the row."""
    finest, bags = hierarchy.num_levels - 1, len(logits[0])
    terms = {"ce": mean([losses.ce(logits[finest][bag], targets[finest][bag]) for bag in range(bags)])}
    if hierarchy.num_levels == 1:
        return terms
    terms["alignment"] = method.lambda_align * aligned(hierarchy, logits)
    geometry = 0.0
    for level in range(finest):
        geometry += losses.geometry(rows[level], rows[level + 1], list(hierarchy.levels[level + 1].parents))
    terms["geometry"] = method.lambda_geometry * geometry
    values = []
    for bag in range(bags):
        total = 0.0
        for level in range(finest):
            met = []
            for step in range(1, max(1, method.memory // bags) + 1):
                other = (bag + step) % (bags + method.memory)
                if other < bags and targets[level][other] != targets[level][bag]:
                    p, q = losses.softmax(logits[level][bag]), losses.softmax(logits[level][other])
                    met.append(losses.margin(p, q, mu=method.margin))
            total += mean(met) if met else 0.0
        values.append(total)
    terms["margin"] = method.lambda_margin * mean(values)
    return terms


OBJECTIVES = {
    "msce": one_term("msce", msce),
    "ce": one_term("ce", lambda m, tree, z, t, level: losses.ce(z, t)),
    "chang": one_term("ce", lambda m, tree, z, t, level: losses.ce(z, t)),
    "weighted_ce": one_term(
        "weighted_ce", lambda m, tree, z, t, level: losses.weighted_ce(z, t, priorities(tree, level))
    ),
    "hxe": one_term(
        "hxe", lambda m, tree, z, t, level: losses.hxe(z, t, tree, level, alpha=m.alpha, normalize=m.normalize)
    ),
    "soft_labels": one_term(
        "soft_labels", lambda m, tree, z, t, level: losses.soft_labels(z, t, tree, level, beta=m.beta)
    ),
    "cdw_ce": one_term("cdw_ce", lambda m, tree, z, t, level: losses.cdw_ce(z, t, alpha=m.alpha)),
    "oce": one_term("oce", lambda m, tree, z, t, level: losses.oce(z, t, tree, level, miss=m.miss)),
    "co2": one_term("co2", lambda m, tree, z, t, level: losses.co2(z, t, delta=m.delta, lambda_margin=m.lambda_margin)),
    "emd": one_term("emd", lambda m, tree, z, t, level: losses.emd(z, t)),
    "sord": one_term("sord", lambda m, tree, z, t, level: losses.sord(z, t, alpha=m.alpha)),
    "corn": one_term("corn", lambda m, tree, z, t, level: losses.corn(z, t)),
    "pams": pams,
    "hong": hong,
    "haf": haf,
}
