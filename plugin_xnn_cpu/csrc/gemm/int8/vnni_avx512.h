/* What the files of the 4-way interleaved (VNNI) layout for AVX-512 with VNNI share.
 *
 * vpdpbusd multiplies 64 bytes from 0 to 255 with 64 of int8 and adds them by fours to int32, all
 * of it exact. */
#pragma once

#include "gemm/int8/panel.h"
#include "simd/f32.h"

NP_INLINE __m512i four_of(const uint8_t *x) {
  int32_t four;
  memcpy(&four, x, sizeof four);
  return _mm512_set1_epi32(four);
}

/* Scaled accumulators, int8 but for their zero point and lower bound; larger ones are cut before
 * they are converted, which yields the least integer for what is too large. */
NP_INLINE __m512i scaled(__m512i acc, __m512 scales, __m512 most) {
  return _mm512_cvtps_epi32(_mm512_min_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(acc), scales), most));
}

NP_INLINE __mmask64 mask_of(size_t columns) {
  return columns >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << columns) - 1;
}

/* Of np_int8_micro_kernels. */
np_convert_pixels np_int8_vnni_offset_avx512;
float np_int8_vnni_quantize_avx512(const float *row, size_t count, void *wide, int32_t *zero);
void np_int8_vnni_gemv_avx512(const np_int8_panel *panel);
void np_int8_vnni_interleave_avx512(const int8_t *const *rows, size_t stride, size_t count,
                                    size_t columns, int32_t zero, uint8_t out_xor, void *to);
void np_int8_vnni_depthwise_avx512(const np_int8_depthwise_tile *block);
