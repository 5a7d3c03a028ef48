"""Programs of aarch64 without a C library, for qemu: building one for another architecture takes a minute."""

import subprocess
import sys

from pyc.backends.cpu.toolchain.zig import Toolchain
from pyc.runtime.host.cache_folder import cache_directory

# What comes before `void run(void)`, which ends with system_call(93, status, 0, 0). 63 is read and 64 is write.
HEAD = """
#include <stddef.h>
#include <stdint.h>
static long system_call(long number, long a, long b, long c) {
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    return x0;
}
static void transfer(int number, int file, void *bytes, long size) {
    for (long done = 0, part; done < size; done += part) {
        part = system_call(number, file, (long)bytes + done, size - done);
        if (part <= 0) system_call(93, 2, 0, 0);
    }
}
void *memset(void *to, int value, size_t size) {
    for (volatile char *p = to; size; size--) *p++ = value;
    return to;
}
void *memcpy(void *to, const void *from, size_t size) {
    const char *q = from;
    for (volatile char *p = to; size; size--) *p++ = *q++;
    return to;
}
void *memmove(void *to, const void *from, size_t size) {
    char *p = to;
    const char *q = from;
    if (p <= q) return memcpy(to, from, size);
    while (size--) ((volatile char *)p)[size] = q[size];
    return to;
}
__asm__(".globl _start\\n_start: bl run\\n");
"""


def bare_program(main, objects, isa, folder):
    """The program of the C source `main` and ELF objects by name, in `folder`."""
    (folder / "main.c").write_text(HEAD + main)
    for name, data in objects.items():
        (folder / name).write_bytes(data)
    zig = [sys.executable, "-m", "ziglang"]
    zig_cache = Toolchain(cache_directory()).zig_cache
    caches = {"ZIG_GLOBAL_CACHE_DIR": str(zig_cache), "ZIG_LOCAL_CACHE_DIR": str(folder / "zig")}
    flags = ["-target", isa.zig_target, "-O1", "-fno-builtin", "-fno-sanitize=all", "-w"]
    subprocess.run([*zig, "cc", *flags, "-c", "main.c", "-o", "main.o"], cwd=folder, check=True, env=caches)
    subprocess.run([*zig, "ld.lld", "main.o", *objects, "-o", "main"], cwd=folder, check=True, env=caches)
    return folder / "main"
