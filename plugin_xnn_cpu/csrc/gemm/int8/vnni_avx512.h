/* What the files of the 4-way interleaved (VNNI) layout for AVX-512 with VNNI share.
 *
 * vpdpbusd multiplies 64 bytes from 0 to 255 with 64 of int8 and adds them by fours to int32, all
 * of it exact. */
#ifndef NARROWPASS_GEMM_INT8_VNNI_AVX512_H
#define NARROWPASS_GEMM_INT8_VNNI_AVX512_H

#include <immintrin.h>

#include "gemm/int8/panel.h"

#define TARGET __attribute__((target("arch=x86-64-v4,avx512vnni,prfchw")))
#define INLINE TARGET static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

#define LANES 16

INLINE __m512i four_of(const uint8_t *x) {
  int32_t four;
  memcpy(&four, x, sizeof four);
  return _mm512_set1_epi32(four);
}

/* Sums to integers that are int8 but for their zero point and lower bound; larger ones are cut
 * before they are converted, which makes the least integer of what is too large. */
INLINE __m512i scaled(__m512i acc, __m512 scales, __m512 most) {
  return _mm512_cvtps_epi32(_mm512_min_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(acc), scales), most));
}

INLINE __mmask64 mask_of(size_t columns) {
  return columns >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << columns) - 1;
}

/* Of np_int8_micro_kernels. */
void np_int8_vnni_offset_avx512(const int8_t *in, size_t count, int32_t zero, void *wide);
float np_int8_vnni_quantize_avx512(const float *row, size_t count, void *wide, int32_t *zero);
void np_int8_vnni_gemv_avx512(const np_int8_panel *panel);
void np_int8_vnni_interleave_avx512(const int8_t *const *rows, size_t stride, size_t count,
                                    size_t columns, int32_t zero, uint8_t out_xor, uint8_t *out);
void np_int8_vnni_depthwise_avx512(const np_int8_vnni_depthwise_tile *block);

#endif
