/* The thread pool of a library: its threads share the parallel loops of its programs.
 *
 * Code that TVM compiled runs a loop through __TVMBackendParallelLaunch, a pointer that `pyc_start` sets to `launch`. A
 * loop is PYC_TASKS tasks, which write to different places. Every thread has a run of neighbours, so that it reads one
 * long range of memory; who is done steals half of what another has left, from its end (work stealing). It takes a
 * quarter of its run at a time: a thread that the system holds up delays a loop by no more than that.
 *
 * A run is one word: the loop's number, the first task, and the one past the last. Who changes it by a compare-and-swap
 * owns what was taken out. A loop is over when all its tasks have been done, so nothing waits for a thread without any.
 *
 * A line of memory takes up to 400 ns from core to core where they are of different chiplets, and a locked instruction
 * waits for all that the core has asked for. So a thread hears of a loop by one line, its own, and says by another what
 * it has done, once, when it finds nothing more to do.
 *
 * Threads without work look for some, and then sleep. While they look, they read the weights of the next matmul
 * (`pyc_prefetch_next`): the memory would be idle during a step's norms and quantizations. They load them, a byte of
 * each line, as a core forgets some prefetches, and its own prefetcher follows loads alone. So the weights have to be
 * there as long as threads are.
 */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pyc_constants.h"
#include "pyc_prefetch_distances.h"
#include "pyc_guard.h"

#define PYC_MAX_THREADS 64 /* no more than tasks */
#define PYC_STACK_BYTES (2 << 20) /* at least: kernels keep tiles there, and `ulimit -s` may give less */
#define PYC_LINE 128       /* bytes that threads do not share: a cache line and the one that is fetched with it */

/* How often a thread looks for work, first at once and then giving way: together a few milliseconds. */
#define PYC_LOOKS 2000
#define PYC_YIELDS 20000

#define PYC_SLICE 1024 /* bytes read between two looks */
#define PYC_BUSY 0     /* no matmul's number */

struct group {
    void *sync;
    int32_t tasks;
};
typedef int (*task_function)(int task, struct group *group, void *data);

/* What a thread has in common with others. */
struct member {
    /* What the caller says of a loop, the run last. It writes when all tasks of the loop before have been done: who has
     * taken some reads what is said of theirs. */
    __attribute__((aligned(PYC_LINE))) _Atomic uint64_t run;
    task_function task;
    void *data;
    const uint8_t *_Atomic weights; /* of the next matmul */
    _Atomic size_t weight_bytes;
    _Atomic uint32_t matmul; /* its number, or PYC_BUSY while the two above change */
    /* What the thread says: how many tasks it has done since it began. */
    __attribute__((aligned(PYC_LINE))) _Atomic uint64_t done;
};

static struct {
    int threads;
    pid_t process;
    size_t most_prefetched; /* bytes that a thread reads before a matmul begins */
    pthread_t workers[PYC_MAX_THREADS];
    uint64_t tasks; /* of all loops so far */
    const uint8_t *weights;
    size_t weight_bytes;
    uint32_t matmul;
    __attribute__((aligned(PYC_LINE))) _Atomic uint32_t loop; /* its number; threads sleep on it */
    __attribute__((aligned(PYC_LINE))) _Atomic int failed;
    _Atomic int sleepers;
    _Atomic int stopping;
    struct member members[PYC_MAX_THREADS];
} pool;

static inline void breathe(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static inline uint64_t run_of(uint32_t loop, int first, int stop) {
    return (uint64_t)loop << 32 | (uint64_t)first << 16 | (uint64_t)stop;
}

/* Takes tasks of the loop `loop` out of the run of `from`: the first quarter, or, where it `steals`, the last half.
 * Returns how many. */
static int take(struct member *from, uint32_t loop, int steals, int *first) {
    uint64_t run = atomic_load_explicit(&from->run, memory_order_acquire);
    for (;;) {
        const int begin = (int)(run >> 16 & 0xffff), end = (int)(run & 0xffff), left = end - begin;
        if (run >> 32 != loop || left <= 0) return 0;
        const int count = steals ? (left + 1) / 2 : (left + 3) / 4;
        const uint64_t rest = steals ? run_of(loop, begin, end - count) : run_of(loop, begin + count, end);
        *first = steals ? end - count : begin;
        if (atomic_compare_exchange_weak_explicit(&from->run, &run, rest, memory_order_acq_rel, memory_order_acquire))
            return count;
    }
}

/* Does tasks that thread `self` has taken. */
static void perform(const struct member *self, int first, int count) {
    struct group group = {NULL, PYC_TASKS};
    const task_function task = self->task;
    void *const data = self->data;
    int failed = 0;
    for (int i = first; i < first + count; i++) failed |= task(i, &group, data);
    if (failed) atomic_store_explicit(&pool.failed, 1, memory_order_relaxed);
}

/* Does what thread `self` can get of the loop `loop`. */
static void work(int self, uint32_t loop) {
    struct member *own = &pool.members[self];
    int first, count, done = 0;
    for (;;) {
        for (; (count = take(own, loop, 0, &first)); done += count) perform(own, first, count);
        for (int i = 1; i < pool.threads && !count; i++)
            count = take(&pool.members[(self + i) % pool.threads], loop, 1, &first);
        if (!count) break;
        /* The loop cannot end before these tasks have, so the run is this thread's to set. */
        atomic_store_explicit(&own->run, run_of(loop, first + 1, first + count), memory_order_release);
        perform(own, first, 1);
        done++;
    }
    if (!done) return;
    const uint64_t before = atomic_load_explicit(&own->done, memory_order_relaxed);
    atomic_store_explicit(&own->done, before + (uint64_t)done, memory_order_release);
}

/* What a thread has yet to read of the next matmul's weights, and that matmul's number. */
struct prefetch {
    uint32_t matmul;
    const uint8_t *from, *until;
};

/* Reads the next slice of what thread `self` will need first of the next matmul; returns whether there was one. */
static int prefetch_slice(int self, struct prefetch *left) {
    struct member *own = &pool.members[self];
    const uint32_t matmul = atomic_load_explicit(&own->matmul, memory_order_acquire);
    if (left->matmul != matmul) {
        const size_t share = atomic_load_explicit(&own->weight_bytes, memory_order_relaxed) / (size_t)pool.threads;
        const uint8_t *weights = atomic_load_explicit(&own->weights, memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        if (matmul == PYC_BUSY || atomic_load_explicit(&own->matmul, memory_order_relaxed) != matmul) return 0;
        left->matmul = matmul;
        left->from = weights + share * (size_t)self;
        left->until = left->from + (share < pool.most_prefetched ? share : pool.most_prefetched);
    }
    if (left->from >= left->until) return 0;
    const uint8_t *stop = left->until - left->from < PYC_SLICE ? left->until : left->from + PYC_SLICE;
    for (; left->from < stop; left->from += 64) (void)*(const volatile uint8_t *)left->from;
    return 1;
}

static uint32_t loop_of(const struct member *member) {
    return (uint32_t)(atomic_load_explicit(&member->run, memory_order_acquire) >> 32);
}

static void *worker(void *argument) {
    const int self = (int)(intptr_t)argument;
    const struct member *own = &pool.members[self];
    uint32_t seen = loop_of(own); /* others do that one */
    struct prefetch left = {atomic_load_explicit(&own->matmul, memory_order_relaxed), NULL, NULL};
    int looks = 0;
    prctl(PR_SET_NAME, "pyc-kernels"); /* in a debugger and in `top -H` */
    while (!atomic_load_explicit(&pool.stopping, memory_order_relaxed)) {
        const uint32_t loop = loop_of(own);
        if (loop != seen) {
            work(self, seen = loop);
            looks = 0;
            continue;
        }
        if (prefetch_slice(self, &left)) continue;
        if (looks < PYC_LOOKS) {
            breathe();
        } else if (looks < PYC_LOOKS + PYC_YIELDS) {
            sched_yield();
        } else {
            atomic_fetch_add(&pool.sleepers, 1);
            syscall(SYS_futex, &pool.loop, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
            atomic_fetch_sub(&pool.sleepers, 1);
            looks = 0;
        }
        looks++;
    }
    return NULL;
}

static void wake_all(void) { syscall(SYS_futex, &pool.loop, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0); }

/* How many tasks have been done. */
static uint64_t all_done(void) {
    uint64_t done = 0;
    for (int i = 0; i < pool.threads; i++) done += atomic_load_explicit(&pool.members[i].done, memory_order_acquire);
    return done;
}

/* Tells a thread of the next matmul: it reads either what it was told before, or all of this. */
static void tell_next_weights(struct member *member) {
    atomic_store_explicit(&member->matmul, PYC_BUSY, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&member->weights, pool.weights, memory_order_relaxed);
    atomic_store_explicit(&member->weight_bytes, pool.weight_bytes, memory_order_relaxed);
    atomic_store_explicit(&member->matmul, pool.matmul, memory_order_release);
}

/* In place of TVMBackendParallelLaunch; compiled code leaves the number of tasks to us. */
static int launch(task_function task, void *data, int tasks) {
    (void)tasks;
    if (pool.threads == 1 || atomic_load_explicit(&pool.stopping, memory_order_relaxed)) {
        struct group alone = {NULL, 1};
        return task(0, &alone, data);
    }
    const uint32_t loop = atomic_load_explicit(&pool.loop, memory_order_relaxed) + 1;
    for (int i = pool.threads - 1; i >= 0; i--) {
        struct member *member = &pool.members[i];
        const int first = PYC_TASKS * i / pool.threads, stop = PYC_TASKS * (i + 1) / pool.threads;
        member->task = task;
        member->data = data;
        if (atomic_load_explicit(&member->matmul, memory_order_relaxed) != pool.matmul) tell_next_weights(member);
        atomic_store_explicit(&member->run, run_of(loop, first, stop), memory_order_release);
    }
    atomic_store(&pool.loop, loop);
    if (atomic_load(&pool.sleepers)) wake_all();
    work(0, loop);
    pool.tasks += PYC_TASKS;
    for (int looks = 0; all_done() != pool.tasks; looks++) {
        if (looks < PYC_LOOKS)
            breathe();
        else
            sched_yield(); /* who does the last task may be waiting for this CPU */
    }
    if (!atomic_load_explicit(&pool.failed, memory_order_relaxed)) return 0;
    atomic_store_explicit(&pool.failed, 0, memory_order_relaxed);
    return -1;
}

/* How many threads share a loop. */
int32_t pyc_threads(void) { return pool.threads; }

/* Says that `bytes` from `weights` on are those of the next matmul, of which thread i begins with the i-th share. The
 * next loop tells the threads, which may read them until they are stopped. */
int32_t pyc_prefetch_next(const uint8_t *weights, int64_t bytes) {
    pool.weights = weights;
    pool.weight_bytes = (size_t)bytes;
    if (++pool.matmul == PYC_BUSY) pool.matmul++;
    return 0;
}

/* Sets the prefetch distances of weights, from the next loop on. */
void pyc_set_distances(const struct pyc_prefetch_distances *distances) { pyc_prefetch_distances = *distances; }

/* Ends the threads; a forked process has none of them. Also when the library is unloaded, and when the process exits: a
 * caller that is in a loop then takes what they leave, and does later loops alone. */
__attribute__((destructor)) void pyc_stop(void) {
    if (pool.process != getpid() || atomic_exchange(&pool.stopping, 1)) return;
    atomic_fetch_add(&pool.loop, 1);
    wake_all();
    for (int i = 1; i < pool.threads; i++) pthread_join(pool.workers[i], NULL);
}

/* Starts as many of `threads` threads as the system grants, the caller's among them; returns how many. The process's
 * signals are not for them, but that of a page which cannot be had is theirs. */
static int start(int64_t threads) {
    pyc_stop();
    atomic_store(&pool.stopping, 0);
    const long cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
    const int most = threads < 1 ? 1 : threads > PYC_MAX_THREADS ? PYC_MAX_THREADS : (int)threads;
    pool.most_prefetched = (size_t)(cache > 0 ? cache : 1 << 18) / 4;
    pool.process = getpid();
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_attr_t attributes;
    size_t stack_bytes;
    pthread_attr_init(&attributes);
    if (!pthread_attr_getstacksize(&attributes, &stack_bytes) && stack_bytes < PYC_STACK_BYTES)
        pthread_attr_setstacksize(&attributes, PYC_STACK_BYTES);
    int count = 1;
    pool.tasks = 0;
    atomic_store(&pool.members[0].done, 0);
    for (; count < most; count++) {
        struct member *member = &pool.members[count];
        atomic_store(&member->matmul, pool.matmul);
        atomic_store(&member->run, run_of(atomic_load(&pool.loop), 0, 0));
        atomic_store(&member->done, 0);
        if (pthread_create(&pool.workers[count], &attributes, worker, (void *)(intptr_t)count)) break;
    }
    pthread_attr_destroy(&attributes);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return pool.threads = count;
}

/* Absent where no program has a parallel loop. */
extern int (*__TVMBackendParallelLaunch)(task_function task, void *data, int tasks) __attribute__((weak));

/* The same, and lets them run the library's loops. */
int64_t pyc_start(int64_t threads) {
    const int count = start(threads);
    if (&__TVMBackendParallelLaunch) __TVMBackendParallelLaunch = launch;
    return count;
}
