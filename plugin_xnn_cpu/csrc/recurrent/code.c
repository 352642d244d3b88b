/* A step of a recurrence for one instruction set; see recurrent/recurrent.h.
 *
 * The weights of LANES units lie in one panel, for each input the gates side by side: a tile of
 * some sequences by all gates of these units is multiplied, and becomes the new states, in
 * registers. Weights may be int8, the four inputs of a unit side by side: they are multiplied with
 * four quantized states, and accumulated in int32, by one instruction with VNNI. */
#include <math.h>

#if LANES == 4
#undef LANES
#define LANES 8 /* what weights are packed for, without AVX-512 */
#endif

#include "recurrent/step.h"
#include "simd/f32.h"
#include "simd/polynomial.h"

#define ROWS (LANES == 16 ? 4 : 2) /* sequences of a tile */
#define SHIFT 12582912.0f /* 1.5 · 2^23: what is added to it is rounded to an integer */

/* All LANES floats, or the `count` that there are. */
NP_INLINE vec load_units(const float *from, size_t count) {
  return count >= LANES ? load(from) : load_some(from, count);
}

/* exp(-|x|), which is 0 beyond 87; of NaN some number. The polynomial is that of
 * simd/exp_log.h. */
NP_INLINE vec decay(vec x) {
  vec a = (vec)((ivec)x & 0x7fffffff);
  a = choose(a < 87.0f, a, broadcast(87.0f));
  const vec shifted = multiply_add(a, broadcast(-1.44269504f), broadcast(SHIFT));
  const vec n = shifted - SHIFT;
  const vec r = multiply_add(n, broadcast(2.12194440e-4f), /* ln 2 in two parts */
                             multiply_add(n, broadcast(-0.693359375f), -a));
  const vec p = NP_VECTOR_POLYNOMIAL(6, r, 1.0f, 0.999999702f, 0.499991506f, 0.166676372f,
                                     0.0418979749f, 0.00829030573f);
  const vec e = (vec)((ivec)p + ((ivec)shifted << 23));
  return choose(a < 87.0f, e, broadcast(0));
}

NP_INLINE vec with_nan(vec x, vec y) { return choose(x == x, y, x); }

NP_INLINE vec sigmoid(vec x) {
  const vec e = decay(x);
  return with_nan(x, choose(x < 0.0f, e, broadcast(1)) / (1.0f + e));
}

/* (1 - exp(-2|x|)) / (1 + exp(-2|x|)), with an absolute error of 1e-7. */
NP_INLINE vec hyperbolic(vec x) {
  const vec e = decay(x + x), t = (1.0f - e) / (1.0f + e);
  return with_nan(x, choose(x < 0.0f, -t, t));
}

NP_INLINE float rare(const struct np_recurrent_function *f, float x) {
  switch (f->kind) {
    case NP_ACTIVATION_AFFINE: return f->alpha * x + f->beta;
    case NP_ACTIVATION_LEAKY_RELU: return x >= 0 ? x : f->alpha * x;
    case NP_ACTIVATION_THRESHOLDED_RELU: return x >= f->alpha ? x : x == x ? 0 : x;
    case NP_ACTIVATION_SCALED_TANH: return f->alpha * tanhf(f->beta * x);
    case NP_ACTIVATION_HARD_SIGMOID: {
      const float y = f->alpha * x + f->beta;
      return y < 0 ? 0 : y > 1 ? 1 : y;
    }
    case NP_ACTIVATION_ELU: return x >= 0 ? x : f->alpha * expm1f(x);
    case NP_ACTIVATION_SOFTSIGN: return x / (1 + fabsf(x));
    default: return x > 0 ? x + log1pf(expf(-x)) : log1pf(expf(x));
  }
}

NP_INLINE vec activated(const struct np_recurrent_function *f, vec x) {
  switch (f->kind) {
    case NP_ACTIVATION_SIGMOID: return sigmoid(x);
    case NP_ACTIVATION_TANH: return hyperbolic(x);
    case NP_ACTIVATION_RELU:
      return choose(x < 0.0f, broadcast(0), x);
    default: {
      float all[LANES];
      memcpy(all, &x, sizeof all);
      for (int i = 0; i < LANES; i++) all[i] = rare(f, all[i]);
      return *(const vec *)all;
    }
  }
}

NP_INLINE vec clipped(vec x, float clip) {
  x = choose(x > clip, broadcast(clip), x);
  return choose(x < -clip, broadcast(-clip), x);
}

/* accumulators[row][gate] += h[row][k] · panel[k][gate] over all k. Where there are few gates, some
 * k are added side by side: each addition waits for the one before. How many must not depend on
 * the rows, which would have other bits beside others. */
NP_INLINE void multiply(const float *panel, const float *const *h, size_t hidden,
                               vec acc[ROWS][4], const int rows, const int gates) {
  const int distance = gates >= 3 ? 1 : 4 / gates;
  vec more[4][ROWS][4];
  UNROLL for (int a = 1; a < distance; a++) {
    UNROLL for (int r = 0; r < rows; r++) {
      UNROLL for (int g = 0; g < gates; g++) more[a][r][g] = broadcast(0);
    }
  }
  size_t k = 0;
  for (; k + (size_t)distance <= hidden; k += (size_t)distance) {
    UNROLL for (int a = 0; a < distance; a++) {
      UNROLL for (int g = 0; g < gates; g++) {
        const vec w = *(const vec *)(panel + ((k + (size_t)a) * (size_t)gates + (size_t)g) * LANES);
        UNROLL for (int r = 0; r < rows; r++) {
          if (a == 0) {
            acc[r][g] = multiply_add(broadcast(h[r][k]), w, acc[r][g]);
          } else {
            more[a][r][g] = multiply_add(broadcast(h[r][k + (size_t)a]), w, more[a][r][g]);
          }
        }
      }
    }
  }
  for (; k < hidden; k++) {
    UNROLL for (int g = 0; g < gates; g++) {
      const vec w = *(const vec *)(panel + (k * (size_t)gates + (size_t)g) * LANES);
      UNROLL for (int r = 0; r < rows; r++) acc[r][g] = multiply_add(broadcast(h[r][k]), w, acc[r][g]);
    }
  }
  UNROLL for (int a = 1; a < distance; a++) {
    UNROLL for (int r = 0; r < rows; r++) {
      UNROLL for (int g = 0; g < gates; g++) acc[r][g] += more[a][r][g];
    }
  }
}

/* Of each lane's four int8 weights, those times four states, which are bytes, added to `acc`. */
NP_INLINE ivec add_bytes(ivec acc, ivec weights, uint32_t states) {
#ifdef __AVX512VNNI__
  const __m512i all = _mm512_set1_epi32((int32_t)states);
  return (ivec)_mm512_dpbusd_epi32((__m512i)acc, all, (__m512i)weights);
#elif LANES == 16 || defined(__AVX2__)
  /* Two multiplications of bytes, added, would saturate in 16 bits; those of int16 do not. */
  const int32_t even = (int32_t)(states & 0x00ff00ffu), odd = (int32_t)(states >> 8 & 0x00ff00ffu);
#if LANES == 16
  const __m512i w = (__m512i)weights, low = _mm512_srai_epi16(_mm512_slli_epi16(w, 8), 8);
  acc += (ivec)_mm512_madd_epi16(low, _mm512_set1_epi32(even));
  return acc + (ivec)_mm512_madd_epi16(_mm512_srai_epi16(w, 8), _mm512_set1_epi32(odd));
#else
  const __m256i w = (__m256i)weights, low = _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8);
  acc += (ivec)_mm256_madd_epi16(low, _mm256_set1_epi32(even));
  return acc + (ivec)_mm256_madd_epi16(_mm256_srai_epi16(w, 8), _mm256_set1_epi32(odd));
#endif
#elif defined(__SSE2__)
  __m128i half[2], sum[2];
  memcpy(half, &weights, sizeof half);
  memcpy(sum, &acc, sizeof sum);
  const __m128i even = _mm_set1_epi32((int32_t)(states & 0x00ff00ffu));
  const __m128i odd = _mm_set1_epi32((int32_t)(states >> 8 & 0x00ff00ffu));
  for (int i = 0; i < 2; i++) {
    const __m128i low = _mm_srai_epi16(_mm_slli_epi16(half[i], 8), 8);
    sum[i] = _mm_add_epi32(sum[i], _mm_madd_epi16(low, even));
    sum[i] = _mm_add_epi32(sum[i], _mm_madd_epi16(_mm_srai_epi16(half[i], 8), odd));
  }
  memcpy(&acc, sum, sizeof acc);
  return acc;
#else
  for (int i = 0; i < 4; i++) {
    acc += ((weights << (24 - 8 * i)) >> 24) * (int32_t)(states >> 8 * i & 0xff);
  }
  return acc;
#endif
}

/* The same as `multiply` of rows of bytes, with an offset of 128, whose scales differ. */
NP_INLINE void multiply_bytes(const np_recurrent_rows *from, const int8_t *panel,
                                     size_t hidden, size_t first, const float *scales,
                                     const int32_t *offsets, const int32_t *zeros, size_t padded,
                                     vec acc[ROWS][4], const int rows, const int gates) {
  const size_t fours = (hidden + 3) / 4;
  const uint8_t *x[ROWS];
  ivec all[ROWS][4];
  UNROLL for (int r = 0; r < rows; r++) {
    x[r] = from->bytes + (first + (size_t)r) * fours * 4;
    UNROLL for (int g = 0; g < gates; g++) {
      all[r][g] = *(const ivec *)(offsets + (size_t)g * padded);
    }
  }
  for (size_t k = 0; k < fours; k++) {
    UNROLL for (int g = 0; g < gates; g++) {
      const ivec w = *(const ivec *)(const void *)(panel + (k * (size_t)gates + (size_t)g) * 4 * LANES);
      UNROLL for (int r = 0; r < rows; r++) {
        uint32_t four;
        memcpy(&four, x[r] + 4 * k, sizeof four);
        all[r][g] = add_bytes(all[r][g], w, four);
      }
    }
  }
  if (zeros != NULL) {
    UNROLL for (int r = 0; r < rows; r++) {
      const int32_t sum = from->acc[first + (size_t)r];
      UNROLL for (int g = 0; g < gates; g++) {
        all[r][g] -= *(const ivec *)(zeros + (size_t)g * padded) * sum;
      }
    }
  }
  UNROLL for (int r = 0; r < rows; r++) {
    UNROLL for (int g = 0; g < gates; g++) {
      const vec scale = load(scales + (size_t)g * padded) * from->scales[first + (size_t)r];
      acc[r][g] = multiply_add(__builtin_convertvector(all[r][g], vec), scale, acc[r][g]);
    }
  }
}

/* Rounded to nearest even, of what an int32 has room for. */
NP_INLINE ivec rounded(vec x) {
#if LANES == 16
  return (ivec)_mm512_cvtps_epi32((__m512)x);
#elif defined(__AVX2__)
  return (ivec)_mm256_cvtps_epi32((__m256)x);
#else
  ivec whole;
  for (int i = 0; i < LANES; i++) whole[i] = (int32_t)rintf(x[i]);
  return whole;
#endif
}

/* Quantize the states of all sequences of a direction: from -max to max in 254 steps. */
static void quantize(const np_recurrent_job *job, const float *states,
                            const np_recurrent_rows *to) {
  const struct np_recurrent_params *p = job->params;
  const size_t width = (p->hidden + 3) / 4 * 4;
  typedef uint8_t narrow __attribute__((vector_size(LANES)));
  for (size_t b = 0; b < p->batch; b++) {
    const float *h = states + b * job->padded;
    vec highest = broadcast(0), nothing = broadcast(0); /* NaN where an element is not finite */
    for (size_t k = 0; k < p->hidden; k += LANES) {
      const vec x = load_units(h + k, p->hidden - k), a = (vec)((ivec)x & 0x7fffffff);
      highest = choose(a > highest, a, highest);
      nothing += x * 0.0f;
    }
    float most = 0, wrong = 0;
    for (int i = 0; i < LANES; i++) {
      most = highest[i] > most ? highest[i] : most;
      wrong += nothing[i];
    }
    to->scales[b] = wrong == 0 ? most / 127 : wrong;
    /* Where all are too small to be scaled, bytes are 0. */
    const int usable = most > 1e-30f && wrong == 0;
    const float factor = usable ? 127 / most : 0;
    uint8_t *bytes = to->bytes + b * width;
    ivec acc = {0};
    for (size_t k = 0; k < width; k += LANES) {
      vec x = broadcast(0);
      if (usable && k < p->hidden) x = load_units(h + k, p->hidden - k) * factor;
      const ivec whole = rounded(x);
      const narrow byte = __builtin_convertvector(whole + 128, narrow);
      memcpy(bytes + k, &byte, width - k < LANES ? width - k : LANES);
      acc += whole;
    }
    int32_t sum = 0;
    for (int i = 0; i < LANES; i++) sum += acc[i];
    to->acc[b] = sum;
  }
}

/* Where a tile lies. */
typedef struct {
  const np_recurrent_job *job;
  const struct np_recurrent_function *functions;
  const float *gates; /* of the first sequence and unit */
  const float *extra; /* of the first unit: [extras][padded] */
  size_t direction;
  size_t row; /* of time */
  size_t sequence;
  size_t unit;
  size_t count; /* units of the block */
  const float *before;
  float *after;
  /* Of int8 weights. */
  const np_recurrent_rows *bytes;
  const float *scales;    /* of the first gate and unit: [gates][padded] */
  const int32_t *offsets; /* the same */
  const int32_t *zeros;   /* the same; NULL for none */
} place;

NP_INLINE vec gate(const place *at, int row, int number) {
  const struct np_recurrent_params *p = at->job->params;
  const size_t distance = p->directions * np_recurrent_gates(p->kind) * p->hidden;
  return load_units(at->gates + (size_t)row * distance + (size_t)number * p->hidden, at->count);
}

NP_INLINE size_t state(const place *at, int row) {
  const struct np_recurrent_params *p = at->job->params;
  return (at->direction * p->batch + at->sequence + (size_t)row) * at->job->padded + at->unit;
}

/* Write the new state of a sequence, and its row of Y; behind its end it stays, and the row is
 * 0. */
NP_INLINE void finish(const place *at, int row, vec hidden, vec cell, int has_cell) {
  const np_recurrent_job *job = at->job;
  const struct np_recurrent_params *p = job->params;
  const size_t sequence = at->sequence + (size_t)row, where = state(at, row);
  if (job->lengths != NULL && at->row >= (size_t)job->lengths[sequence]) {
    *(vec *)(at->after + where) = *(const vec *)(at->before + where);
    hidden = broadcast(0);
  } else {
    *(vec *)(at->after + where) = hidden;
    if (has_cell) *(vec *)(job->cell + where) = cell;
  }
  if (p->has_y) {
    float *y = job->out + at->row * p->y_strides[0] + at->direction * p->y_strides[1] +
               sequence * p->y_strides[2] + at->unit;
    store_some(y, hidden, at->count < LANES ? at->count : LANES);
  }
}

NP_INLINE void end_lstm(const place *at, int row, vec acc[4]) {
  const struct np_recurrent_params *p = at->job->params;
  const struct np_recurrent_function *f = at->functions;
  const size_t padded = at->job->padded;
  vec cell = *(const vec *)(at->job->cell + state(at, row));
  vec i = acc[0], o = acc[1], forget = acc[2];
  if (p->peepholes) {
    i = multiply_add(load(at->extra), cell, i);
    forget = multiply_add(load(at->extra + 2 * padded), cell, forget);
  }
  i = activated(f, clipped(i, p->clip));
  if (p->coupled) {
    forget = 1.0f - i;
  } else {
    forget = activated(f, clipped(forget, p->clip));
  }
  cell = multiply_add(forget, cell, i * activated(f + 1, clipped(acc[3], p->clip)));
  if (p->peepholes) o = multiply_add(load(at->extra + padded), cell, o);
  o = activated(f, clipped(o, p->clip));
  finish(at, row, o * activated(f + 2, cell), cell, 1);
}

NP_INLINE void end_gru(const place *at, int row, vec z, vec candidate) {
  const struct np_recurrent_params *p = at->job->params;
  const vec before = *(const vec *)(at->before + state(at, row));
  const vec new = activated(at->functions + 1, clipped(candidate, p->clip));
  finish(at, row, multiply_add(1.0f - z, new, z * before), z, 0);
}

/* A tile of `rows` sequences by one block of units. */
NP_INLINE void tile(const place *at, const void *panel, const float *const *h,
                           const int kind, const int phase, const int rows,
                           const int quantized) {
  const np_recurrent_job *job = at->job;
  const struct np_recurrent_params *p = job->params;
  const struct np_recurrent_function *f = at->functions;
  const int gates = kind == NP_RECURRENT_LSTM        ? 4
                    : kind == NP_RECURRENT_RNN       ? 1
                    : kind == NP_RECURRENT_GRU_AFTER ? 3
                    : phase == 0                     ? 2
                                                     : 1;
  vec acc[ROWS][4];
  UNROLL for (int r = 0; r < rows; r++) {
    UNROLL for (int g = 0; g < gates; g++) {
      if (kind == NP_RECURRENT_GRU_AFTER && g == 2) {
        acc[r][g] = *(const vec *)at->extra;
      } else {
        acc[r][g] = gate(at, r, kind == NP_RECURRENT_GRU && phase == 1 ? 2 : g);
      }
    }
  }
  if (quantized) {
    multiply_bytes(at->bytes, panel, p->hidden, at->sequence, at->scales, at->offsets, at->zeros,
                   job->padded, acc, rows, gates);
  } else {
    multiply(panel, h, p->hidden, acc, rows, gates);
  }
  UNROLL for (int r = 0; r < rows; r++) {
    if (kind == NP_RECURRENT_LSTM) {
      end_lstm(at, r, acc[r]);
    } else if (kind == NP_RECURRENT_RNN) {
      finish(at, r, activated(f, clipped(acc[r][0], p->clip)), acc[r][0], 0);
    } else if (kind == NP_RECURRENT_GRU && phase == 1) {
      end_gru(at, r, *(const vec *)(job->cell + state(at, r)), acc[r][0]);
    } else {
      const vec z = activated(f, clipped(acc[r][0], p->clip));
      const vec reset = activated(f, clipped(acc[r][1], p->clip));
      if (kind == NP_RECURRENT_GRU) {
        /* Of a GRU the buffer for cells keeps the update gate for the second phase. */
        *(vec *)(job->cell + state(at, r)) = z;
        *(vec *)(job->reset + state(at, r)) = reset * *(const vec *)(at->before + state(at, r));
      } else {
        end_gru(at, r, z, multiply_add(reset, acc[r][2], gate(at, r, 2)));
      }
    }
  }
}

NP_INLINE void blocks(const np_recurrent_job *job, size_t direction, size_t step,
                             size_t first, size_t last, size_t number, const int kind,
                             const int phase, const int quantized) {
  const struct np_recurrent_params *p = job->params;
  const size_t gates = np_recurrent_gates(kind), padded = job->padded, hidden = p->hidden;
  const size_t side = kind == NP_RECURRENT_GRU ? (phase == 0 ? 2 : 1) : gates;
  /* Bytes of the weights of a unit and gate, of all panels of a direction, and of what is there of
   * the direction. */
  const size_t width = quantized ? (hidden + 3) / 4 * 4 : hidden * sizeof(float);
  const size_t matrix = padded * width * gates, extra = np_recurrent_extras(p) * padded;
  const size_t each = quantized ? np_recurrent_direction_bytes(p, padded)
                                : matrix + extra * sizeof(float);
  const char *packed = (const char *)p->packed + direction * each;
  const char *panels = packed + (phase == 0 ? 0 : padded * width * 2);
  const float *scales = (const float *)(const void *)(packed + matrix);
  const float *extras = scales + (quantized ? 2 * gates * padded : 0);
  const int32_t *offsets = (const int32_t *)(const void *)(scales + gates * padded);
  const size_t before = phase == 0 ? 0 : 2 * padded; /* of gates in the first phase */
  const int32_t *zeros = p->zeros == NULL ? NULL : p->zeros + direction * gates * padded + before;
  np_recurrent_rows bytes = {0};
  const int backwards = direction == 1 || p->backwards;
  const size_t row = backwards ? p->steps - 1 - step : step;
  const float *read = phase == 0 ? job->hidden[step & 1] : job->reset;
  if (quantized) {
    bytes = np_recurrent_rows_of(job, direction, number);
    quantize(job, read + direction * p->batch * padded, &bytes);
  }
  const int slow = p->batch * hidden > NP_SLOW; /* multiplications by a column of a block */
  for (size_t i = first; i < last; i++) {
    if (slow && np_cancel_check()) return;
    /* To and fro: where the weights are larger than the cache, what was read last is still
     * there. */
    const size_t block = step & 1 ? first + last - 1 - i : i;
    place at = {
        .job = job,
        .functions = p->functions + 3 * direction,
        .extra = extras + block * LANES,
        .direction = direction,
        .row = row,
        .unit = block * LANES,
        .count = hidden - block * LANES,
        .before = job->hidden[step & 1],
        .after = job->hidden[(step & 1) ^ 1],
    };
    if (quantized) {
      at.bytes = &bytes;
      at.scales = scales + before + block * LANES;
      at.offsets = offsets + before + block * LANES;
      at.zeros = zeros == NULL ? NULL : zeros + block * LANES;
    }
    const void *panel = panels + block * LANES * width * side;
    while (at.sequence < p->batch) {
      const size_t rows = p->batch - at.sequence >= ROWS ? ROWS : 1;
      at.gates = job->gates +
                 ((row * p->batch + at.sequence) * p->directions + direction) * gates * hidden +
                 at.unit;
      const float *h[ROWS];
      for (size_t r = 0; r < rows; r++) {
        h[r] = read + (direction * p->batch + at.sequence + r) * padded;
      }
      if (rows == 1) {
        tile(&at, panel, h, kind, phase, 1, quantized);
      } else {
        tile(&at, panel, h, kind, phase, ROWS, quantized);
      }
      at.sequence += rows;
    }
  }
}

NP_INLINE void kinds(const np_recurrent_job *job, size_t direction, size_t step, size_t first,
                     size_t last, size_t number, int phase, const int quantized) {
#define NP_BLOCKS(kind, phase) \
  blocks(job, direction, step, first, last, number, kind, phase, quantized)
  switch (job->params->kind) {
    case NP_RECURRENT_LSTM: NP_BLOCKS(NP_RECURRENT_LSTM, 0); break;
    case NP_RECURRENT_GRU:
      phase == 0 ? NP_BLOCKS(NP_RECURRENT_GRU, 0) : NP_BLOCKS(NP_RECURRENT_GRU, 1);
      break;
    case NP_RECURRENT_GRU_AFTER: NP_BLOCKS(NP_RECURRENT_GRU_AFTER, 0); break;
    default: NP_BLOCKS(NP_RECURRENT_RNN, 0);
  }
#undef NP_BLOCKS
}

#ifndef __AVX512VNNI__
void NP_OF_ISA(np_recurrent)(const np_recurrent_job *job, size_t direction, size_t step,
                             size_t first, size_t last, size_t number, int phase) {
  kinds(job, direction, step, first, last, number, phase, 0);
}
#endif

void NP_OF_ISA(np_recurrent_int8)(const np_recurrent_job *job, size_t direction, size_t step,
                                  size_t first, size_t last, size_t number, int phase) {
  kinds(job, direction, step, first, last, number, phase, 1);
}
