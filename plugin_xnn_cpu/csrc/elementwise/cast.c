/* Conversions between element types; see np_cast_params. */
#include <math.h>

#include "elementwise/typed.h"
#include "runtime/kernel.h"

/* out[i] = in[i], of another type: integers wrap, floats lose what is behind the point. What is out
 * of the range of int32 or int64 becomes the least number, as x86 has it. */
struct np_cast_params {
  size_t count;
  int32_t from; /* NP_TYPE_* */
  int32_t to;
};

#define TILE 8192

/* The results of x86's instructions, and of numpy and onnxruntime with them. */
NP_INLINE int32_t to_i32(double x) {
  return x > -2147483649.0 && x < 2147483648.0 ? (int32_t)x : INT32_MIN;
}

NP_INLINE int64_t to_i64(double x) {
  return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN;
}

NP_INLINE uint64_t to_u64(double x) {
  if (x >= 0x1p63) return x < 0x1p64 ? (uint64_t)x : UINT64_C(1) << 63;
  return (uint64_t)to_i64(x);
}

#define NP_LOOP(source, target, expression)                    \
  {                                                            \
    const source *in = (const source *)job->inputs[0] + start; \
    target *out = (target *)job->out + start;                  \
    for (size_t i = 0; i < count; i++) {                       \
      const source x = in[i];                                  \
      out[i] = (target)(expression);                           \
    }                                                          \
    return;                                                    \
  }

#define NP_CAST_FROM(name, source, small, i32, i64, u64)        \
  NP_TILE(from_##name) {                                        \
    switch (((const struct np_cast_params *)job->params)->to) { \
      case NP_TYPE_BOOL: NP_LOOP(source, uint8_t, x != 0)       \
      case NP_TYPE_UINT8: NP_LOOP(source, uint8_t, small(x))    \
      case NP_TYPE_INT8: NP_LOOP(source, int8_t, small(x))      \
      case NP_TYPE_UINT16: NP_LOOP(source, uint16_t, small(x))  \
      case NP_TYPE_INT16: NP_LOOP(source, int16_t, small(x))    \
      case NP_TYPE_UINT32: NP_LOOP(source, uint32_t, i64(x))    \
      case NP_TYPE_INT32: NP_LOOP(source, int32_t, i32(x))      \
      case NP_TYPE_UINT64: NP_LOOP(source, uint64_t, u64(x))    \
      case NP_TYPE_INT64: NP_LOOP(source, int64_t, i64(x))      \
      case NP_TYPE_FLOAT32: NP_LOOP(source, float, x)           \
      default: NP_LOOP(source, double, x)                       \
    }                                                           \
  }

#define NP_CAST_FROM_INTEGER(name, type) NP_CAST_FROM(name, type, , , , )

NP_EACH_INTEGER(NP_CAST_FROM_INTEGER)
NP_CAST_FROM(f32, float, to_i32, to_i32, to_i64, to_u64)
NP_CAST_FROM(f64, double, to_i32, to_i32, to_i64, to_u64)

int np_cast(np_job *job) {
  static np_tile *const casts[] = NP_BY_TYPE(from_);
  const struct np_cast_params *p = job->params;
  return np_for_tiles(job, casts[p->from], p->count, TILE, p->count * 4, 0);
}
