/* Epilogues of GEMMs and convolutions, for one instruction set; see epilogue/epilogue.h. */
#include "epilogue/epilogue.h"
#include "simd/f32.h"
#include "simd/polynomial.h"

/* 1 / x, rounded once, of numbers from 1 to 8. With AVX-512, 14 bits and two steps of Newton's: the
 * second starts within a unit in the last place, so that it rounds as a division does (Markstein,
 * 1990), but for a significand of ones alone, whose reciprocal is next to a tie. */
NP_INLINE vec reciprocal(vec x) {
#if LANES == 16
  const __m512 one = _mm512_set1_ps(1.0f);
  const __m512i ones = _mm512_or_si512((__m512i)x, _mm512_set1_epi32(~0x7fffff));
  const __mmask16 halfway = _mm512_cmpeq_epi32_mask(ones, _mm512_set1_epi32(-1));
  __m512 y = _mm512_rcp14_ps((__m512)x);
  y = _mm512_fmadd_ps(y, _mm512_fnmadd_ps((__m512)x, y, one), y);
  y = _mm512_fmadd_ps(y, _mm512_fnmadd_ps((__m512)x, y, one), y);
  return (vec)_mm512_mask_or_epi32((__m512i)y, halfway, (__m512i)y, _mm512_set1_epi32(1));
#else
  return 1.0f / x;
#endif
}

NP_INLINE ivec min_integers(ivec x, ivec y) {
#if LANES == 16
  return (ivec)_mm512_min_epi32((__m512i)x, (__m512i)y);
#elif LANES == 8
  return (ivec)_mm256_min_epi32((__m256i)x, (__m256i)y);
#else
  return (ivec)choose(x < y, (vec)x, (vec)y);
#endif
}

#define SHIFT 12582912.0f /* 1.5 · 2^23: what is added to it is rounded to an integer */

/* |x|, or `most`, which is positive, where that is less or x is NaN. The bits of positive numbers
 * have their order. */
NP_INLINE vec magnitude(vec x, float most) {
  return (vec)min_integers((ivec)x & 0x7fffffff, (ivec)broadcast(most));
}

/* The integer n that is next to times · x / ln 2, in the low bits of n + 1.5 · 2^23. */
NP_INLINE vec shifted_of(vec x, const float times) {
  return multiply_add(x, broadcast(times * 1.44269504f), broadcast(SHIFT));
}

/* x + rest - n · ln 2 / times, where n · ln 2 has two parts: the first one is exact. */
NP_INLINE vec remainder_of(vec x, vec rest, vec n, const float times) {
  return multiply_add(n, broadcast(-0.693359375f / times), x) +
         multiply_add(n, broadcast(2.12194440e-4f / times), rest);
}

/* 2^n · exp(times · r) for |times · r| up to ln 2 / 2, or little more, and n from -125 to 125;
 * `times` is a power of two or its negative, so that coefficients stay what they are. See
 * simd/exp_log.h for the polynomial. */
NP_INLINE vec exponential(vec shifted, vec r, const float times) {
  const float square = times * times;
  const vec p =
      NP_VECTOR_POLYNOMIAL(6, r, 1.0f, 0.999999702f * times, 0.499991506f * square,
                           0.166676372f * times * square, 0.0418979749f * square * square,
                           0.00829030573f * times * square * square);
  return (vec)((ivec)p + ((ivec)shifted << 23));
}

/* 1 / (1 + exp(-x)); 0 below -86.6, and of NaN some number. */
NP_INLINE vec logistic(vec x) {
  const vec a = magnitude(x, 86.6f);
  const vec shifted = shifted_of(a, -1.0f), n = shifted - SHIFT;
  const vec r = remainder_of(a, zero(), n, -1.0f);
  const vec e = exponential(shifted, r, -1.0f);
  const vec above = choose(x < -86.6f, zero(), e);
  return choose(x < 0.0f, above, broadcast(1.0f)) * reciprocal(1.0f + e);
}

/* x², and what it lacks of the exact square. */
NP_INLINE vec square_of(vec x, vec *rest) {
#ifdef NP_UNFUSED
  const vec head = (vec)((ivec)x & ~0xfff);
  const vec square = head * head;
  *rest = (x - head) * (x + head);
#else
  const vec square = x * x;
  *rest = multiply_add(x, x, -square);
#endif
  return square;
}

/* x · Φ(x) = max(x, 0) - |x| · Φ(-|x|), where nothing cancels.
 *
 * Φ(-a) is exp(-a²/2) times a function that falls slowly: a polynomial in t = 1 / (1 + 0.3 a), of
 * the least relative error for a up to 13.2, which is 5.9e-08. The rounding error of a² would be
 * the exponential's, so that it is added to the remainder. Below -13.1 it is about -2e-38. */
NP_INLINE vec gelu(vec x) {
  const vec a = magnitude(x, 13.1f);
  vec rest;
  const vec square = square_of(a, &rest);
  const vec shifted = shifted_of(square, -0.5f), n = shifted - SHIFT;
  const vec r = remainder_of(square, rest, n, -0.5f);
  const vec e = exponential(shifted, r, -0.5f);
  const vec t = reciprocal(multiply_add(a, broadcast(0.3f), broadcast(1.0f)));
  const vec p =
      NP_VECTOR_POLYNOMIAL(9, t, 6.59259143e-06f, 0.119497468f, 0.121850826f, 0.0949544108f,
                           0.141901215f, -0.0755901712f, 0.227860473f, -0.168779699f,
                           0.0382989138f);
  return multiply_add(-(a * p), e, choose(x < 0.0f, zero(), x));
}

/* x / (1 + exp(-2 u)) = x · (1 + tanh(u)) / 2, with u = sqrt(2/π) · (x + 0.044715 x³). */
NP_INLINE vec tanh_gelu(vec x) {
  const vec square = x * x;
  const vec slope = multiply_add(square, broadcast(0.0713548163f), broadcast(1.59576912f));
  return x * logistic(x * slope);
}

NP_INLINE vec hard_swish(vec x) {
  vec gate = multiply_add(x, broadcast(1.0f / 6.0f), broadcast(0.5f));
  gate = choose(gate < 0.0f, zero(), gate); /* NaN stays */
  return x * choose(gate > 1.0f, broadcast(1.0f), gate);
}

NP_INLINE vec applied(const struct np_epilogue *e, const int function, vec x) {
  switch (function) {
    case NP_EPILOGUE_GELU: return gelu(x);
    case NP_EPILOGUE_TANH_GELU: return tanh_gelu(x);
    case NP_EPILOGUE_SILU: return x * logistic(x);
    case NP_EPILOGUE_HARD_SWISH: return hard_swish(x);
    default:
      return clamp(x, e->low, e->high);
  }
}

NP_INLINE vec ended(const struct np_epilogue *e, const int function, vec x, vec residual) {
  if (e->residual == NP_RESIDUAL_BEFORE) x += residual;
  x = applied(e, function, x);
  if (e->residual == NP_RESIDUAL_AFTER) x += residual;
  return x;
}

NP_INLINE void end_rows(const struct np_epilogue *e, const int function, float *out,
                        size_t out_stride, const float *residual, size_t residual_stride,
                        size_t rows, size_t columns) {
  for (size_t row = 0; row < rows; row++, out += out_stride) {
    const float *added = residual == NULL ? NULL : residual + row * residual_stride;
    size_t n = 0;
    for (; n + LANES <= columns; n += LANES) {
      const vec second = added == NULL ? zero() : *(const vec *)(added + n);
      *(vec *)(out + n) = ended(e, function, *(const vec *)(out + n), second);
    }
    if (n < columns) {
      const vec second = added == NULL ? zero() : load_some(added + n, columns - n);
      store_some(out + n, ended(e, function, load_some(out + n, columns - n), second), columns - n);
    }
  }
}

void NP_OF_ISA(np_epilogue_tile)(const struct np_epilogue *e, float *out, size_t out_stride,
                                 const float *residual, size_t residual_stride, size_t rows,
                                 size_t columns) {
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
