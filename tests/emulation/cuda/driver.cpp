/* libcuda.so of an emulated device: the part of the driver interface that pyc calls, and a few functions for tests.
 *
 * Work put into a stream is done when somebody waits for it, so memory of the host that is changed too early shows. A
 * fault of a kernel is kept: every later call gives its code, and cuGetErrorString what happened.
 */
#include "graph.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

typedef int CUresult;
typedef uint64_t Address;
enum {
    SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_IMAGE = 200, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700
};

enum Kind { COPY_IN, COPY_OUT, COPY_INSIDE, FILL, LAUNCH, GRAPH, EVENT };
struct Event { int is_recorded; double time_ms; };
struct Work { Kind kind; uintptr_t to, from; size_t bytes; int value; void *staged; Launch launch; Graph *graph; Event *event; };
struct Stream { Vector<Work> queue; };

static struct {
    pthread_mutex_t mutex = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    int is_initialized, devices = 1, driver_version = 13000, major = 9, minor = 0, multiprocessors = 132;
    size_t memory_bytes = (size_t)8 << 30, used_bytes;
    int code;
    char text[640];
    Vector<Piece> pinned;
    Vector<Stream *> streams;
    long launches, graph_launches, programmatic_edges;
    void *context;
} device;

struct Lock {
    Lock() { pthread_mutex_lock(&device.mutex); }
    ~Lock() { pthread_mutex_unlock(&device.mutex); }
};

static CUresult failed(int code, const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    vsnprintf(device.text, sizeof device.text, format, rest);
    va_end(rest);
    if (code >= ILLEGAL_ADDRESS) device.code = code;
    return code;
}

static Piece *find_piece(Vector<Piece> &pieces, uintptr_t address) {
    for (Piece &piece : pieces)
        if (address - piece.start < piece.bytes) return &piece;
    return nullptr;
}

static CUresult check_copy(uintptr_t address, size_t bytes, int is_read, const char *what) {
    if (const char *wrong = wrong_range(address, bytes, is_read))
        return failed(ILLEGAL_ADDRESS, "%s of %zu bytes at %#lx: %s", what, bytes, (unsigned long)address, wrong);
    return SUCCESS;
}

static CUresult do_work(Work &work) {
    CUresult code = SUCCESS;
    memory.launch_first = memory.ordered_before = memory.interval;
    switch (work.kind) {
    case COPY_IN:
        code = check_copy(work.to, work.bytes, 0, "a copy to the device");
        if (code == SUCCESS) {
            memcpy((void *)work.to, work.staged ? work.staged : (void *)work.from, work.bytes);
            memset(memory.state + (work.to - memory.base), WRITTEN, work.bytes);
        }
        free(work.staged);
        break;
    case COPY_OUT:
        code = check_copy(work.from, work.bytes, 1, "a copy from the device");
        if (code == SUCCESS) memcpy((void *)work.to, (void *)work.from, work.bytes);
        break;
    case COPY_INSIDE:
        code = check_copy(work.from, work.bytes, 1, "a copy inside the device");
        if (code == SUCCESS) code = check_copy(work.to, work.bytes, 0, "a copy inside the device");
        if (code == SUCCESS) {
            memmove((void *)work.to, (void *)work.from, work.bytes);
            memset(memory.state + (work.to - memory.base), WRITTEN, work.bytes);
        }
        break;
    case FILL:
        code = check_copy(work.to, work.bytes, 0, "a fill");
        if (code == SUCCESS) {
            memset((void *)work.to, work.value, work.bytes);
            memset(memory.state + (work.to - memory.base), WRITTEN, work.bytes);
        }
        break;
    case LAUNCH:
        renew_stamps();
        memory.ordered_before = memory.interval;
        if (!run_launch(work.launch, 0)) code = failed(ILLEGAL_ADDRESS, "%s", run.text);
        free(work.launch.parameters);
        device.launches++;
        break;
    case GRAPH:
        renew_stamps();
        if (!run_graph(*work.graph)) code = failed(ILLEGAL_ADDRESS, "%s", run.text);
        device.graph_launches++;
        break;
    case EVENT: {
        timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        work.event->time_ms = (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
        work.event->is_recorded = 1;
        break;
    }
    }
    return code;
}

static CUresult drain(Stream &stream, const Event *until) {
    size_t done = 0;
    CUresult code = device.code;
    while (code == SUCCESS && done < stream.queue.size && !(until && until->is_recorded)) {
        Work work = stream.queue[done++];
        code = do_work(work);
    }
    memmove((void *)stream.queue.data, (void *)(stream.queue.data + done), (stream.queue.size - done) * sizeof(Work));
    stream.queue.size -= done;
    return code;
}

static CUresult drain_all() {
    CUresult code = device.code;
    for (Stream *stream : device.streams)
        if (code == SUCCESS) code = drain(*stream, nullptr);
    return code;
}

static Stream *stream_of(void *given) { /* the null stream is the first */
    if (!device.streams.size) device.streams.push((Stream *)calloc(1, sizeof(Stream)));
    if (!given) return device.streams[0];
    for (Stream *stream : device.streams)
        if (stream == given) return stream;
    return nullptr;
}

static CUresult submit(void *given, const Work &work) {
    Stream *const stream = stream_of(given);
    if (!stream) return failed(INVALID_HANDLE, "no such stream");
    stream->queue.push(work);
    return SUCCESS;
}

static CUresult check_launch(Function *function, Index grid, Index block, unsigned shared_bytes) {
    const unsigned threads = block.x * block.y * block.z;
    if (block.y != 1 || block.z != 1 || !threads || threads > 1024)
        return failed(INVALID_VALUE, "kernel %s: a block of (%u, %u, %u) threads", function->entry->name, block.x, block.y, block.z);
    if (function->entry->threads && (int)threads > function->entry->threads)
        return failed(INVALID_VALUE, "kernel %s: %u threads, more than its launch bounds say", function->entry->name, threads);
    if (!grid.x || !grid.y || !grid.z || grid.y > 65535 || grid.z > 65535)
        return failed(INVALID_VALUE, "kernel %s: a grid of (%u, %u, %u)", function->entry->name, grid.x, grid.y, grid.z);
    if ((int)shared_bytes > function->most_shared_bytes)
        return failed(INVALID_VALUE, "kernel %s: %u bytes of shared memory, allowed are %d", function->entry->name, shared_bytes,
                      function->most_shared_bytes);
    return SUCCESS;
}

#define ENTER \
    Lock lock; \
    if (!device.is_initialized) return NOT_INITIALIZED; \
    if (device.code) return device.code;

extern "C" {

CUresult cuInit(unsigned) {
    Lock lock;
    if (!device.devices) return failed(NO_DEVICE, "no device");
    reserve_memory();
    device.is_initialized = 1;
    return SUCCESS;
}
CUresult cuDriverGetVersion(int *version) {
    *version = device.driver_version;
    return SUCCESS;
}
CUresult cuDeviceGetCount(int *count) {
    ENTER
    *count = device.devices;
    return SUCCESS;
}
CUresult cuDeviceGet(int *found, int ordinal) {
    ENTER
    if (ordinal < 0 || ordinal >= device.devices) return failed(INVALID_DEVICE, "no device %d", ordinal);
    *found = ordinal;
    return SUCCESS;
}
CUresult cuDeviceGetName(char *name, int bytes, int) {
    ENTER
    snprintf(name, (size_t)bytes, "Emulated sm_%d%d", device.major, device.minor);
    return SUCCESS;
}
CUresult cuDeviceGetAttribute(int *value, int attribute, int) {
    ENTER
    switch (attribute) {
    case 1: *value = 1024; break;                     /* threads of a block */
    case 8: *value = 48 << 10; break;                 /* shared memory of a block */
    case 10: *value = 32; break;                      /* warp */
    case 12: *value = 65536; break;                   /* registers of a block */
    case 13: *value = 1755000; break;                 /* clock in kHz */
    case 16: *value = device.multiprocessors; break;
    case 36: *value = 2619000; break;                 /* memory clock in kHz */
    case 37: *value = 5120; break;                    /* memory bus in bits */
    case 38: *value = 50 << 20; break;                /* L2 */
    case 39: *value = 2048; break;                    /* threads of a multiprocessor */
    case 75: *value = device.major; break;
    case 76: *value = device.minor; break;
    case 81: *value = 228 << 10; break;               /* shared memory of a multiprocessor */
    case 97: *value = 227 << 10; break;               /* shared memory that a block may opt in to */
    default: *value = 0;
    }
    return SUCCESS;
}
CUresult cuDeviceTotalMem_v2(size_t *bytes, int) {
    ENTER
    *bytes = device.memory_bytes;
    return SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(void **context, int) {
    ENTER
    *context = &device.context;
    return SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
CUresult cuCtxSetCurrent(void *) { return SUCCESS; }
CUresult cuCtxSynchronize(void) {
    ENTER
    return drain_all();
}
CUresult cuMemGetInfo_v2(size_t *unused, size_t *total) {
    ENTER
    *unused = device.memory_bytes - device.used_bytes;
    *total = device.memory_bytes;
    return SUCCESS;
}
CUresult cuMemAlloc_v2(Address *address, size_t bytes) {
    ENTER
    if (!bytes) return failed(INVALID_VALUE, "an allocation of no bytes");
    if (bytes > device.memory_bytes - device.used_bytes) return failed(OUT_OF_MEMORY, "out of memory");
    const uintptr_t start = take_memory(bytes);
    if (!start) return failed(OUT_OF_MEMORY, "the emulated device is out of addresses");
    memory.pieces.push({start, bytes});
    device.used_bytes += bytes;
    *address = start;
    return SUCCESS;
}
CUresult cuMemFree_v2(Address address) {
    Lock lock;
    if (!device.is_initialized) return NOT_INITIALIZED;
    drain_all();
    Piece *const piece = address ? find_piece(memory.pieces, address) : nullptr;
    if (!address) return SUCCESS;
    if (!piece || piece->start != address) return failed(INVALID_VALUE, "%#lx was not allocated", (unsigned long)address);
    drop_memory(piece->start, piece->bytes);
    device.used_bytes -= piece->bytes;
    *piece = memory.pieces[--memory.pieces.size];
    return SUCCESS;
}
CUresult cuMemHostAlloc(void **place, size_t bytes, unsigned) {
    ENTER
    if (posix_memalign(place, 4096, bytes)) return failed(OUT_OF_MEMORY, "no memory of the host");
    device.pinned.push({(uintptr_t)*place, bytes});
    return SUCCESS;
}
CUresult cuMemFreeHost(void *place) {
    Lock lock;
    Piece *const piece = find_piece(device.pinned, (uintptr_t)place);
    if (!piece) return failed(INVALID_VALUE, "memory of the host that was not allocated");
    drain_all();
    free(place);
    *piece = device.pinned[--device.pinned.size];
    return SUCCESS;
}
CUresult cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, void *stream) {
    ENTER
    Work work = {COPY_IN, to, (uintptr_t)from, bytes};
    if (!find_piece(device.pinned, (uintptr_t)from)) work.staged = memcpy(malloc(bytes + 1), from, bytes);
    return submit(stream, work);
}
CUresult cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, void *stream) {
    ENTER
    const CUresult code = submit(stream, {COPY_OUT, (uintptr_t)to, from, bytes});
    return code || find_piece(device.pinned, (uintptr_t)to) ? code : drain(*stream_of(stream), nullptr);
}
CUresult cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void *stream) {
    ENTER
    return submit(stream, {COPY_INSIDE, to, from, bytes});
}
CUresult cuMemsetD8Async(Address to, unsigned char value, size_t bytes, void *stream) {
    ENTER
    return submit(stream, {FILL, to, 0, bytes, value});
}
CUresult cuStreamCreate(void **stream, unsigned) {
    ENTER
    stream_of(nullptr);
    device.streams.push((Stream *)(*stream = calloc(1, sizeof(Stream))));
    return SUCCESS;
}
CUresult cuStreamSynchronize(void *given) {
    ENTER
    Stream *const stream = stream_of(given);
    return stream ? drain(*stream, nullptr) : failed(INVALID_HANDLE, "no such stream");
}
CUresult cuStreamDestroy_v2(void *given) {
    Lock lock;
    for (size_t i = 1; i < device.streams.size; i++)
        if (device.streams[i] == given) {
            drain(*device.streams[i], nullptr);
            device.streams.swap_out(i);
            return SUCCESS;
        }
    return failed(INVALID_HANDLE, "no such stream");
}
CUresult cuEventCreate(void **event, unsigned) {
    ENTER
    *event = calloc(1, sizeof(Event));
    return SUCCESS;
}
CUresult cuEventRecord(void *event, void *stream) {
    ENTER
    ((Event *)event)->is_recorded = 0;
    Work work = {EVENT};
    work.event = (Event *)event;
    return submit(stream, work);
}
CUresult cuEventSynchronize(void *given) {
    ENTER
    const Event *const event = (Event *)given;
    for (Stream *stream : device.streams)
        for (Work &work : stream->queue)
            if (work.event == event) return drain(*stream, event);
    return SUCCESS;
}
CUresult cuEventElapsedTime(float *elapsed_ms, void *start, void *stop) {
    ENTER
    if (!((Event *)start)->is_recorded || !((Event *)stop)->is_recorded) return NOT_READY;
    *elapsed_ms = (float)(((Event *)stop)->time_ms - ((Event *)start)->time_ms);
    return SUCCESS;
}
CUresult cuEventDestroy_v2(void *event) {
    free(event);
    return SUCCESS;
}
CUresult cuModuleLoadData(void **module, const void *image) {
    ENTER
    *module = load_module(image);
    return *module ? SUCCESS : failed(INVALID_IMAGE, "no image for the emulated device");
}
CUresult cuModuleLoadDataEx(void **module, const void *image, unsigned, int *, void **) { return cuModuleLoadData(module, image); }
CUresult cuModuleUnload(void *given) {
    Lock lock;
    drain_all();
    Module *const module = (Module *)given;
    for (Function *function : module->functions) free(function);
    module->functions.release();
    dlclose(module->library);
    close(module->file);
    free(module);
    return SUCCESS;
}
CUresult cuModuleGetFunction(void **function, void *module, const char *name) {
    ENTER
    *function = find_function((Module *)module, name);
    return *function ? SUCCESS : failed(NOT_FOUND, "no kernel is called %s", name);
}
CUresult cuFuncSetAttribute(void *function, int attribute, int value) {
    ENTER
    if (attribute != 8 || value > 227 << 10) return failed(INVALID_VALUE, "attribute %d of a kernel: %d", attribute, value);
    ((Function *)function)->most_shared_bytes = value;
    return SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, int attribute, void *function) {
    ENTER
    *value = attribute == 0 ? 1024 : attribute == 8 ? ((Function *)function)->most_shared_bytes : 0;
    return SUCCESS;
}
CUresult cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared_bytes, void *stream, void **parameters, void **) {
    ENTER
    Function *const called = (Function *)function;
    if (CUresult code = check_launch(called, {gx, gy, gz}, {bx, by, bz}, shared_bytes)) return code;
    Work work = {LAUNCH};
    work.launch = launch_of(called, {gx, gy, gz}, bx, shared_bytes, parameters);
    return submit(stream, work);
}

struct KernelNodeParameters {
    void *function;
    unsigned gx, gy, gz, bx, by, bz, shared_bytes;
    void **parameters, **extra;
    void *kernel, *context;
};
CUresult cuGraphCreate(void **graph, unsigned) {
    ENTER
    *graph = calloc(1, sizeof(Graph));
    return SUCCESS;
}
static int place_of(const Graph &graph, const void *node) { /* -1 where it is not there */
    for (size_t at = 0; at < graph.nodes.size; at++)
        if (graph.nodes[at] == node) return (int)at;
    return -1;
}
CUresult cuGraphAddKernelNode_v2(void **added, void *given, void *const *after, size_t count, const KernelNodeParameters *p) {
    ENTER
    Graph *const graph = (Graph *)given;
    Function *const function = (Function *)p->function;
    if (CUresult code = check_launch(function, {p->gx, p->gy, p->gz}, {p->bx, p->by, p->bz}, p->shared_bytes)) return code;
    Node *const node = (Node *)calloc(1, sizeof(Node));
    node->launch = launch_of(function, {p->gx, p->gy, p->gz}, p->bx, p->shared_bytes, p->parameters);
    for (size_t i = 0; i < count; i++) {
        const int at = place_of(*graph, after[i]);
        if (at < 0) return failed(INVALID_VALUE, "kernel %s: depends on a node of another graph", function->entry->name);
        node->after.push(at);
    }
    graph->nodes.push(node);
    *added = node;
    return SUCCESS;
}
/* CUgraphEdgeData. Edges of one call are of one kind here: there are drivers that take the first one's for all. */
struct EdgeData { uint8_t from_port, to_port, type, reserved[5]; };
CUresult cuGraphAddDependencies_v2(void *given, void *const *from, void *const *to, const EdgeData *data, size_t count) {
    ENTER
    Graph *const graph = (Graph *)given;
    for (size_t i = 0; i < count; i++) {
        const EdgeData kind = data ? data[i] : EdgeData{};
        if (data && memcmp(&kind, data, sizeof kind)) return failed(INVALID_VALUE, "edges of several kinds");
        static const uint8_t full[8] = {0, 0, 0}, programmatic[8] = {1, 0, 1};
        const int is_programmatic = !memcmp(&kind, programmatic, sizeof kind);
        if (!is_programmatic && memcmp(&kind, full, sizeof kind)) return failed(INVALID_VALUE, "an edge of no known kind");
        if (is_programmatic && device.major < 9) return failed(INVALID_VALUE, "a programmatic edge before sm_90");
        const int before = place_of(*graph, from[i]), after = place_of(*graph, to[i]);
        if (before < 0 || after <= before) return failed(INVALID_VALUE, "an edge from node %d to node %d", before, after);
        Node *const node = graph->nodes[(size_t)after];
        for (int other : node->after)
            if (other == before) return failed(INVALID_VALUE, "an edge that there is");
        node->after.push(before);
        node->is_early |= is_programmatic;
        device.programmatic_edges += is_programmatic;
    }
    return SUCCESS;
}
CUresult cuGraphInstantiateWithFlags(void **made, void *given, unsigned long long) {
    ENTER
    for (const Node *node : ((Graph *)given)->nodes)
        if (node->is_early && node->after.size != 1)
            return failed(INVALID_VALUE, "kernel %s: a programmatic edge beside others", node->launch.name);
    Graph *const graph = (Graph *)calloc(1, sizeof(Graph));
    for (Node *node : ((Graph *)given)->nodes) {
        Node *const copy = (Node *)calloc(1, sizeof(Node));
        copy->launch = node->launch;
        copy->is_early = node->is_early;
        for (int before : node->after) copy->after.push(before);
        graph->nodes.push(copy);
    }
    *made = graph;
    return SUCCESS;
}
CUresult cuGraphLaunch(void *graph, void *stream) {
    ENTER
    Work work = {GRAPH};
    work.graph = (Graph *)graph;
    return submit(stream, work);
}
CUresult cuGraphExecDestroy(void *) { return drain_all(); }
CUresult cuGraphDestroy(void *) { return SUCCESS; }
CUresult cuGetErrorName(CUresult code, const char **name) {
    *name = code == SUCCESS ? "CUDA_SUCCESS" : code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
          : code == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : code == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : code == INVALID_IMAGE ? "CUDA_ERROR_INVALID_IMAGE" : code == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE"
          : code == NOT_FOUND ? "CUDA_ERROR_NOT_FOUND" : code == INVALID_HANDLE ? "CUDA_ERROR_INVALID_HANDLE"
          : code == NOT_INITIALIZED ? "CUDA_ERROR_NOT_INITIALIZED" : "CUDA_ERROR_UNKNOWN";
    return SUCCESS;
}
CUresult cuGetErrorString(CUresult code, const char **text) {
    *text = code == SUCCESS ? "no error" : device.text;
    return SUCCESS;
}

/* For tests. Settings by name: see the table. Returns 0 where there is no such one. */
int emulated_configure(const char *name, uint64_t value) {
    Lock lock;
    if (!strcmp(name, "seed")) run.random.state = value;
    else if (!strcmp(name, "devices")) device.devices = (int)value;
    else if (!strcmp(name, "driver_version")) device.driver_version = (int)value;
    else if (!strcmp(name, "capability")) device.major = (int)value / 10, device.minor = (int)value % 10;
    else if (!strcmp(name, "multiprocessors")) device.multiprocessors = (int)value;
    else if (!strcmp(name, "memory_bytes")) device.memory_bytes = value;
    else return 0;
    return 1;
}
/* Forgets a fault and what is queued; memory stays allocated. */
void emulated_reset(void) {
    Lock lock;
    device.code = SUCCESS;
    for (Stream *stream : device.streams) stream->queue.size = 0;
}
long emulated_count(const char *name) {
    return !strcmp(name, "launches") ? device.launches : !strcmp(name, "graph_launches") ? device.graph_launches
         : !strcmp(name, "programmatic_edges") ? device.programmatic_edges
         : !strcmp(name, "used_bytes") ? (long)device.used_bytes : -1;
}
}
