"""The losses of the equations, written with loops over plain floats."""

from __future__ import annotations

import math


def log_softmax(z):
    top = max(z)
    total = top + math.log(math.fsum(math.exp(value - top) for value in z))
    return [value - total for value in z]


def softmax(z):
    return [math.exp(value) for value in log_softmax(z)]


def log_sum(log_values):
    top = max(log_values)
    return top + math.log(math.fsum(math.exp(value - top) for value in log_values))


def ce(z, t):
    return -log_softmax(z)[t]


def weighted_ce(z, t, weights):
    return -weights[t] * len(weights) / sum(weights) * log_softmax(z)[t]


def severity(hierarchy, level, t, r, *, alpha, distance):
    if hierarchy.levels[level].ranks[t] > hierarchy.levels[level].ranks[r]:
        return alpha ** abs(t - r) if distance == "power" else alpha * abs(t - r)
    return 1.0


def msce(z, t, hierarchy, level=-1, *, alpha=1.6, distance="product", literal=False):
    p, weight = softmax(z), 0.0
    for r in range(len(z)):
        true, predicted = (r, t) if literal else (t, r)
        weight += p[r] * severity(hierarchy, level, true, predicted, alpha=alpha, distance=distance)
    return weight * ce(z, t)


def ancestors(hierarchy, level, leaf):
    """The leaf's ancestors from the coarsest level down to itself."""
    path, node = [], leaf
    for number in range(level, -1, -1):
        path.append(node)
        node = hierarchy.levels[number].parents[node]
    return path[::-1]


def hxe(z, t, hierarchy, level, *, alpha, normalize):
    log_p = log_softmax(z)
    path = ancestors(hierarchy, level, t)
    loss, log_parent = 0.0, 0.0
    for number, node in enumerate(path):
        members = [c for c in range(len(z)) if ancestors(hierarchy, level, c)[number] == node]
        log_node = log_sum([log_p[c] for c in members])
        loss -= math.exp(-alpha * (number + 1)) * (log_node - log_parent)
        log_parent = log_node
    if not normalize:
        return loss
    nodes = 1.0
    for number in range(level + 1):
        for _ in hierarchy.levels[number].names:
            nodes += math.exp(-alpha * (number + 1))
    return loss / nodes


def tree_distance(hierarchy, level, t, r):
    """Steps up from the leaves until the two paths meet, over the height of the tree."""
    a, b = ancestors(hierarchy, level, t), ancestors(hierarchy, level, r)
    steps = sum(1 for first, second in zip(a, b, strict=True) if first != second)
    return steps / (level + 1)


def soft_labels(z, t, hierarchy, level, *, beta):
    share = [math.exp(-beta * tree_distance(hierarchy, level, t, r)) for r in range(len(z))]
    log_p = log_softmax(z)
    return -math.fsum(s / math.fsum(share) * lp for s, lp in zip(share, log_p, strict=True))


def cdw_ce(z, t, *, alpha):
    log_p, loss = log_softmax(z), 0.0
    for r in range(len(z)):
        if r != t:
            loss -= abs(t - r) ** alpha * log_sum([log_p[j] for j in range(len(z)) if j != r])
    return loss


def oce(z, t, hierarchy, level, *, miss):
    log_p, ranks = log_softmax(z), hierarchy.ranks(level)
    loss = -log_p[t]
    for r in range(len(z)):
        if r != t:
            cost = abs(t - r) * (miss if ranks[t] > ranks[r] else 1.0)
            loss -= cost * log_sum([log_p[j] for j in range(len(z)) if j != r])
    return loss


def co2(z, t, *, delta, lambda_margin):
    p, margin = softmax(z), 0.0
    for k in range(len(z) - 1):
        rise = p[k + 1] - p[k]
        margin += max(0.0, delta + (rise if k >= t else -rise))
    return ce(z, t) + lambda_margin * margin


def emd(z, t):
    p, total, loss = softmax(z), 0.0, 0.0
    for r in range(len(z)):
        total += p[r]
        loss += (total - (1.0 if r >= t else 0.0)) ** 2
    return loss


def sord(z, t, *, alpha):
    share = softmax([-alpha * abs(t - r) for r in range(len(z))])
    return -math.fsum(s * lp for s, lp in zip(share, log_softmax(z), strict=True))


def log_sigmoid(x):
    return -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))


def corn(z, t):
    """Binary cross-entropy of every question that the sample reaches."""
    loss = 0.0
    for k in range(len(z) - 1):
        if t > k:
            loss -= log_sigmoid(z[k])
        elif t == k:
            loss -= log_sigmoid(-z[k])
    return loss


def js(p, q):
    total = 0.0
    for a, b in zip(p, q, strict=True):
        m = 0.5 * (a + b)
        total += 0.5 * a * math.log(a / m) if a > 0 else 0.0
        total += 0.5 * b * math.log(b / m) if b > 0 else 0.0
    return total


def alignment(coarse, fine, parents):
    summed = [0.0] * len(coarse)
    for c, probability in enumerate(softmax(fine)):
        summed[parents[c]] += probability
    return js(softmax(coarse), summed)


def margin(p, q, *, mu):
    m = [0.5 * (a + b) for a, b in zip(p, q, strict=True)]
    kl_p = math.fsum(a * math.log(a / c) for a, c in zip(p, m, strict=True) if a > 0)
    kl_q = math.fsum(b * math.log(b / c) for b, c in zip(q, m, strict=True) if b > 0)
    return 0.5 * (max(0.0, mu - kl_p) + max(0.0, mu - kl_q))


def geometry(coarse_rows, fine_rows, parents):
    def length(v):
        return math.sqrt(math.fsum(x * x for x in v))

    total = 0.0
    for g, row in enumerate(coarse_rows):
        toward = [0.0] * len(row)
        for c, child in enumerate(fine_rows):
            if parents[c] == g:
                toward = [a + b / length(child) for a, b in zip(toward, child, strict=True)]
        dot = math.fsum(a * b for a, b in zip(row, toward, strict=True))
        total -= dot / (length(row) * length(toward))
    return total / len(coarse_rows)
