/* Activation functions of gates, vectors of f32: x times the logistic function of x (silu) or of 2 sqrt(2/pi) (x + 0.044715 x^3)
 * (gelu_tanh: x/2 (1 + tanh u) = x sigmoid(2 u)). */
#ifndef PYC_GATES_H
#define PYC_GATES_H

#include "pyc_softmax.h"

#define PYC_GATE_SILU 1
#define PYC_GATE_GELU_TANH 2

/* 1 / (1 + e^-x), by e^-|x|, which is at most 1. Of NaN it is some number: times x it is NaN again. */
PYC_INLINE pyc_f32v pyc_sigmoid(pyc_f32v x) {
    const pyc_f32v small = pyc_exp2(__builtin_elementwise_abs(x) * -PYC_LOG2_E);
    const pyc_i32v negative = x < 0;
    const pyc_f32v over = (pyc_f32v)(((pyc_i32v)small & negative) | ((pyc_i32v)(pyc_f32v)1.0f & ~negative));
    return over / (1 + small);
}

PYC_INLINE pyc_f32v pyc_gate(const int gate, pyc_f32v x) {
    if (gate == PYC_GATE_SILU) return x * pyc_sigmoid(x);
    return x * pyc_sigmoid(1.5957691216057308f * (x + 0.044715f * x * x * x));
}

#endif
