/* Epilogues of GEMMs and convolutions, for one instruction set; see epilogue/epilogue.h.
 *
 * The includer defines LANES, the floats of a register; TARGET, an attribute of functions for
 * the instruction set; EPILOGUE, the name of the function that is defined; and, where there are
 * instructions for them: RECIPROCAL(x) of numbers from 1 to 8, FUSED(x, y, z), which is x · y + z
 * rounded once, and LEAST(x, y) of integers. */
#include <string.h>

#include "epilogue/epilogue.h"
#include "runtime/kernel.h"
#include "simd/vector.h"

#ifndef RECIPROCAL
#define RECIPROCAL(x) (1.0f / (x))
#endif

#ifndef LEAST
#define LEAST(x, y) (ivec)choose((x) < (y), (vec)(x), (vec)(y))
#endif

#define EPILOGUE_INLINE TARGET NP_INLINE

#define SHIFT 12582912.0f /* 1.5 · 2^23: what is added to it is rounded to an integer */

/* |x|, or `most`, which is positive, where that is less or x is NaN. The bits of positive numbers
 * have their order. */
EPILOGUE_INLINE vec magnitude(vec x, float most) {
  return (vec)LEAST((ivec)x & 0x7fffffff, (ivec)(most - (vec){0}));
}

/* The integer n that is next to times · x / ln 2, in the low bits of n + 1.5 · 2^23. */
EPILOGUE_INLINE vec shifted_of(vec x, const float times) {
  return x * (times * 1.44269504f) + SHIFT;
}

/* n · ln 2 / times, in two parts, the first of which is exact. */
EPILOGUE_INLINE vec first_of(vec n, const float times) { return n * (0.693359375f / times); }
EPILOGUE_INLINE vec second_of(vec n, const float times) { return n * (-2.12194440e-4f / times); }

/* 2^n · exp(times · r) for |times · r| up to ln 2 / 2, or little more, and n from -125 to 125;
 * `times` is a power of two or its negative, so that coefficients stay what they are. See
 * elementwise/function.c for the polynomial. */
EPILOGUE_INLINE vec exponential(vec shifted, vec r, const float times) {
  const float square = times * times;
  vec p = r * (0.00829030573f * times * square * square) + 0.0418979749f * square * square;
  p = p * r + 0.166676372f * times * square;
  p = p * r + 0.499991506f * square;
  p = p * r + 0.999999702f * times;
  p = p * r + 1.0f;
  return (vec)((ivec)p + ((ivec)shifted << 23));
}

/* 1 / (1 + exp(-x)); 0 below -86.6, and of NaN some number. */
EPILOGUE_INLINE vec logistic(vec x) {
  const vec a = magnitude(x, 86.6f);
  const vec shifted = shifted_of(a, -1.0f), n = shifted - SHIFT;
  const vec r = (a - first_of(n, -1.0f)) - second_of(n, -1.0f);
  const vec e = exponential(shifted, r, -1.0f);
  const vec above = choose(x < -86.6f, (vec){0}, e);
  return choose(x < 0.0f, above, 1.0f - (vec){0}) * RECIPROCAL(1.0f + e);
}

/* x², and what it lacks of the exact square. */
EPILOGUE_INLINE vec square_of(vec x, vec *rest) {
#ifdef FUSED
  const vec square = x * x;
  *rest = FUSED(x, x, -square);
#else
  const vec head = (vec)((ivec)x & ~0xfff);
  const vec square = head * head;
  *rest = (x - head) * (x + head);
#endif
  return square;
}

/* x · Φ(x) = max(x, 0) - |x| · Φ(-|x|), where nothing cancels.
 *
 * Φ(-a) is exp(-a²/2) times a function that falls slowly: a polynomial in t = 1 / (1 + 0.3 a), of
 * the least relative error for a up to 13.2, which is 5.9e-08. The rounding error of a² would be
 * the exponential's, so that it is added to the remainder. Below -13.1 it is about -2e-38. */
EPILOGUE_INLINE vec gelu(vec x) {
  const vec a = magnitude(x, 13.1f);
  vec rest;
  const vec square = square_of(a, &rest);
  const vec shifted = shifted_of(square, -0.5f), n = shifted - SHIFT;
  const vec r = (square - first_of(n, -0.5f)) + (rest - second_of(n, -0.5f));
  const vec e = exponential(shifted, r, -0.5f);
  const vec t = RECIPROCAL(a * 0.3f + 1.0f);
  vec p = t * 0.0382989138f - 0.168779699f;
  p = p * t + 0.227860473f;
  p = p * t - 0.0755901712f;
  p = p * t + 0.141901215f;
  p = p * t + 0.0949544108f;
  p = p * t + 0.121850826f;
  p = p * t + 0.119497468f;
  p = p * t + 6.59259143e-06f;
  return choose(x < 0.0f, (vec){0}, x) - (a * p) * e;
}

/* x / (1 + exp(-2 u)) = x · (1 + tanh(u)) / 2, with u = sqrt(2/π) · (x + 0.044715 x³). */
EPILOGUE_INLINE vec tanh_gelu(vec x) {
  const vec square = x * x;
  return x * logistic(x * (square * 0.0713548163f + 1.59576912f));
}

EPILOGUE_INLINE vec hard_swish(vec x) {
  vec gate = x * (1.0f / 6.0f) + 0.5f;
  gate = choose(gate < 0.0f, (vec){0}, gate); /* NaN stays */
  return x * choose(gate > 1.0f, 1.0f - (vec){0}, gate);
}

EPILOGUE_INLINE vec applied(const struct np_epilogue *e, const int function, vec x) {
  switch (function) {
    case NP_EPILOGUE_GELU: return gelu(x);
    case NP_EPILOGUE_TANH_GELU: return tanh_gelu(x);
    case NP_EPILOGUE_SILU: return x * logistic(x);
    case NP_EPILOGUE_HARD_SWISH: return hard_swish(x);
    default:
      return clamp(x, e->low, e->high);
  }
}

EPILOGUE_INLINE vec ended(const struct np_epilogue *e, const int function, vec x, vec residual) {
  if (e->residual == NP_RESIDUAL_BEFORE) x += residual;
  x = applied(e, function, x);
  if (e->residual == NP_RESIDUAL_AFTER) x += residual;
  return x;
}

EPILOGUE_INLINE void end_rows(const struct np_epilogue *e, const int function, float *out,
                        size_t out_stride, const float *residual, size_t residual_stride,
                        size_t rows, size_t columns) {
  for (size_t row = 0; row < rows; row++, out += out_stride) {
    const float *added = residual == NULL ? NULL : residual + row * residual_stride;
    size_t n = 0;
    for (; n + LANES <= columns; n += LANES) {
      const vec second = added == NULL ? (vec){0} : *(const vec *)(added + n);
      *(vec *)(out + n) = ended(e, function, *(const vec *)(out + n), second);
    }
    if (n < columns) {
      const size_t size = (columns - n) * sizeof *out;
      vec x = {0}, second = {0};
      memcpy(&x, out + n, size);
      if (added != NULL) memcpy(&second, added + n, size);
      x = ended(e, function, x, second);
      memcpy(out + n, &x, size);
    }
  }
}

TARGET void EPILOGUE(const struct np_epilogue *e, float *out, size_t out_stride,
                     const float *residual, size_t residual_stride, size_t rows, size_t columns) {
#define NP_CASE(function)                                                                    \
  case function:                                                                             \
    end_rows(e, function, out, out_stride, residual, residual_stride, rows, columns);        \
    break;
  switch (e->function) {
    NP_CASE(NP_EPILOGUE_GELU)
    NP_CASE(NP_EPILOGUE_TANH_GELU)
    NP_CASE(NP_EPILOGUE_SILU)
    NP_CASE(NP_EPILOGUE_HARD_SWISH)
    default:
      end_rows(e, NP_EPILOGUE_CLAMP, out, out_stride, residual, residual_stride, rows, columns);
  }
#undef NP_CASE
}
