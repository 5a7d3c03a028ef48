/* Graphs: nodes run in an order drawn by the seed, of those that their dependencies allow.
 *
 * A node whose only dependency is programmatic may begin as soon as that one has begun. Its threads are behind what that
 * one began behind, and behind all of it once they have waited. Nodes run one after another all the same: what is too
 * early is a race.
 */
#pragma once
#include "module.h"

struct Node { Launch launch; Vector<int> after; int is_early; };
struct Graph { Vector<Node *> nodes; };

static struct {
    const Graph *graph;
    int node;                   /* that runs */
    Vector<uint32_t> first;     /* interval of each that ran, in the order in which they did */
    Vector<int> ran;
    Vector<uint8_t> is_after;   /* [later][earlier] */
    Vector<uint8_t> begins_after;
    uint32_t first_of_all;
} launched;

static int graph_orders(uint32_t interval) {
    if (!launched.graph || interval < launched.first_of_all) return 1;
    int at = (int)launched.first.size - 1;
    while (launched.first[(size_t)at] > interval) at--;
    const size_t pair = (size_t)launched.node * launched.graph->nodes.size + (size_t)launched.ran[(size_t)at];
    return run.threads[run.running].has_waited ? launched.is_after[pair] : launched.begins_after[pair];
}

/* Which nodes are reached before which; nodes only depend on ones added before them. */
static void find_order(const Graph &graph) {
    const size_t count = graph.nodes.size;
    launched.is_after.size = launched.begins_after.size = 0;
    launched.is_after.resize(count * count);
    launched.begins_after.resize(count * count);
    for (size_t i = 0; i < count; i++)
        for (int before : graph.nodes[i]->after) {
            const int is_early = graph.nodes[i]->is_early;
            const Vector<uint8_t> &at_its_begin = is_early ? launched.begins_after : launched.is_after;
            launched.is_after[i * count + (size_t)before] = 1;
            launched.begins_after[i * count + (size_t)before] |= !is_early;
            for (size_t k = 0; k < count; k++) {
                launched.is_after[i * count + k] |= launched.is_after[(size_t)before * count + k];
                launched.begins_after[i * count + k] |= at_its_begin[(size_t)before * count + k];
            }
        }
}

static int run_graph(const Graph &graph) {
    const size_t count = graph.nodes.size;
    find_order(graph);
    launched.graph = &graph;
    launched.first.size = launched.ran.size = 0;
    launched.first_of_all = memory.ordered_before = memory.interval;
    Vector<int> left, ready;
    Vector<uint8_t> is_done;
    is_done.resize(count);
    for (size_t i = 0; i < count; i++) left.push((int)i);
    int succeeded = 1;
    while (succeeded && left.size) {
        ready.size = 0;
        for (size_t i = 0; i < left.size; i++) {
            int is_ready = 1;
            for (int before : graph.nodes[(size_t)left[i]]->after) is_ready &= is_done[(size_t)before];
            if (is_ready) ready.push((int)i);
        }
        const int chosen = ready[run.random.below((uint32_t)ready.size)], node = left[(size_t)chosen];
        left.swap_out((size_t)chosen);
        launched.node = node;
        launched.first.push(memory.interval);
        launched.ran.push(node);
        succeeded = run_launch(graph.nodes[(size_t)node]->launch, graph.nodes[(size_t)node]->is_early);
        is_done[(size_t)node] = 1;
    }
    left.release();
    ready.release();
    is_done.release();
    launched.graph = nullptr;
    return succeeded;
}
