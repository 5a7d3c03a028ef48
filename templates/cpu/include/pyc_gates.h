/* Activation functions of gates, vectors of f32: x times the logistic function of x (silu), or x / 2 (1 + tanh(sqrt(2 /
 * pi) (x + 0.044715 x^3))) (gelu_tanh). Operation for operation those of backends/cpu/tir/math.py, which does the same
 * for few rows: a result does not depend on how many there are.
 */
#ifndef PYC_GATES_H
#define PYC_GATES_H

#include "pyc_vectors.h"

#define PYC_GATE_SILU 1
#define PYC_GATE_GELU_TANH 2

/* 1 + e^x: x = n ln 2 + r, ln 2 in two parts, e^r by the Taylor polynomial of degree 7. Of NaN it is some number. */
PYC_INLINE pyc_f32v pyc_exp_plus_one(pyc_f32v x) {
    x = pyc_larger((pyc_f32v)-87.0f, -pyc_larger((pyc_f32v)-88.0f, -x));
    const pyc_f32v n = __builtin_elementwise_floor(pyc_fma(x, (pyc_f32v)1.4426950408889634f, (pyc_f32v)0.5f));
    const pyc_f32v r = pyc_fma(n, (pyc_f32v)2.12194440e-4f, pyc_fma(-n, (pyc_f32v)0.693359375f, x));
    pyc_f32v p = 1.0f / 5040;
    p = pyc_fma(p, r, (pyc_f32v)(1.0f / 720));
    p = pyc_fma(p, r, (pyc_f32v)(1.0f / 120));
    p = pyc_fma(p, r, (pyc_f32v)(1.0f / 24));
    p = pyc_fma(p, r, (pyc_f32v)(1.0f / 6));
    p = pyc_fma(p, r, (pyc_f32v)0.5f);
    p = pyc_fma(p, r, (pyc_f32v)1.0f);
    p = pyc_fma(p, r, (pyc_f32v)1.0f);
    const pyc_i32v power = (__builtin_convertvector(n, pyc_i32v) + 127) << 23;
    return pyc_fma(p, (pyc_f32v)power, (pyc_f32v)1.0f);
}

PYC_INLINE pyc_f32v pyc_gate(const int gate, pyc_f32v x) {
    if (gate == PYC_GATE_SILU) return x * (1.0f / pyc_exp_plus_one(-x));
    const pyc_f32v inner = 0.7978845608028654f * pyc_fma(0.044715f * x * x, x, x);
    return 0.5f * x * (1.0f + (1.0f - 2.0f / pyc_exp_plus_one(2.0f * inner)));
}

#endif
