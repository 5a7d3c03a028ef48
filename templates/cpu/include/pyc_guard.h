/* Mappings of files that other processes may cut.
 *
 * A page of a mapping that its file does not have any more, or that cannot be read, is SIGBUS for the thread that
 * touches it, and the process's end. So from `pyc_guard` on the library handles that signal: it puts zeros in place of
 * the rest of the mapping, says so to who guards it, and the thread goes on. What comes out is of no use, and the
 * runtime does not hand it out (`pyc_run`, templates/cpu/calls.c.j2).
 *
 * Signals for other addresses, and those that processes send, go to the handler that was there before. It is back when
 * nothing is guarded any more; if another has been put on top of ours by then, ours stays beneath it. One library of a
 * process guards for all others and is never unloaded (runtime/executors/cpu/guard.py).
 *
 * A handler on top of ours may have raised the signal anew for us (Python's faulthandler does). It has no address then:
 * a file that has become shorter than its mapping is what it was about.
 */
#ifndef PYC_GUARD_H
#define PYC_GUARD_H

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PYC_MOST_GUARDED 4096

static struct guarded {
    _Atomic uintptr_t start, end; /* whole pages; both 0: free */
    int32_t descriptor;           /* of the file, which begins at `start` */
    _Atomic int32_t lost;
} guarded[PYC_MOST_GUARDED];

static int guarded_count, guard_is_installed;
static uintptr_t guard_page;
static struct sigaction guard_former;

/* Puts zeros from the page of `address` to the end of what is guarded. */
static int give_up(struct guarded *found, uintptr_t address, uintptr_t end) {
    const uintptr_t first = address & ~(guard_page - 1);
    /* First: who reads zeros that another thread put there has to find it said. */
    atomic_store(&found->lost, 1);
    return mmap((void *)first, end - first, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
}

/* Deals with a page that cannot be had; returns whether it is guarded. */
static int lose_page(uintptr_t address) {
    int found = 0;
    for (int i = 0; i < PYC_MOST_GUARDED; i++) {
        const uintptr_t start = atomic_load(&guarded[i].start), end = atomic_load(&guarded[i].end);
        if (start <= address && address < end) found |= give_up(&guarded[i], address, end);
    }
    return found;
}

/* Deals with all files that are shorter than their mappings; returns whether there were any that nobody had met. */
static int lose_cut_files(void) {
    int found = 0;
    for (int i = 0; i < PYC_MOST_GUARDED; i++) {
        const uintptr_t start = atomic_load(&guarded[i].start), end = atomic_load(&guarded[i].end);
        struct stat status;
        if (start == end || atomic_load(&guarded[i].lost) || fstat(guarded[i].descriptor, &status)) continue;
        const uintptr_t stop = start + (((uintptr_t)status.st_size + guard_page - 1) & ~(guard_page - 1));
        if (stop < end) found |= give_up(&guarded[i], stop, end);
    }
    return found;
}

static void pass_on(int number, siginfo_t *info, void *context) {
    if (guard_former.sa_flags & SA_SIGINFO) {
        guard_former.sa_sigaction(number, info, context);
    } else if (guard_former.sa_handler != SIG_DFL && guard_former.sa_handler != SIG_IGN) {
        guard_former.sa_handler(number);
    } else if (guard_former.sa_handler == SIG_DFL || info->si_code > 0) { /* a fault cannot be ignored */
        const struct sigaction usual = {.sa_handler = SIG_DFL};
        sigaction(SIGBUS, &usual, NULL);
        if (info->si_code <= 0) raise(number); /* when the handler returns, as the fault does by itself */
    }
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    const int before = errno;
    int found = 0;
    if (info->si_code > 0)
        found = lose_page((uintptr_t)info->si_addr);
    else if (info->si_pid == getpid())
        found = lose_cut_files();
    errno = before;
    if (!found) pass_on(number, info, context);
}

static int is_ours(const struct sigaction *action) {
    return action->sa_flags & SA_SIGINFO && action->sa_sigaction == on_bus_error;
}

/* Guards the mapping of the first `bytes` bytes of the file `descriptor`, which is at `start`, until `pyc_unguard`.
 * What is returned becomes other than 0 when a part of it has been lost; NULL: it cannot be guarded. Not on two threads
 * at once. */
const _Atomic int32_t *pyc_guard(const void *start, int64_t bytes, int32_t descriptor) {
    guard_page = (uintptr_t)sysconf(_SC_PAGESIZE);
    if (!guard_is_installed) {
        struct sigaction own = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
        sigemptyset(&own.sa_mask);
        if (sigaction(SIGBUS, &own, &guard_former)) return NULL;
        guard_is_installed = 1;
    }
    for (int i = 0; i < PYC_MOST_GUARDED; i++) {
        struct guarded *place = &guarded[i];
        if (atomic_load(&place->end)) continue;
        place->descriptor = descriptor;
        atomic_store(&place->lost, 0);
        atomic_store(&place->start, (uintptr_t)start);
        atomic_store(&place->end, ((uintptr_t)start + (uintptr_t)bytes + guard_page - 1) & ~(guard_page - 1));
        guarded_count++;
        return &place->lost;
    }
    return NULL;
}

/* Guards a mapping no more, which has to be there still. */
void pyc_unguard(const _Atomic int32_t *lost) {
    for (int i = 0; i < PYC_MOST_GUARDED; i++) {
        struct guarded *place = &guarded[i];
        if (lost != &place->lost || !atomic_load(&place->end)) continue;
        atomic_store(&place->end, 0);
        atomic_store(&place->start, 0);
        guarded_count--;
    }
    struct sigaction now;
    if (guarded_count || !guard_is_installed || sigaction(SIGBUS, NULL, &now) || !is_ours(&now)) return;
    sigaction(SIGBUS, &guard_former, NULL);
    guard_is_installed = 0;
}

#endif
