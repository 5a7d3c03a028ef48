/* Runs the blocks of a launch, one after another in a shuffled order, and the threads of each as fibres.
 *
 * A fibre runs until it waits: for the block, for lanes of its warp, or for its end. Which of those that can go on does
 * so is drawn by the seed. What a warp does together happens when the last lane arrives.
 */
#pragma once
#include "fibre.h"
#include "matrix.h"
#include "memory.h"

#include <stdarg.h>

static const uintptr_t STACK_BYTES = 1 << 17;
static const int MOST_THREADS = 1024, MOST_WARPS = 32;

struct Index { unsigned x, y, z; };
struct Copy { void *to; const void *from; int bytes, source_bytes, group; };
enum State { READY, AT_BARRIER, IN_WARP, IN_WARPGROUP, EXITED };
enum Collective { NOTHING, WARP_BARRIER, SHUFFLE, BALLOT, LDMATRIX, MMA, MMA_INTEGER };
/* A matrix instruction of a warpgroup that was issued: `group` counts commits. */
struct Product { int kind, columns, adds, group; float *d; const unsigned *a; uint64_t shared_a, shared_b; };

struct Thread {
    void *stack_pointer;
    State state;
    int place;                     /* of the barrier */
    uint32_t stamp;
    uint64_t value, result;        /* of a collective */
    int lane;                      /* that a shuffle reads */
    const void *a, *b;
    void *d;
    int count, kind;
    int fenced; /* 1 + the barriers of the block when it last did */
    int has_waited; /* for the launch before, if this one began early */
    Vector<Copy> copies;
    int groups;
    Vector<Product> products;
    int product_groups, has_begun; /* products, since the last wait for some */
    int is_shown;                  /* what it copied, to products */
};
/* An atomic operation on `place` after a fence: what its block did before its last barrier then is seen by who finds the
 * operation's result in `place` later. */
struct Release { uintptr_t place; uint32_t block, barriers; };
struct Acquired { uint32_t block, barriers, from; }; /* from: the barriers of this block that its threads have to pass */
struct Warp { Collective collective; unsigned mask, arrived; uint32_t interval; };

static struct {
    Thread threads[MOST_THREADS];
    Warp warps[MOST_WARPS];
    Vector<int> ready;
    Vector<Release> releases;   /* of the launch */
    Vector<Acquired> acquired;  /* of the block */
    int is_early; /* whether the launch may begin before the one that it waits for has ended */
    int count, running, waiting, exited;
    uint32_t number, barriers;
    Index block, block_size, grid;
    char *stacks;
    void *scheduler;
    void (*call)(void *const *);
    void *const *parameters;
    const char *name;
    Random random;
    int failed;
    char text[512];
} run;

/* Name what went wrong where, and end the launch. */
[[noreturn]] static void fail(const char *format, ...) {
    char what[256];
    va_list rest;
    va_start(rest, format);
    vsnprintf(what, sizeof what, format, rest);
    va_end(rest);
    snprintf(run.text, sizeof run.text, "kernel %s, block (%u, %u, %u), thread %d: %s%s", run.name, run.block.x, run.block.y,
             run.block.z, run.running, what, run.threads[run.running].has_waited ? "" : ", without a wait for earlier launches");
    run.failed = 1;
    void *ignored;
    emulated_switch(&ignored, run.scheduler);
    abort();
}

static void fault(const char *kind, uintptr_t address, int bytes, int access) {
    const char *const what = access == READ ? "read" : access == WRITE ? "write" : "copy";
    const uintptr_t offset = address - memory.base;
    if (!bytes) fail("%s: %#lx", kind, (unsigned long)address);
    if (address - memory.static_start < memory.static_bytes)
        fail("%s: %s of %d bytes at %lu of static shared memory", kind, what, bytes,
             (unsigned long)(address - memory.static_start));
    if (offset < SHARED_BYTES)
        fail("%s: %s of %d bytes at %lu of shared memory", kind, what, bytes, (unsigned long)offset);
    for (const Piece &piece : memory.pieces)
        if (address - piece.start < piece.bytes + GUARD_BYTES)
            fail("%s: %s of %d bytes at %lu of an array of %zu", kind, what, bytes, (unsigned long)(address - piece.start),
                 piece.bytes);
    fail("%s: %s of %d bytes at %#lx", kind, what, bytes, (unsigned long)address);
}

static void give_way() { emulated_switch(&run.threads[run.running].stack_pointer, run.scheduler); }

static void run_thread(void) {
    run.call(run.parameters);
    if (!run.threads[run.running].has_waited) fail("it ends");
    run.threads[run.running].state = EXITED;
    give_way();
    abort();
}

static void renew_warp(int warp) {
    run.warps[warp].interval = next_interval(run.number, run.barriers, (uint16_t)warp);
    for (int t = 32 * warp; t < 32 * warp + 32 && t < run.count; t++)
        run.threads[t].stamp = run.warps[warp].interval << 5 | (uint32_t)(t & 31);
}

static void begin_block(uint32_t number, unsigned shared_bytes) {
    run.number = number;
    run.barriers = 0;
    run.waiting = run.exited = 0;
    run.block = {number % run.grid.x, number / run.grid.x % run.grid.y, number / run.grid.x / run.grid.y};
    memory.block_first = memory.interval;
    memset(memory.state, NOT_ALLOCATED, SHARED_BYTES);
    memset(memory.state, NOT_WRITTEN, shared_bytes);
    memset((void *)memory.base, 0xff, shared_bytes);
    memset(memory.state + SHARED_BYTES, NOT_WRITTEN, memory.static_bytes);
    memset((void *)memory.static_start, 0xff, memory.static_bytes);
    memset(run.warps, 0, sizeof run.warps);
    run.ready.size = run.acquired.size = 0;
    for (int t = 0; t < run.count; t++) {
        Thread &thread = run.threads[t];
        thread.state = READY;
        thread.copies.size = 0;
        thread.fenced = 0;
        thread.has_waited = !run.is_early;
        thread.groups = 0;
        thread.products.size = 0;
        thread.product_groups = thread.has_begun = 0;
        thread.is_shown = 1;
        thread.stack_pointer = begin_fibre(run.stacks + (size_t)t * STACK_BYTES, STACK_BYTES, run_thread);
        run.ready.push(t);
    }
    for (int warp = 0; 32 * warp < run.count; warp++) renew_warp(warp);
}

/* Let those go on that wait at the barrier, once every thread that has not ended does. */
static void end_barrier() {
    int first = -1;
    for (int t = 0; t < run.count; t++) {
        Thread &thread = run.threads[t];
        if (thread.state == EXITED) continue;
        run.running = t;
        if (thread.state == IN_WARP) {
            const Warp &warp = run.warps[t / 32];
            snprintf(run.text, sizeof run.text, "kernel %s, block (%u, %u, %u), thread %d: waits for lanes %#x of its warp, "
                     "of which %#x arrived, while others have ended or wait at a barrier", run.name, run.block.x,
                     run.block.y, run.block.z, t, warp.mask, warp.arrived);
            run.failed = 1;
            return;
        }
        if (thread.state == IN_WARPGROUP) {
            snprintf(run.text, sizeof run.text, "kernel %s, block (%u, %u, %u), thread %d: waits for products, while others of "
                     "its warpgroup have ended or wait at a barrier", run.name, run.block.x, run.block.y, run.block.z, t);
            run.failed = 1;
            return;
        }
        if (first >= 0 && thread.place != run.threads[first].place) {
            snprintf(run.text, sizeof run.text, "kernel %s, block (%u, %u, %u), thread %d: waits at the barrier of line %d, "
                     "thread %d at that of line %d", run.name, run.block.x, run.block.y, run.block.z, t, thread.place, first,
                     run.threads[first].place);
            run.failed = 1;
            return;
        }
        if (first < 0) first = t;
    }
    run.barriers++;
    for (int t = 0; t < run.count; t++)
        if (run.threads[t].state == AT_BARRIER) {
            run.threads[t].state = READY;
            run.ready.push(t);
        }
    for (int warp = 0; 32 * warp < run.count; warp++) renew_warp(warp);
}

static void run_block(uint32_t number, unsigned shared_bytes) {
    begin_block(number, shared_bytes);
    while (!run.failed) {
        if (run.ready.size == 0) {
            if (run.exited == run.count) return;
            end_barrier();
            continue;
        }
        const uint32_t drawn = run.random.below((uint32_t)run.ready.size);
        run.running = run.ready[drawn];
        run.ready.swap_out(drawn);
        Thread &thread = run.threads[run.running];
        memory.stamp = thread.stamp;
        memory.stack = (uintptr_t)run.stacks + (uintptr_t)run.running * STACK_BYTES;
        emulated_switch(&run.scheduler, thread.stack_pointer);
        if (thread.state == EXITED) run.exited++;
    }
}

struct Launch {
    const char *name;
    void (*call)(void *const *);
    void **parameters;
    int parameter_count;
    Index grid;
    unsigned threads, shared_bytes;
    uintptr_t static_start, static_bytes;
    const char *image_start, *image_stop;
};

/* Runs a launch to its end; whether it succeeded, and if not, `run.text` says why. */
static int run_launch(const Launch &launch, int is_early) {
    if (!run.stacks) run.stacks = (char *)reserve(MOST_THREADS * STACK_BYTES);
    run.name = launch.name;
    run.call = launch.call;
    run.parameters = launch.parameters;
    run.grid = launch.grid;
    run.block_size = {launch.threads, 1, 1};
    run.count = (int)launch.threads;
    run.failed = 0;
    run.is_early = is_early;
    memory.static_start = launch.static_start;
    memory.static_bytes = launch.static_bytes;
    memory.image_start = launch.image_start;
    memory.image_stop = launch.image_stop;
    memory.stack_bytes = STACK_BYTES;
    memory.parameters = (uintptr_t)launch.parameters;
    memory.parameters_bytes = 2 * (unsigned)launch.parameter_count * sizeof(void *);
    memory.intervals.size = run.releases.size = 0;
    memory.launch_first = memory.interval;
    const uint32_t blocks = launch.grid.x * launch.grid.y * launch.grid.z;
    Vector<uint32_t> order;
    for (uint32_t i = 0; i < blocks; i++) order.push(i);
    for (uint32_t i = blocks; i > 1; i--) {
        const uint32_t other = run.random.below(i), last = order[i - 1];
        order[i - 1] = order[other];
        order[other] = last;
    }
    for (uint32_t i = 0; i < blocks && !run.failed; i++) run_block(order[i], launch.shared_bytes);
    order.release();
    return !run.failed;
}

static int atomics_order(const Interval &before, const Interval &now) {
    for (const Acquired &known : run.acquired)
        if (known.block == before.block && before.barriers < known.barriers && now.barriers >= known.from) return 1;
    return 0;
}

static Thread &self() { return run.threads[run.running]; }

/* Waits until all lanes of `mask` are here, the last of which does `together`; then all go on. */
static void meet(Collective collective, unsigned mask, void (*together)(Thread *lanes, unsigned mask)) {
    const int t = run.running, lane = t & 31;
    Warp &warp = run.warps[t / 32];
    if (!(mask >> lane & 1)) fail("a lane is not in its own mask %#x", mask);
    if (warp.collective == NOTHING) {
        warp.collective = collective;
        warp.mask = mask;
        warp.arrived = 0;
    } else if (warp.collective != collective || warp.mask != mask) {
        fail("lanes of the warp do different things together, or with masks %#x and %#x", warp.mask, mask);
    }
    warp.arrived |= 1u << lane;
    Thread *const lanes = run.threads + (t & ~31);
    if (warp.arrived != mask) {
        self().state = IN_WARP;
        give_way();
        return;
    }
    warp.collective = NOTHING;
    if (together) together(lanes, mask);
    if (collective == WARP_BARRIER && mask == ~0u) renew_warp(t / 32);
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1) {
            lanes[i].state = READY;
            run.ready.push((t & ~31) + i);
        }
    give_way();
}

static void shuffle(Thread *lanes, unsigned mask) {
    for (int i = 0; i < 32; i++) {
        if (!(mask >> i & 1)) continue;
        if (!(mask >> lanes[i].lane & 1)) fail("a shuffle reads lane %d, which is not in the mask %#x", lanes[i].lane, mask);
        lanes[i].result = lanes[lanes[i].lane].value;
    }
}

static void ballot(Thread *lanes, unsigned mask) {
    unsigned votes = 0;
    for (int i = 0; i < 32; i++) votes |= (mask >> i & 1 && lanes[i].value) ? 1u << i : 0;
    for (int i = 0; i < 32; i++) lanes[i].result = votes;
}

/* Lane 8 j + i has the address of row i of matrix j; lane i gets two neighbours of row i / 4, or column when transposed. */
static void load_matrices(Thread *lanes, unsigned) {
    for (int j = 0; j < lanes[0].count; j++)
        for (int i = 0; i < 32; i++) {
            unsigned pair = 0;
            for (int k = 0; k < 2; k++) {
                const int row = lanes[0].kind ? i % 4 * 2 + k : i / 4, column = lanes[0].kind ? i / 4 : i % 4 * 2 + k;
                uint16_t value;
                memcpy(&value, (const char *)lanes[8 * j + row].a + 2 * column, 2);
                pair |= (unsigned)value << 16 * k;
            }
            ((unsigned *)lanes[i].d)[j] = pair;
        }
}

/* Word `word` of a row, by the descriptor of rows of 128 swizzled bytes: two numbers of bf16, or four of 8 bits. */
static unsigned swizzled_word(uint64_t descriptor, int row, int word) {
    const uintptr_t start = (uintptr_t)(descriptor & 0x3fff) << 4, plain = start + (uintptr_t)row * 128 + 4 * (uintptr_t)word;
    const uintptr_t place = memory.base + (plain ^ (plain >> 7 & 7) << 4);
    touch_range(place, 4, READ);
    return *(const unsigned *)place;
}

static void multiply(Thread *lanes, unsigned) {
    const void *a[32], *b[32];
    void *d[32];
    for (int i = 0; i < 32; i++) a[i] = lanes[i].a, b[i] = lanes[i].b, d[i] = lanes[i].d;
    multiply_fragments(lanes[0].kind, (const unsigned *const *)a, (const unsigned *const *)b, d);
}

/* Runs the products of a warpgroup, the thread that runs being the last of it to wait for them: d += a b, rows of `b`, and
 * those of `a` that is not in registers, being 128 swizzled bytes each in shared memory, that are read now. */
static void run_products(Thread *threads, int pending) {
    const size_t count = threads[0].products.size;
    for (int t = 1; t < 128; t++)
        if (threads[t].products.size != count || threads[t].product_groups != threads[0].product_groups)
            fail("threads of a warpgroup wait for %zu and %zu products", count, threads[t].products.size);
    size_t done = 0;
    for (; done < count && threads[0].products[done].group < threads[0].product_groups - pending; done++) {
        const Product &first = threads[0].products[done];
        for (int t = 1; t < 128; t++) {
            const Product &other = threads[t].products[done];
            if (other.kind != first.kind || other.columns != first.columns || other.adds != first.adds || other.shared_a != first.shared_a ||
                other.shared_b != first.shared_b || !other.a != !first.a)
                fail("threads of a warpgroup multiply different things");
        }
        for (int warp = 0; warp < 4; warp++) {
            const unsigned *a[32], *b[32];
            unsigned rows[32][4], columns[32][2];
            float sums[32][4];
            void *d[32];
            for (int lane = 0; lane < 32; lane++) {
                const Product &mine = threads[32 * warp + lane].products[done];
                a[lane] = mine.a ? mine.a : rows[lane];
                for (int r = 0; r < 4 && !mine.a; r++)
                    rows[lane][r] = swizzled_word(first.shared_a, 16 * warp + lane / 4 + 8 * (r % 2), lane % 4 + 4 * (r / 2));
                b[lane] = columns[lane];
                d[lane] = sums[lane];
            }
            for (int column = 0; column < first.columns; column += 8) {
                for (int lane = 0; lane < 32; lane++) {
                    for (int r = 0; r < 2; r++)
                        columns[lane][r] = swizzled_word(first.shared_b, column + lane / 4, lane % 4 + 4 * r);
                    const float *const before = threads[32 * warp + lane].products[done].d + column / 2;
                    for (int r = 0; r < 4; r++) sums[lane][r] = first.adds ? before[r] : 0;
                }
                multiply_fragments(first.kind, a, b, d);
                for (int lane = 0; lane < 32; lane++)
                    memcpy(threads[32 * warp + lane].products[done].d + column / 2, sums[lane], sizeof sums[lane]);
            }
        }
    }
    for (int t = 0; t < 128; t++) {
        Vector<Product> &left = threads[t].products;
        for (size_t i = done; i < count; i++) left[i - done] = left[i];
        left.size = count - done;
    }
}

/* What kernels call (emulation.h). */
extern "C" {
Index emulated_thread_index(void) { return {(unsigned)run.running, 0, 0}; }
Index emulated_block_index(void) { return run.block; }
Index emulated_block_size(void) { return run.block_size; }
Index emulated_grid_size(void) { return run.grid; }
unsigned char *emulated_shared_memory(void) { return (unsigned char *)memory.base; }

void emulated_barrier(int place) {
    self().state = AT_BARRIER;
    self().place = place;
    give_way();
}
void emulated_warp_barrier(unsigned mask) { meet(WARP_BARRIER, mask, nullptr); }
uint64_t emulated_shuffle(unsigned mask, uint64_t value, int lane) {
    self().value = value;
    self().lane = lane;
    meet(SHUFFLE, mask, shuffle);
    return self().result;
}
unsigned emulated_ballot(unsigned mask, int predicate) {
    self().value = predicate != 0;
    meet(BALLOT, mask, ballot);
    return (unsigned)self().result;
}
void emulated_let_dependents_begin(void) {}
void emulated_wait_for_dependencies(void) { self().has_waited = 1; }
void emulated_fence(void) { self().fenced = 1 + (int)run.barriers; }
/* Orders what others do after the next barrier of the block behind what blocks before did before theirs. */
unsigned emulated_atomic_add(unsigned *place, unsigned value) {
    const uintptr_t address = (uintptr_t)place;
    if (const char *wrong = wrong_range(address, 4, 1)) fault(wrong, address, 4, READ);
    if (!self().has_waited) fault("an atomic operation", address, 4, WRITE);
    for (const Release &release : run.releases)
        if (release.place == address && release.block != run.number)
            run.acquired.push({release.block, release.barriers, run.barriers + 1});
    if (self().fenced == 1 + (int)run.barriers) run.releases.push({address, run.number, run.barriers});
    const unsigned before = *place;
    *place += value;
    return before;
}
void emulated_ldmatrix(unsigned *fragments, const void *row, int count, int is_transposed) {
    if ((run.running & 31) < 8 * count) {
        if ((uintptr_t)row & 15) fault("misaligned", (uintptr_t)row, 16, READ);
        touch<16>((uintptr_t)row, READ);
    }
    self().a = row;
    self().d = fragments;
    self().count = count;
    self().kind = is_transposed;
    meet(LDMATRIX, ~0u, load_matrices);
}
void emulated_mma(int kind, float *d, const unsigned *a, const unsigned *b) {
    self().a = a;
    self().b = b;
    self().d = d;
    self().kind = kind;
    meet(MMA, ~0u, multiply);
}
void emulated_mma_integer(int *d, const unsigned *a, const unsigned *b) {
    emulated_mma(S8, (float *)d, a, b);
}
/* Products happen when they are waited for, so that what is overwritten before shows. */
void emulated_wgmma(int kind, int columns, float *d, const unsigned *a, uint64_t shared_a, uint64_t shared_b, int adds) {
    if (run.count % 128) fail("a block of %d threads has no whole warpgroups", run.count);
    if (!self().has_begun) fail("products without a fence before them");
    const uint64_t layout = 1ull << 62 | 64ull << 32 | 1ull << 16; /* rows of 128 swizzled bytes, eight of them 1024 */
    const uint64_t both[2] = {shared_b, a ? layout : shared_a};
    for (const uint64_t rows : both) {
        if ((rows & ~0x3fffull) != layout) fail("a matrix in shared memory of another layout: %#lx", (unsigned long)rows);
        if (rows & 0x38) fail("rows in shared memory that do not begin at a multiple of 1024 bytes");
    }
    for (int t = 0; t < run.count; t++)
        if (!run.threads[t].is_shown) fail("products of what thread %d copied without a fence behind", t);
    self().products.push({kind, columns, adds, self().product_groups, d, a, shared_a, shared_b});
}
void emulated_wgmma_fence(void) { self().has_begun = 1; }
void emulated_wgmma_commit(void) { self().product_groups++; }
void emulated_wgmma_wait(int pending) {
    Thread *const threads = run.threads + (run.running & ~127);
    self().has_begun = 0;
    self().count = pending;
    self().state = IN_WARPGROUP;
    int last = 1;
    for (int t = 0; t < 128; t++) last &= threads[t].state == IN_WARPGROUP;
    if (!last) {
        give_way();
        return;
    }
    for (int t = 0; t < 128; t++)
        if (threads[t].count != pending) fail("threads of a warpgroup wait for all but %d and %d", pending, threads[t].count);
    run_products(threads, pending);
    for (int t = 0; t < 128; t++) {
        threads[t].state = READY;
        run.ready.push((run.running & ~127) + t);
    }
    give_way();
}
void emulated_proxy_fence(void) { self().is_shown = 1; }
void emulated_async_copy(void *shared, const void *global, int bytes, int source_bytes) {
    const uintptr_t to = (uintptr_t)shared, from = (uintptr_t)global;
    if (to % (unsigned)bytes || from % (unsigned)bytes) fault("misaligned", to % (unsigned)bytes ? to : from, bytes, COPY);
    if (source_bytes < 0 || source_bytes > bytes) fail("a copy of %d of %d bytes", source_bytes, bytes);
    touch_range(from, (unsigned)source_bytes, READ);
    touch_range(to, (unsigned)bytes, COPY);
    memset(shared, 0xff, (unsigned)bytes);
    self().copies.push({shared, global, bytes, source_bytes, self().groups});
}
void emulated_async_commit(void) { self().groups++; }
void emulated_async_wait(int pending) {
    Thread &thread = self();
    size_t left = 0;
    for (const Copy &copy : thread.copies) {
        if (copy.group >= thread.groups - pending) {
            thread.copies[left++] = copy;
            continue;
        }
        touch_range((uintptr_t)copy.from, (unsigned)copy.source_bytes, READ);
        touch_range((uintptr_t)copy.to, (unsigned)copy.bytes, WRITE);
        thread.is_shown = 0;
        memcpy(copy.to, copy.from, (unsigned)copy.source_bytes);
        memset((char *)copy.to + copy.source_bytes, 0, (unsigned)(copy.bytes - copy.source_bytes));
    }
    thread.copies.size = left;
}
}
