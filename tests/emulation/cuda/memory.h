/* Memory of the emulated device, and what is known of every byte of it.
 *
 * One range of addresses, reserved and never used twice, so that a stale address is found. Beside a byte lie
 *   state   whether it is allocated, and written
 *   write   by which thread it was written last, reads[2] by which two it was read
 * as stamps: interval << 5 | lane. An interval is a warp between two barriers (of its block or its own); those of a
 * launch are consecutive numbers. Two accesses, one of them a write, are a race unless something orders them.
 */
#pragma once
#include "vector.h"

#include <stdio.h>
#include <sys/mman.h>

static const uintptr_t ARENA_BYTES = (uintptr_t)1 << 37, SHARED_BYTES = 1 << 20, GUARD_BYTES = 1 << 16;

enum { NOT_ALLOCATED = 0, NOT_WRITTEN = 1, FREED = 2, WRITTEN = 3 };
enum { READ, WRITE, COPY }; /* kinds of access: COPY is a write by cp.async, after which nothing is there yet */

struct Interval { uint32_t block, barriers; uint16_t warp; };

struct Piece { uintptr_t start; size_t bytes; };

struct Memory {
    Vector<Piece> pieces; /* allocated */
    uintptr_t base = 0; /* begins with SHARED_BYTES: shared memory of a block, then shadows of static shared memory */
    uintptr_t top = 0;
    uint8_t *state = nullptr;
    uint32_t *write = nullptr, *reads[2] = {nullptr, nullptr};
    uintptr_t static_start = 0, static_bytes = 0; /* static shared memory of the module that runs */
    uintptr_t stack = 0, stack_bytes = 0;         /* of the fibre that runs */
    const char *image_start = nullptr, *image_stop = nullptr;
    uintptr_t parameters = 0, parameters_bytes = 0; /* of the launch */
    uint32_t stamp = 0;
    uint32_t interval = 1;                      /* the next one's number */
    uint32_t launch_first = 1, block_first = 1, ordered_before = 1;
    Vector<Interval> intervals;                 /* of this launch, from launch_first on */
};
static Memory memory;

[[noreturn]] static void fault(const char *kind, uintptr_t address, int bytes, int access);

static void *reserve(uintptr_t bytes) {
    void *const place = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED) {
        fprintf(stderr, "the emulated device: no address space\n");
        abort();
    }
    madvise(place, bytes, MADV_NOHUGEPAGE);
    return place;
}

static void reserve_memory() {
    if (memory.base) return;
    memory.base = (uintptr_t)reserve(ARENA_BYTES);
    memory.state = (uint8_t *)reserve(ARENA_BYTES);
    memory.write = (uint32_t *)reserve(4 * ARENA_BYTES);
    memory.reads[0] = (uint32_t *)reserve(4 * ARENA_BYTES);
    memory.reads[1] = (uint32_t *)reserve(4 * ARENA_BYTES);
    memory.top = 2 * SHARED_BYTES;
}

/* Allocated memory is of NaN until it is written. Returns 0 where addresses run out. */
static uintptr_t take_memory(uintptr_t bytes) {
    const uintptr_t start = memory.top, whole = (bytes + 255) & ~(uintptr_t)255;
    if (whole + GUARD_BYTES > ARENA_BYTES - start) return 0;
    memory.top += whole + GUARD_BYTES;
    memset((void *)(memory.base + start), 0xff, bytes);
    memset(memory.state + start, NOT_WRITTEN, bytes);
    return memory.base + start;
}

static void drop_memory(uintptr_t address, uintptr_t bytes) {
    const uintptr_t offset = address - memory.base, start = (offset + 4095) & ~4095ul, stop = (offset + bytes) & ~4095ul;
    memset(memory.state + offset, FREED, bytes);
    if (start >= stop) return;
    madvise((void *)(memory.base + start), stop - start, MADV_DONTNEED);
    madvise(memory.write + start, 4 * (stop - start), MADV_DONTNEED);
    for (uint32_t *stamps : memory.reads) madvise(stamps + start, 4 * (stop - start), MADV_DONTNEED);
}

static const char *kind_of_state(uint8_t state) {
    return state == NOT_WRITTEN ? "uninitialized" : state == FREED ? "freed" : "out of bounds";
}

/* Whether the bytes lie in allocated memory, and are written if `is_read`; else what is wrong. */
static const char *wrong_range(uintptr_t address, uintptr_t bytes, int is_read) {
    const uintptr_t offset = address - memory.base;
    if (offset >= ARENA_BYTES || bytes > ARENA_BYTES - offset) return "out of bounds";
    for (uintptr_t i = 0; i < bytes; i++) {
        const uint8_t state = memory.state[offset + i];
        if (state == WRITTEN || (!is_read && state == NOT_WRITTEN)) continue;
        return kind_of_state(state);
    }
    return nullptr;
}

/* Nodes of a graph that is launched: what orders intervals of launches before (graph.h). */
static int graph_orders(uint32_t interval);
/* Whether what a block did before one of its atomic operations is known to this one by one of its own (block.h). */
static int atomics_order(const Interval &before, const Interval &now);

/* Whether something orders the access of `stamp`, of this graph or launch, before one of now. */
static int is_ordered(uint32_t stamp) {
    const uint32_t before = stamp >> 5, now = memory.stamp >> 5;
    if (before < memory.launch_first) return graph_orders(before);
    if (before == now) return ((stamp ^ memory.stamp) & 31) == 0;
    const Interval &a = memory.intervals[before - memory.launch_first], &b = memory.intervals[now - memory.launch_first];
    return a.block == b.block ? a.barriers != b.barriers || a.warp == b.warp : atomics_order(a, b);
}

template <int bytes> static void watch(uintptr_t address, uintptr_t offset, int access, uint32_t first) {
    const uint8_t *const state = memory.state + offset;
    uint32_t *const write = memory.write + offset, *const r0 = memory.reads[0] + offset, *const r1 = memory.reads[1] + offset;
    const uint32_t me = memory.stamp;
    uint8_t least = 3, has_freed = 0;
    for (int i = 0; i < bytes; i++) {
        if (state[i] < least) least = state[i];
        has_freed |= state[i] == FREED;
    }
    if (least == NOT_ALLOCATED || has_freed || (access == READ && least != WRITTEN))
        fault(kind_of_state(has_freed ? (uint8_t)FREED : least), address, bytes, access);
    int is_recent = 0;
    for (int i = 0; i < bytes; i++) is_recent |= (write[i] >= first) & (write[i] != me);
    if (is_recent)
        for (int i = 0; i < bytes; i++)
            if (write[i] >= first && write[i] != me && !is_ordered(write[i]))
                fault("a race with a write", address, bytes, access);
    if (access == READ) {
        for (int i = 0; i < bytes; i++) {
            if (r0[i] < first || r0[i] == me) r0[i] = me;
            else if (r1[i] < first || r1[i] == me) r1[i] = me;
            else if (is_ordered(r0[i])) r0[i] = me;
            else if (is_ordered(r1[i])) r1[i] = me;
        }
        return;
    }
    is_recent = 0;
    for (int i = 0; i < bytes; i++)
        is_recent |= ((r0[i] >= first) & (r0[i] != me)) | ((r1[i] >= first) & (r1[i] != me));
    if (is_recent)
        for (int i = 0; i < bytes; i++)
            for (int k = 0; k < 2; k++) {
                const uint32_t before = (k ? r1 : r0)[i];
                if (before >= first && before != me && !is_ordered(before)) fault("a race with a read", address, bytes, access);
            }
    for (int i = 0; i < bytes; i++) write[i] = me;
    memset(memory.state + offset, access == COPY ? NOT_WRITTEN : WRITTEN, bytes);
}

template <int bytes> static inline void touch(uintptr_t address, int access) {
    uintptr_t offset = address - memory.base;
    uint32_t first = memory.ordered_before; /* stamps of intervals before are of the past */
    if (offset < ARENA_BYTES) {
        if (offset < SHARED_BYTES) first = memory.block_first;
    } else if (address - memory.stack < memory.stack_bytes) {
        return;
    } else if (address - memory.static_start < memory.static_bytes) {
        offset = SHARED_BYTES + (address - memory.static_start);
        first = memory.block_first;
    } else if (address - memory.parameters < memory.parameters_bytes && access == READ) {
        return;
    } else if ((const char *)address >= memory.image_start && (const char *)address < memory.image_stop && access == READ) {
        return;
    } else {
        fault("out of bounds", address, bytes, access);
    }
    watch<bytes>(address, offset, access, first << 5);
}

static void touch_range(uintptr_t address, uintptr_t bytes, int access) {
    for (uintptr_t i = 0; i < bytes; i++) touch<1>(address + i, access);
}

/* Begin with numbers of intervals again before they run out. Only between launches. */
static void renew_stamps() {
    if (memory.interval < (1u << 26)) return;
    const uintptr_t end = memory.top;
    madvise(memory.write, 4 * end, MADV_DONTNEED);
    for (uint32_t *stamps : memory.reads) madvise(stamps, 4 * end, MADV_DONTNEED);
    memory.interval = 1;
}

static uint32_t next_interval(uint32_t block, uint32_t barriers, uint16_t warp) {
    memory.intervals.push({block, barriers, warp});
    return memory.interval++;
}

/* What instrumented code calls. */
extern "C" {
#define WATCHED(bytes) \
    void __tsan_read##bytes(uintptr_t a) { touch<bytes>(a, READ); } \
    void __tsan_write##bytes(uintptr_t a) { touch<bytes>(a, WRITE); } \
    void __tsan_unaligned_read##bytes(uintptr_t a) { touch<bytes>(a, READ); } \
    void __tsan_unaligned_write##bytes(uintptr_t a) { touch<bytes>(a, WRITE); }
WATCHED(1)
WATCHED(2)
WATCHED(4)
WATCHED(8)
WATCHED(16)
void __tsan_read_range(uintptr_t a, uintptr_t bytes) { touch_range(a, bytes, READ); }
void __tsan_write_range(uintptr_t a, uintptr_t bytes) { touch_range(a, bytes, WRITE); }
void *__tsan_memcpy(void *to, const void *from, size_t bytes) {
    touch_range((uintptr_t)from, bytes, READ);
    touch_range((uintptr_t)to, bytes, WRITE);
    return memcpy(to, from, bytes);
}
void *__tsan_memmove(void *to, const void *from, size_t bytes) {
    touch_range((uintptr_t)from, bytes, READ);
    touch_range((uintptr_t)to, bytes, WRITE);
    return memmove(to, from, bytes);
}
void *__tsan_memset(void *to, int value, size_t bytes) {
    touch_range((uintptr_t)to, bytes, WRITE);
    return memset(to, value, bytes);
}
void __tsan_init(void) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}
void __ubsan_handle_type_mismatch_v1(void *, uintptr_t a) { fault("misaligned or null", a, 0, READ); }
void __ubsan_handle_out_of_bounds(void *, uintptr_t index) { fault("an index out of bounds", index, 0, READ); }
}
