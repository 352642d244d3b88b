/* The micro-kernels of matmul for any processor: vectors of the compiler, of four lanes. */
#include "simd/f32_plain.h"

#define ACCUMULATORS 12
#define MOST_VECTORS 2
#define MULTIPLY np_matmul_multiply_plain
#define DOTS np_matmul_dots_plain
#define PACK np_matmul_pack_plain

NP_INLINE float sum_of(vec x) { return (x[0] + x[2]) + (x[1] + x[3]); }

NP_INLINE void transpose(const float *from, size_t step, float *to, size_t width) {
  for (size_t n = 0; n < 8; n++) {
    for (size_t k = 0; k < 8; k++) to[k * width + n] = from[n * step + k];
  }
}

#include "gemm/matmul/code.h"
