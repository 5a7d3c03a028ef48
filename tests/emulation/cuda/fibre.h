/* Stacks that are changed between: a switch saves what a call preserves, and goes on where the other stack was left. */
#pragma once
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
extern "C" void emulated_switch(void **from, void *to);
__asm__(".text\n.globl emulated_switch\n.hidden emulated_switch\n.type emulated_switch,@function\nemulated_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nretq\n");
static void *begin_fibre(char *stack, size_t bytes, void (*entry)(void)) {
    void **top = (void **)(stack + bytes) - 2;
    *top = (void *)entry; /* where the switch returns to, with the stack as after a call */
    memset(top - 6, 0, 6 * sizeof *top);
    return top - 6;
}
#elif defined(__aarch64__)
extern "C" void emulated_switch(void **from, void *to);
__asm__(".text\n.globl emulated_switch\n.hidden emulated_switch\n.type emulated_switch,%function\nemulated_switch:\n"
        "sub sp, sp, #160\n"
        "stp x19, x20, [sp, #0]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\nstp x25, x26, [sp, #48]\n"
        "stp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\nstp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\n"
        "stp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
        "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
        "ldp x19, x20, [sp, #0]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\nldp x25, x26, [sp, #48]\n"
        "ldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\nldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\n"
        "ldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\n"
        "add sp, sp, #160\nret\n");
static void *begin_fibre(char *stack, size_t bytes, void (*entry)(void)) {
    void **top = (void **)(stack + bytes) - 20;
    memset(top, 0, 160);
    top[11] = (void *)entry; /* x30 */
    return top;
}
#else
#error "fibres are written for x86-64 and aarch64"
#endif
