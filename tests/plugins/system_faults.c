// Makes one system call of a process fail: preloaded, and told by `faults_arm` which one. Counted are calls that touch a file
// below a folder; the one that is due is refused with an error, does half of its work, or ends the process.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { FAULT_NONE = 0, FAULT_ERROR = 1, FAULT_SHORT = 2, FAULT_KILL = 3 };
enum { WRITING = 1, CHANGING = 2, REMOVING = 4, READING = 8, OPENING_TO_READ = 16 };

static _Atomic long counted;
static long due;
static int fault, kinds, error_number;
static char below[4096];
static size_t below_size;
static _Atomic int is_armed;
static char struck[64];

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

// `at`: the first call that fails, from 1; 0 counts only. With `error` every later one fails as well, where `lasts`.
static int lasts;
void faults_arm(const char *folder, int which_kinds, int which_fault, int error, long at, int whether_lasts) {
    snprintf(below, sizeof below, "%s/", folder);
    below_size = strlen(below);
    kinds = which_kinds, fault = which_fault, error_number = error, due = at, lasts = whether_lasts;
    struck[0] = 0;
    counted = 0;
    is_armed = 1;
}

long faults_counted(void) { return counted; }
const char *faults_struck(void) { return struck; }
void faults_disarm(void) { is_armed = 0; }

static int is_below(const char *path) {
    char here[4096];
    if (path[0] == '/') return strncmp(path, below, below_size) == 0;
    ssize_t size = REAL(readlink)("/proc/self/cwd", here, sizeof here - 1);
    if (size < 0) return 0;
    here[size] = '/', here[size + 1 < (ssize_t)sizeof here ? size + 1 : size] = 0;
    return strncmp(here, below, below_size) == 0;
}

static int is_file_below(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = REAL(readlink)(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return strncmp(path, below, below_size) == 0 || (strncmp(path, below, below_size - 1) == 0 && path[below_size - 1] == 0);
}

// What to do with a call: FAULT_NONE, or what is due.
static int turn(int kind, const char *name) {
    if (!(kinds & kind)) return FAULT_NONE;
    long number = atomic_fetch_add(&counted, 1) + 1;
    if (!due || (number != due && !(lasts && number > due))) return FAULT_NONE;
    if (!struck[0]) snprintf(struck, sizeof struck, "%s", name);
    if (fault == FAULT_KILL) kill(getpid(), SIGKILL), pause();
    errno = error_number;
    return fault;
}

#define ON_FILE(kind, fd, name) (is_armed && is_file_below(fd) ? turn(kind, name) : FAULT_NONE)
#define ON_PATH(kind, path, name) (is_armed && is_below(path) ? turn(kind, name) : FAULT_NONE)
#define SHORTER(size) ((size) > 1 ? (size) / 2 : (size))

#define SIZED(result, name, kind, buffer, ...)                                           \
    int what = ON_FILE(kind, fd, #name);                                                 \
    if (what == FAULT_ERROR) return -1;                                                  \
    if (what == FAULT_SHORT) size = SHORTER(size);

ssize_t write(int fd, const void *data, size_t size) { SIZED(ssize_t, write, WRITING, data) return REAL(write)(fd, data, size); }
ssize_t read(int fd, void *data, size_t size) { SIZED(ssize_t, read, READING, data) return REAL(read)(fd, data, size); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) { SIZED(ssize_t, pwrite64, WRITING, data) return REAL(pwrite64)(fd, data, size, at); }
ssize_t pread64(int fd, void *data, size_t size, off64_t at) { SIZED(ssize_t, pread64, READING, data) return REAL(pread64)(fd, data, size, at); }

#define VECTORED(name, kind, type, ...)                                                  \
    int what = ON_FILE(kind, fd, #name);                                                 \
    if (what == FAULT_ERROR) return -1;                                                  \
    if (what == FAULT_SHORT && count) {                                                  \
        struct iovec one = {parts[0].iov_base, SHORTER(parts[0].iov_len)};               \
        return REAL(name)(fd, &one, 1 __VA_ARGS__);                                      \
    }                                                                                    \
    return REAL(name)(fd, parts, count __VA_ARGS__);

#define AND(x) , x
ssize_t writev(int fd, const struct iovec *parts, int count) { VECTORED(writev, WRITING, ssize_t) }
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) { VECTORED(pwritev64, WRITING, ssize_t, AND(at)) }
ssize_t preadv64(int fd, const struct iovec *parts, int count, off64_t at) { VECTORED(preadv64, READING, ssize_t, AND(at)) }
ssize_t preadv64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) { VECTORED(preadv64v2, READING, ssize_t, AND(at) AND(flags)) }

ssize_t copy_file_range(int from, off64_t *from_at, int fd, off64_t *at, size_t size, unsigned flags) { SIZED(ssize_t, copy_file_range, WRITING, 0) return REAL(copy_file_range)(from, from_at, fd, at, size, flags); }
ssize_t sendfile64(int fd, int from, off64_t *at, size_t size) { SIZED(ssize_t, sendfile64, WRITING, 0) return ((ssize_t (*)(int, int, off64_t *, size_t))real("sendfile64"))(fd, from, at, size); }

#define WHOLE(check, name)                                                               \
    { int what = check; if (what == FAULT_ERROR || (what == FAULT_SHORT && 0)) return -1; }

int fsync(int fd) { WHOLE(ON_FILE(CHANGING, fd, "fsync"), fsync) return REAL(fsync)(fd); }
int fdatasync(int fd) { WHOLE(ON_FILE(CHANGING, fd, "fdatasync"), fdatasync) return REAL(fdatasync)(fd); }
int ftruncate64(int fd, off64_t size) { WHOLE(ON_FILE(CHANGING, fd, "ftruncate"), x) return REAL(ftruncate64)(fd, size); }
int fchmod(int fd, mode_t mode) { WHOLE(ON_FILE(REMOVING, fd, "fchmod"), x) return REAL(fchmod)(fd, mode); }
int chmod(const char *path, mode_t mode) { WHOLE(ON_PATH(REMOVING, path, "chmod"), x) return REAL(chmod)(path, mode); }
int rename(const char *from, const char *to) { WHOLE(ON_PATH(CHANGING, to, "rename"), x) return REAL(rename)(from, to); }
int link(const char *from, const char *to) { WHOLE(ON_PATH(CHANGING, to, "link"), x) return REAL(link)(from, to); }
int linkat(int f, const char *from, int t, const char *to, int flags) { WHOLE(t == AT_FDCWD ? ON_PATH(CHANGING, to, "linkat") : ON_FILE(CHANGING, t, "linkat"), x) return REAL(linkat)(f, from, t, to, flags); }
int unlink(const char *path) { WHOLE(ON_PATH(REMOVING, path, "unlink"), x) return REAL(unlink)(path); }
int unlinkat(int at, const char *path, int flags) { WHOLE(at == AT_FDCWD ? ON_PATH(REMOVING, path, "unlinkat") : ON_FILE(REMOVING, at, "unlinkat"), x) return REAL(unlinkat)(at, path, flags); }
int rmdir(const char *path) { WHOLE(ON_PATH(REMOVING, path, "rmdir"), x) return REAL(rmdir)(path); }
int mkdir(const char *path, mode_t mode) { WHOLE(ON_PATH(CHANGING, path, "mkdir"), x) return REAL(mkdir)(path, mode); }

static int opened(const char *path, int flags) {
    int kind = flags & (O_WRONLY | O_RDWR | O_CREAT) ? CHANGING : OPENING_TO_READ;
    return ON_PATH(kind, path, kind == CHANGING ? "open to write" : "open to read");
}

#define OPENING(call)                                                                    \
    mode_t mode = 0;                                                                     \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); } \
    if (opened(path, flags) == FAULT_ERROR) return -1;                                   \
    return call;

int open(const char *path, int flags, ...) { OPENING(REAL(open)(path, flags, mode)) }
int open64(const char *path, int flags, ...) { OPENING(REAL(open64)(path, flags, mode)) }
int openat(int at, const char *path, int flags, ...) { OPENING(REAL(openat)(at, path, flags, mode)) }
int openat64(int at, const char *path, int flags, ...) { OPENING(REAL(openat64)(at, path, flags, mode)) }
