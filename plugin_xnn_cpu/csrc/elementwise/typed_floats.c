/* Operators of two floats. NaN comes of NaN in the greater and the lesser of two. */
#include <math.h>

#include "elementwise/typed_binary.h"

/* As Python has it: the rest has the sign of the divisor. */
NP_INLINE double modulus(double x, double y) {
  const double rest = fmod(x, y);
  if (rest == 0.0) return copysign(0.0, y);
  return (rest < 0.0) != (y < 0.0) ? rest + y : rest;
}

NP_INLINE float modulus_f(float x, float y) {
  const float rest = fmodf(x, y);
  if (rest == 0.0f) return copysignf(0.0f, y);
  return (rest < 0.0f) != (y < 0.0f) ? rest + y : rest;
}

#define NP_FLOATS(name, type, suffix, mod)                                            \
  NP_ROW_MULTIVERSIONED(add_##name, type, type, x + y)                                  \
  NP_ROW_MULTIVERSIONED(sub_##name, type, type, x - y)                                  \
  NP_ROW_MULTIVERSIONED(mul_##name, type, type, x *y)                                   \
  NP_ROW_MULTIVERSIONED(div_##name, type, type, x / y)                                  \
  NP_ROW(mod_##name, type, type, mod(x, y))                                           \
  NP_ROW(fmod_##name, type, type, fmod##suffix(x, y))                                 \
  NP_ROW(pow_##name, type, type, pow##suffix(x, y))                                   \
  NP_ROW_MULTIVERSIONED(max_##name, type, type, x > y || x != x ? x : y)                \
  NP_ROW_MULTIVERSIONED(min_##name, type, type, x < y || x != x ? x : y)                \
  NP_ROW_MULTIVERSIONED(eq_##name, type, uint8_t, x == y)                               \
  NP_ROW_MULTIVERSIONED(lt_##name, type, uint8_t, x < y)                                \
  NP_ROW_MULTIVERSIONED(le_##name, type, uint8_t, x <= y)

NP_FLOATS(f32, float, f, modulus_f)
NP_FLOATS(f64, double, , modulus)

#define NP_ROWS_OF(name)                                                                         \
  {                                                                                              \
    add_##name, sub_##name, mul_##name, div_##name, mod_##name, fmod_##name, pow_##name,         \
        max_##name, min_##name, NULL, NULL, NULL, NULL, NULL, eq_##name, lt_##name, le_##name    \
  }

static np_binary_row *const ROWS[][NP_BINARY_LESS_OR_EQUAL + 1] = {NP_ROWS_OF(f32),
                                                                   NP_ROWS_OF(f64)};

np_binary_row *np_float_row(int32_t op, int32_t type) { return ROWS[type - NP_TYPE_FLOAT32][op]; }
