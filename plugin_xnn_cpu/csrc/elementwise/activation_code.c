/* Activations for one instruction set.
 *
 * erf and tanh are odd: x times a quotient of polynomials in x² with positive coefficients, which
 * amplify no rounding error, found by iteratively reweighted least squares for the least relative
 * error: 2.4e-9 and 1.0e-9. tanh is within 5 units in the last place, GELU of both kinds
 * within 2.1e-7 times |x|: tests/operators/test_math_functions.py. The epilogues of matmuls have
 * GELU by an exponential, of a small relative error also where results are tiny; that takes twice as
 * long, which counts where GELU is a step of its own. */
#include "elementwise/activation.h"
#include "simd/f32.h"
#include "simd/polynomial.h"

/* x · p / q of numbers up to `most`; beyond it 1, with the sign of x. NaN stays. */
NP_INLINE vec saturated(vec x, vec bounded, vec p, vec q, float most) {
  const vec y = clamp(bounded * p / q, -1.0f, 1.0f);
  return choose(x >= most, broadcast(1.0f), choose(x <= -most, broadcast(-1.0f), y));
}

/* erf(x / sqrt(2)) */
NP_INLINE vec scaled_erf(vec x) {
  const vec a = clamp(x, -5.6f, 5.6f), s = a * a;
  const vec p = NP_VECTOR_POLYNOMIAL(6, s, 0.797884563f, 0.068119641f, 0.00984006583f,
                                     0.00037213871f, 1.80487573e-05f, 1.47738581e-07f);
  const vec q = NP_VECTOR_POLYNOMIAL(7, s, 1.0f, 0.252042023f, 0.0293395453f, 0.00203166483f,
                                     8.83856334e-05f, 2.24395764e-06f, 3.97699821e-09f);
  return saturated(x, a, p, q, 5.6f);
}

NP_INLINE vec hyperbolic_tangent(vec x) {
  const vec a = clamp(x, -9.1f, 9.1f), s = a * a;
  const vec p = NP_VECTOR_POLYNOMIAL(5, s, 1.0f, 0.137815172f, 0.00400360508f, 3.14823402e-05f,
                                     5.03869396e-08f);
  const vec q = NP_VECTOR_POLYNOMIAL(6, s, 1.0f, 0.471148496f, 0.0277197868f, 0.000419853761f,
                                     1.60920805e-06f, 7.29887541e-10f);
  return saturated(x, a, p, q, 9.1f);
}

NP_INLINE vec gated(vec x, vec gate) {
  const vec half = x * 0.5f;
  return multiply_add(half, gate, half);
}

NP_INLINE vec gelu(vec x) { return gated(x, scaled_erf(x)); }

NP_INLINE vec tanh_gelu(vec x) {
  const vec slope = multiply_add(x * x, broadcast(0.0356774081f), broadcast(0.797884561f));
  return gated(x, hyperbolic_tangent(x * slope));
}

NP_INLINE vec hard_swish(vec x) {
  return x * clamp(multiply_add(x, broadcast(1.0f / 6.0f), broadcast(0.5f)), 0.0f, 1.0f);
}

#define NP_EACH(name, activation)                                                           \
  static void name(const float *in, float *out, size_t count) {                             \
    size_t i = 0;                                                                           \
    for (; i + LANES <= count; i += LANES) store(out + i, activation(load(in + i)));        \
    if (i < count) store_some(out + i, activation(load_some(in + i, count - i)), count - i); \
  }
NP_EACH(each_tanh, hyperbolic_tangent)
NP_EACH(each_gelu, gelu)
NP_EACH(each_tanh_gelu, tanh_gelu)
NP_EACH(each_hard_swish, hard_swish)

const np_activations NP_OF_ISA(np_activations) = {each_tanh, each_gelu, each_tanh_gelu,
                                                  each_hard_swish};
