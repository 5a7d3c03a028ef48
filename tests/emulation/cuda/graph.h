/* Graphs: nodes run in an order drawn by the seed, of those that their dependencies allow. */
#pragma once
#include "module.h"

struct Node { Launch launch; Vector<int> after; };
struct Graph { Vector<Node *> nodes; };

static struct {
    const Graph *graph;
    int node;                   /* that runs */
    Vector<uint32_t> first;     /* interval of each that ran, in the order in which they did */
    Vector<int> ran;
    Vector<uint8_t> is_after;   /* [later][earlier] */
    uint32_t first_of_all;
} launched;

static int graph_orders(uint32_t interval) {
    if (!launched.graph || interval < launched.first_of_all) return 1;
    int at = (int)launched.first.size - 1;
    while (launched.first[(size_t)at] > interval) at--;
    return launched.is_after[(size_t)launched.node * launched.graph->nodes.size + (size_t)launched.ran[(size_t)at]];
}

/* Which nodes are reached before which; nodes only depend on ones added before them. */
static void find_order(const Graph &graph) {
    const size_t count = graph.nodes.size;
    launched.is_after.size = 0;
    launched.is_after.resize(count * count);
    for (size_t i = 0; i < count; i++)
        for (int before : graph.nodes[i]->after) {
            launched.is_after[i * count + (size_t)before] = 1;
            for (size_t k = 0; k < count; k++)
                launched.is_after[i * count + k] |= launched.is_after[(size_t)before * count + k];
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
        succeeded = run_launch(graph.nodes[(size_t)node]->launch);
        is_done[(size_t)node] = 1;
    }
    left.release();
    ready.release();
    is_done.release();
    launched.graph = nullptr;
    return succeeded;
}
