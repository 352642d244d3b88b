/* Operators of two integers. Results wrap; a quotient by 0 is 0, and so is a rest: nothing
 * traps. */
#include "elementwise/typed_binary.h"

#define NP_UNSIGNED(bits, EACH)                                                       \
  EACH(add_u##bits, uint##bits##_t, uint##bits##_t, x + y)             \
  EACH(sub_u##bits, uint##bits##_t, uint##bits##_t, x - y)             \
  EACH(mul_u##bits, uint##bits##_t, uint##bits##_t, 1u * x * y)        \
  NP_ROW_MULTIVERSIONED(and_u##bits, uint##bits##_t, uint##bits##_t, x &y)              \
  EACH(or_u##bits, uint##bits##_t, uint##bits##_t, x | y)              \
  EACH(xor_u##bits, uint##bits##_t, uint##bits##_t, x ^ y)             \
  EACH(eq_u##bits, uint##bits##_t, uint8_t, x == y)                    \
  NP_ROW(shl_u##bits, uint##bits##_t, uint##bits##_t,                                 \
         y < bits ? (uint64_t)x << (y < bits ? y : 0) : UINT64_C(0))                           \
  NP_ROW(shr_u##bits, uint##bits##_t, uint##bits##_t, y < bits ? (uint64_t)x >> (y < bits ? y : 0) : UINT64_C(0)) \
  NP_ROW(div_u##bits, uint##bits##_t, uint##bits##_t, y == 0 ? 0 : x / (y == 0 ? 1 : y))       \
  NP_ROW(mod_u##bits, uint##bits##_t, uint##bits##_t, y == 0 ? 0 : x % (y == 0 ? 1 : y))

/* A shift of a negative number keeps its sign; by as many bits as there are, or more, nothing else
 * is left of it. The least number divided by -1 is itself. Mod has the sign of the divisor, as in
 * Python; fmod that of what is divided, as in C. */
#define NP_SIGNED(bits)                                                                         \
  NP_INLINE int##bits##_t quotient_##bits(int##bits##_t x, int##bits##_t y) {                   \
    if (y == 0) return 0;                                                                       \
    return y == -1 ? (int##bits##_t)(0u - (uint##bits##_t)x) : (int##bits##_t)(x / y);          \
  }                                                                                             \
  NP_INLINE int##bits##_t rest_##bits(int##bits##_t x, int##bits##_t y) {                       \
    return y == 0 || y == -1 ? 0 : (int##bits##_t)(x % y);                                      \
  }                                                                                             \
  NP_INLINE int##bits##_t modulus_##bits(int##bits##_t x, int##bits##_t y) {                    \
    const int##bits##_t rest = rest_##bits(x, y);                                               \
    return rest != 0 && (rest < 0) != (y < 0) ? (int##bits##_t)(rest + y) : rest;               \
  }                                                                                             \
  NP_ROW(shr_i##bits, int##bits##_t, int##bits##_t,                                             \
         x >> (y < 0 || y >= bits ? bits - 1 : y))                                              \
  NP_ROW(div_i##bits, int##bits##_t, int##bits##_t, quotient_##bits(x, y))                      \
  NP_ROW(fmod_i##bits, int##bits##_t, int##bits##_t, rest_##bits(x, y))                         \
  NP_ROW(mod_i##bits, int##bits##_t, int##bits##_t, modulus_##bits(x, y))

/* By squaring; a negative power of an integer is 0 but for 1 and -1. */
#define NP_BOTH(name, type, wide, EACH)                                  \
  NP_INLINE type power_##name(type x, type y) {                          \
    if (y < 0) return x == 1 ? 1 : x == (type)-1 ? (y & 1 ? x : 1) : 0;  \
    wide base = (wide)x, result = 1;                                     \
    for (type rest = y; rest > 0; rest = (type)(rest >> 1)) {            \
      if (rest & 1) result *= base;                                      \
      base *= base;                                                      \
    }                                                                    \
    return (type)result;                                                 \
  }                                                                      \
  NP_ROW(pow_##name, type, type, power_##name(x, y))                     \
  EACH(max_##name, type, type, x > y ? x : y)             \
  EACH(min_##name, type, type, x < y ? x : y)             \
  EACH(lt_##name, type, uint8_t, x < y)                   \
  EACH(le_##name, type, uint8_t, x <= y)

NP_UNSIGNED(8, NP_ROW)
NP_UNSIGNED(16, NP_ROW)
NP_UNSIGNED(32, NP_ROW_MULTIVERSIONED)
NP_UNSIGNED(64, NP_ROW_MULTIVERSIONED)
NP_SIGNED(8)
NP_SIGNED(16)
NP_SIGNED(32)
NP_SIGNED(64)
NP_BOTH(u8, uint8_t, uint32_t, NP_ROW)
NP_BOTH(i8, int8_t, uint32_t, NP_ROW)
NP_BOTH(u16, uint16_t, uint32_t, NP_ROW)
NP_BOTH(i16, int16_t, uint32_t, NP_ROW)
NP_BOTH(u32, uint32_t, uint32_t, NP_ROW)
NP_BOTH(i32, int32_t, uint32_t, NP_ROW_MULTIVERSIONED)
NP_BOTH(u64, uint64_t, uint64_t, NP_ROW)
NP_BOTH(i64, int64_t, uint64_t, NP_ROW_MULTIVERSIONED)

/* By NP_BINARY_*. */
#define NP_SHARED(bits) add_u##bits, sub_u##bits, mul_u##bits
#define NP_ROWS_OF_UNSIGNED(bits)                                                                  \
  {                                                                                                \
    NP_SHARED(bits), div_u##bits, mod_u##bits, mod_u##bits, pow_u##bits, max_u##bits, min_u##bits, \
        and_u##bits, or_u##bits, xor_u##bits, shl_u##bits, shr_u##bits, eq_u##bits, lt_u##bits,    \
        le_u##bits                                                                                 \
  }
#define NP_ROWS_OF_SIGNED(bits)                                                                     \
  {                                                                                                 \
    NP_SHARED(bits), div_i##bits, mod_i##bits, fmod_i##bits, pow_i##bits, max_i##bits, min_i##bits, \
        and_u##bits, or_u##bits, xor_u##bits, shl_u##bits, shr_i##bits, eq_u##bits, lt_i##bits,     \
        le_i##bits                                                                                  \
  }

static np_binary_row *const ROWS[][NP_BINARY_LESS_OR_EQUAL + 1] = {
    NP_ROWS_OF_UNSIGNED(8),  NP_ROWS_OF_UNSIGNED(8),  NP_ROWS_OF_SIGNED(8),
    NP_ROWS_OF_UNSIGNED(16), NP_ROWS_OF_SIGNED(16),   NP_ROWS_OF_UNSIGNED(32),
    NP_ROWS_OF_SIGNED(32),   NP_ROWS_OF_UNSIGNED(64), NP_ROWS_OF_SIGNED(64),
};

np_binary_row *np_integer_row(int32_t op, int32_t type) { return ROWS[type][op]; }
