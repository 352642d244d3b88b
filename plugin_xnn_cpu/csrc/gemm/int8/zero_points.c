/* Accumulators of what int8 kernels multiply, for weights with a zero point; see
 * gemm/int8/panel.h. */
#include "gemm/int8/panel.h"

NP_MULTIVERSIONED(int32_t, sum_bytes, (const uint8_t *x, size_t count), (x, count)) {
  uint32_t sum = 0;
  for (size_t i = 0; i < count; i++) sum += x[i];
  return (int32_t)sum;
}

NP_MULTIVERSIONED(int32_t, sum_pairs, (const int16_t *x, size_t count), (x, count)) {
  uint32_t sum = 0;
  for (size_t i = 0; i < count; i++) sum += (uint32_t)x[i];
  return (int32_t)sum;
}

void np_int8_row_sums(const np_int8_micro_kernels *code, const void *image, const int32_t *pixels,
                      size_t count, const int32_t *starts, size_t runs, size_t run_length,
                      const int32_t *zeros, int32_t *acc) {
  const uint32_t terms = (uint32_t)(runs * run_length);
  for (size_t i = 0; i < count; i++) {
    uint32_t sum = 0;
    for (size_t q = 0; q < runs; q++) {
      const int64_t at = (int64_t)pixels[i] + starts[q];
      sum += (uint32_t)(code->group == 4 ? sum_bytes((const uint8_t *)image + at, run_length)
                                         : sum_pairs((const int16_t *)image + at, run_length));
    }
    if (code->group == 4) sum -= terms * (uint32_t)zeros[i];
    acc[i] = (int32_t)sum;
  }
}
