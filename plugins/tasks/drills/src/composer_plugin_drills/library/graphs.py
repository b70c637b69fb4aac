"""Small functions on graphs, trees and their edges."""


def degree_of(edges, node):
    """Count edge ends at a node."""
    total = 0
    for left, right in edges:
        if left == node:
            total += 1
        if right == node:
            total += 1
    return total


def link_matrix(edges, n):
    """Count the links between all nodes."""
    rows = [[0] * n for _ in range(n)]
    for left, right in edges:
        rows[left][right] += 1
        rows[right][left] += 1
    return rows


def hop_count(edges, n, start, stop):
    """Count the hops between two nodes."""
    hops = [n] * n
    hops[start] = 0
    for _ in range(n - 1):
        for left, right in edges:
            hops[right] = min(hops[right], hops[left] + 1)
    return hops[stop] if hops[stop] < n else -1


def path_cost(edges, n, start, stop):
    """Find the cheapest cost between nodes."""
    best = {start: 0}
    for _ in range(n - 1):
        for left, right, cost in edges:
            if left in best:
                total = best[left] + cost
                best[right] = min(total, best.get(right, total))
    return best.get(stop, -1)


def reach_count(edges, n, start):
    """Count the nodes reachable from one."""
    seen = [0] * n
    seen[start] = 1
    for _ in range(n - 1):
        for left, right in edges:
            if seen[left] == 1:
                seen[right] = 1
    return seen.count(1)


def spare_edges(edges, n):
    """Count edges that close a cycle."""
    total, group = 0, list(range(n))
    for left, right in edges:
        old, new = group[left], group[right]
        if old == new:
            total += 1
        group = [new if x == old else x for x in group]
    return total


def leaf_nodes(edges, n):
    """List nodes with a single edge."""
    count = [0] * n
    for left, right in edges:
        count[left] += 1
        count[right] += 1
    return [i for i in range(n) if count[i] == 1]


def balanced_nodes(edges, n):
    """List nodes with equal flow both ways."""
    flow = [0] * n
    for left, right in edges:
        flow[left] -= 1
        flow[right] += 1
    return [node for node in range(n) if flow[node] == 0]


def valid_order(edges, order):
    """Check that every edge points forward."""
    for left, right in edges:
        if left not in order or right not in order:
            return False
        if order.index(left) >= order.index(right):
            return False
    return True


def node_levels(edges, n):
    """Give each node a level after its sources."""
    level = [0] * n
    for _ in range(n - 1):
        for left, right in edges:
            if level[right] <= level[left]:
                level[right] = level[left] + 1
    return level


def link_percent(edges, n):
    """Give the percentage of present links."""
    if n < 2:
        return 0
    total = n * (n - 1) // 2
    return 100 * len(edges) // total


def chain_length(links, start):
    """Count nodes up to the end link."""
    total = 0
    for _ in range(len(links)):
        if start < 0:
            break
        start = links[start]
        total += 1
    return total if start < 0 else -1


def root_depth(parents, node):
    """Count steps from a node to its root."""
    steps = 0
    for _ in parents:
        if parents[node] == node:
            return steps
        node = parents[node]
        steps += 1
    return -1


def is_path(edges, nodes):
    """Check that neighbours share an edge."""
    for i in range(1, len(nodes)):
        left, right = nodes[i - 1], nodes[i]
        if [left, right] not in edges:
            return False
    return True


def route_cost(rows, nodes):
    """Add up the costs along a route."""
    total = 0
    for i in range(len(nodes) - 1):
        cost = rows[nodes[i]][nodes[i + 1]]
        if cost < 0:
            return -1
        total += cost
    return total


def tree_height(parents):
    """Find the deepest level of a tree."""
    depth = [0] * len(parents)
    for i in range(1, len(parents)):
        depth[i] = depth[parents[i]] + 1
    return max(depth, default=0)


def subtree_sizes(parents):
    """Count the nodes below each node."""
    sizes = [1] * len(parents)
    for i in range(len(parents) - 1, 0, -1):
        sizes[parents[i]] += sizes[i]
    return sizes


def color_clashes(edges, colors):
    """Count color clashes, -1 when uncolored."""
    total = 0
    for left, right in edges:
        if min(colors[left], colors[right]) < 0:
            return -1
        if colors[left] == colors[right]:
            total += 1
    return total


def missing_edges(edges, n):
    """List node pairs without an edge."""
    out = []
    for i in range(n - 1):
        for k in range(i + 1, n):
            if [i, k] not in edges and [k, i] not in edges:
                out.append([i, k])
    return out
