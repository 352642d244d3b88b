/* Parameters of conversions between float32 and integers of 16 bits, and of rounding by channels. Read by cffi too: no directives
 * but simple constants. */
#ifndef NARROWPASS_QUANTIZE_INT16_H
#define NARROWPASS_QUANTIZE_INT16_H

#include <stddef.h>
#include <stdint.h>

/* NP_QUANTIZE16: integers out[i] = min(max(rint(x[i] / scale), low), high) + zero_point.
 * NP_DEQUANTIZE16: float out[i] = (x[i] - zero_point) * scale.
 * NP_FAKE_QUANTIZE: the second of the first, in one pass over floats; of any width of integers.
 *
 * `low` and `high` keep the sum within the integers. NaN becomes `low`. */
struct np_int16_params {
  size_t count;
  float scale;
  float low;
  float high;
  int32_t zero_point;
  int32_t is_signed; /* int16; otherwise uint16 */
};

/* float out[i] = min(max(rint(x[i] / scale), low), high) * scale, where all three are those of the
 * channel (i / inner) % channels. NaN becomes `low`. */
struct np_fake_channels_params {
  size_t count;
  size_t channels;
  size_t inner;
  const float *scales;
  const float *lows;
  const float *highs;
};

#endif
