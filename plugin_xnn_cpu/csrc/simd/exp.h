/* exp of vectors of what is at most 0, as softmax needs it; a template includes this. */
#pragma once

#include "simd/f32.h"
#include "simd/polynomial.h"

/* exp of what is at most 0, or NaN; see simd/exp_log.h for the polynomial. Below -87.3 it is 0. */
NP_INLINE vec exp_of_at_most_0(vec x) {
  const float least = -87.3f;
  const vec t = larger(broadcast(least), x); /* NaN stays */
  /* Adding 1.5 · 2^23 rounds to an integer, which is then in the low bits: no conversion, which
   * NaN would not survive. */
  const vec shifted = multiply_add(t, broadcast(1.44269504f), broadcast(12582912.0f));
  const vec n = shifted - 12582912.0f;
  const vec r = multiply_add(n, broadcast(2.12194440e-4f), /* ln 2 in two parts */
                             multiply_add(n, broadcast(-0.693359375f), t));
  const vec p = NP_VECTOR_POLYNOMIAL(6, r, 1.0f, 0.999999702f, 0.499991506f, 0.166676372f,
                                     0.0418979749f, 0.00829030573f);
#ifdef __AVX512F__
  const __mmask16 kept = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(least), _CMP_NLT_UQ);
  return (vec)_mm512_maskz_scalef_ps(kept, (__m512)p, (__m512)n);
#else
  const ivec power = ((ivec)shifted << 23) + (127 << 23);
  return choose(x < least, broadcast(0.0f), p * (vec)power);
#endif
}
