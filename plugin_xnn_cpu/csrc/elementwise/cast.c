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

#define NP_LOOP(source, target, expression)  \
  {                                          \
    const source *in = (const source *)from; \
    target *out = (target *)to;              \
    for (size_t i = 0; i < count; i++) {     \
      const source x = in[i];                \
      out[i] = (target)(expression);         \
    }                                        \
    return;                                  \
  }

#define NP_CAST_FROM(name, source, small, i32, i64, u64)                      \
  NP_MULTIVERSIONED(void, from_##name,                                        \
                    (const char *from, char *to, size_t count, int32_t type), \
                    (from, to, count, type)) {                                \
    switch (type) {                                                           \
      case NP_TYPE_BOOL: NP_LOOP(source, uint8_t, x != 0)                     \
      case NP_TYPE_UINT8: NP_LOOP(source, uint8_t, small(x))                  \
      case NP_TYPE_INT8: NP_LOOP(source, int8_t, small(x))                    \
      case NP_TYPE_UINT16: NP_LOOP(source, uint16_t, small(x))                \
      case NP_TYPE_INT16: NP_LOOP(source, int16_t, small(x))                  \
      case NP_TYPE_UINT32: NP_LOOP(source, uint32_t, i64(x))                  \
      case NP_TYPE_INT32: NP_LOOP(source, int32_t, i32(x))                    \
      case NP_TYPE_UINT64: NP_LOOP(source, uint64_t, u64(x))                  \
      case NP_TYPE_INT64: NP_LOOP(source, int64_t, i64(x))                    \
      case NP_TYPE_FLOAT32: NP_LOOP(source, float, x)                         \
      default: NP_LOOP(source, double, x)                                     \
    }                                                                         \
  }

#define NP_CAST_FROM_INTEGER(name, type) NP_CAST_FROM(name, type, , , , )

NP_CAST_FROM_INTEGER(u8, uint8_t)
NP_CAST_FROM_INTEGER(i8, int8_t)
NP_CAST_FROM_INTEGER(u16, uint16_t)
NP_CAST_FROM_INTEGER(i16, int16_t)
NP_CAST_FROM_INTEGER(u32, uint32_t)
NP_CAST_FROM_INTEGER(i32, int32_t)
NP_CAST_FROM_INTEGER(u64, uint64_t)
NP_CAST_FROM_INTEGER(i64, int64_t)
NP_CAST_FROM(f32, float, to_i32, to_i32, to_i64, to_u64)
NP_CAST_FROM(f64, double, to_i32, to_i32, to_i64, to_u64)

typedef void cast(const char *, char *, size_t, int32_t);

static cast *const CASTS[] = {from_u8,  from_u8,  from_i8,  from_u16, from_i16, from_u32,
                              from_i32, from_u64, from_i64, from_f32, from_f64};
static const uint8_t SIZES[] = {1, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8};

static void part(void *context, size_t start, size_t count) {
  const np_job *job = context;
  const struct np_cast_params *p = job->params;
  CASTS[p->from]((const char *)job->inputs[0] + start * SIZES[p->from],
                 (char *)job->out + start * SIZES[p->to], count, p->to);
}

int np_cast(const void *params, const void *const *inputs, void *out, np_workers *workers) {
  const size_t count = ((const struct np_cast_params *)params)->count;
  return np_run_tiles((np_job){params, inputs, out, NULL, 0}, part, count, TILE, count * 4, 0,
                      workers);
}
