/* Kernel images: shared libraries of the host, with a table of their kernels. */
#pragma once
#include "block.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

struct KernelEntry { const char *name; void (*call)(void *const *); int parameters, threads; };
struct ModuleTable { const KernelEntry *kernels; int count; char *shared_start, *shared_stop; };
struct Function;
struct Module {
    int file; /* open as long as the library is: its path is the library's name */
    void *library;
    const ModuleTable *table;
    const char *image_start, *image_stop;
    Vector<Function *> functions;
};
struct Function { Module *module; const KernelEntry *entry; int most_shared_bytes; };

/* Bytes of the image that begins at `image`; 0 where it is none. */
static size_t image_bytes(const void *image) {
    const Elf64_Ehdr *const head = (const Elf64_Ehdr *)image;
    if (memcmp(head->e_ident, ELFMAG, SELFMAG) || head->e_ident[EI_CLASS] != ELFCLASS64 || head->e_type != ET_DYN) return 0;
    size_t end = head->e_shoff + (size_t)head->e_shnum * head->e_shentsize;
    const Elf64_Phdr *const segments = (const Elf64_Phdr *)((const char *)image + head->e_phoff);
    for (int i = 0; i < head->e_phnum; i++)
        if (segments[i].p_offset + segments[i].p_filesz > end) end = segments[i].p_offset + segments[i].p_filesz;
    return end;
}

static int find_image(struct dl_phdr_info *info, size_t, void *given) {
    Module *const module = (Module *)given;
    const char *low = nullptr, *high = nullptr;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_LOAD) continue;
        const char *const start = (const char *)info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        if (!low || start < low) low = start;
        if (start + info->dlpi_phdr[i].p_memsz > high) high = start + info->dlpi_phdr[i].p_memsz;
    }
    if ((const char *)module->table < low || (const char *)module->table >= high) return 0;
    module->image_start = low;
    module->image_stop = high;
    return 1;
}

static Module *load_module(const void *image) {
    const size_t bytes = image_bytes(image);
    if (!bytes) return nullptr;
    const int file = (int)syscall(SYS_memfd_create, "emulated-kernels", 1u);
    if (file < 0 || write(file, image, bytes) != (ssize_t)bytes) return nullptr;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    void *const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const ModuleTable *const table = library ? (const ModuleTable *)dlsym(library, "emulated_module") : nullptr;
    if (!table) {
        fprintf(stderr, "the emulated device: %s\n", dlerror());
        return nullptr;
    }
    Module *const module = (Module *)calloc(1, sizeof *module);
    module->file = file;
    module->library = library;
    module->table = table;
    dl_iterate_phdr(find_image, module);
    return module;
}

static Function *find_function(Module *module, const char *name) {
    for (Function *function : module->functions)
        if (!strcmp(function->entry->name, name)) return function;
    for (int i = 0; i < module->table->count; i++) {
        if (strcmp(module->table->kernels[i].name, name)) continue;
        Function *const function = (Function *)calloc(1, sizeof *function);
        *function = {module, module->table->kernels + i, 48 << 10};
        module->functions.push(function);
        return function;
    }
    return nullptr;
}

/* A launch with a copy of its parameters, which are pointers all. */
static Launch launch_of(Function *function, Index grid, unsigned threads, unsigned shared_bytes, void **parameters) {
    const KernelEntry *const entry = function->entry;
    void **const kept = (void **)malloc((size_t)(2 * entry->parameters + 1) * sizeof(void *));
    for (int i = 0; i < entry->parameters; i++) {
        kept[entry->parameters + i] = *(void **)parameters[i];
        kept[i] = kept + entry->parameters + i;
    }
    const Module *const module = function->module;
    const uintptr_t shared = (uintptr_t)module->table->shared_start;
    if ((uintptr_t)module->table->shared_stop - shared > SHARED_BYTES) {
        fprintf(stderr, "the kernels of a module have more static shared memory than there are shadows: load them apart\n");
        abort();
    }
    return {entry->name, entry->call, kept, entry->parameters, grid, threads, shared_bytes, shared,
            (uintptr_t)module->table->shared_stop - shared, module->image_start,
            module->image_stop};
}
