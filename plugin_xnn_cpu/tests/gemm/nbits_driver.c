/* Runs the kernels for rows of int8 and matrices of few bits as they are compiled for two
 * instruction sets, A and B, and compares their results with double precision and, where it has an
 * argument, with one another bit by bit: only code with FMA, or only code without, agrees so.
 * Prints the number of cases; exits with 1 at the first difference. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "gemv/nbits_panel.h"

#define NAMED(name, isa) NP_JOIN_NAMES(name, isa)
#define NP_JOIN_NAMES(name, isa) name##_##isa
extern np_nbits_few NAMED(np_nbits_int8_few, A), NAMED(np_nbits_int8_few, B);
extern np_nbits_many NAMED(np_nbits_int8_many, A), NAMED(np_nbits_int8_many, B);
extern np_nbits_quantize NAMED(np_nbits_quantize, A), NAMED(np_nbits_quantize, B);

static uint32_t state = 1;
static uint32_t draw(uint32_t below) {
  state = state * 1664525u + 1013904223u;
  return (state >> 8) % below;
}
static float real(void) { return (float)draw(20001) / 10000 - 1; }

static void *memory(size_t bytes) { return aligned_alloc(64, (bytes + 4096 + 63) / 64 * 64); }

typedef struct {
  np_nbits_few *few;
  np_nbits_many *many;
  np_nbits_quantize *quantize;
} code;

static void compute(const struct np_nbits_params *p, code c, const float *in, float *out) {
  const struct np_nbits_matrix *m = &p->matrix;
  const size_t blocks = np_nbits_blocks(m), panels = np_nbits_panels(m);
  np_nbits_job job = {.params = p, .in = in, .out = out};
  job.rows.q = memory(p->rows * blocks * m->block);
  const size_t stride = np_nbits_row_stride(p->rows);
  job.rows.scales = memory(stride * blocks * 4);
  job.rows.row_sums = memory(stride * blocks * 4);
  for (size_t row = 0; row < p->rows; row++) {
    c.quantize(in + row * m->inputs, m->inputs, m->block, job.rows.q + row * blocks * m->block,
               job.rows.scales + row, job.rows.row_sums + row, stride);
  }
  if (p->rows <= NP_NBITS_GEMV_ROWS) {
    c.few(&job, 0, panels);
  } else {
    const size_t results = stride * NP_NBITS_COLUMNS * sizeof(float);
    uint8_t *scratch = memory(np_nbits_piece_size(m) + results);
    for (size_t panel = 0; panel < panels; panel++) c.many(&job, panel, 0, p->rows, scratch);
    free(scratch);
  }
  free(job.rows.q), free(job.rows.scales), free(job.rows.row_sums);
}

/* Whether the results of both are the same, if `same` is asked for, and are off by half a step of each block's rows at most. */
static int agree(size_t rows, size_t inputs, size_t outputs, size_t block, int32_t bits,
                 int32_t zeros, int same) {
  struct np_nbits_params p = {.rows = rows, .quantized = 1, .rounds = 1};
  p.matrix = (struct np_nbits_matrix){outputs, inputs, block, bits, NP_NBITS_SCALES_F32, zeros,
                                      (float)(1 << (bits - 1)), NP_NBITS_INTEGERS};
  p.epilogue.low = -INFINITY, p.epilogue.high = INFINITY;
  const size_t blocks = np_nbits_blocks(&p.matrix), width = blocks * block;
  uint8_t *weights = memory(outputs * width), *numbers = memory(outputs * blocks * 5);
  float *scales = (float *)numbers, *x = memory(rows * inputs * 4);
  uint8_t *points = numbers + outputs * blocks * 4;
  for (size_t i = 0; i < outputs * width; i++) weights[i] = (uint8_t)draw(1u << bits);
  for (size_t i = 0; i < outputs * blocks; i++) {
    scales[i] = real();
    points[i] = (uint8_t)draw(1u << bits);
  }
  for (size_t i = 0; i < rows * inputs; i++) x[i] = real();
  void *packed = memory(np_nbits_packed_size(&p.matrix));
  np_nbits_pack(&p.matrix, weights, numbers, NULL, packed);
  p.packed = packed;
  float *a = memory(rows * outputs * 4), *b = memory(rows * outputs * 4);
  compute(&p, (code){NAMED(np_nbits_int8_few, A), NAMED(np_nbits_int8_many, A),
                     NAMED(np_nbits_quantize, A)}, x, a);
  compute(&p, (code){NAMED(np_nbits_int8_few, B), NAMED(np_nbits_int8_many, B),
                     NAMED(np_nbits_quantize, B)}, x, b);
  int fits = !same || memcmp(a, b, rows * outputs * 4) == 0;
  for (size_t r = 0; r < rows; r++) {
    for (size_t n = 0; n < outputs; n++) {
      double sum = 0, most = 0, limit = 0;
      for (size_t k = 0; k < inputs; k++) {
        const size_t at = n * blocks + k / block, first = k / block * block;
        const double zero = zeros == NP_NBITS_ZEROS_U8 ? points[at] : p.matrix.zero;
        const double w = ((double)weights[n * width + k] - zero) * scales[at];
        if (k == first) {
          most = 0;
          for (size_t i = first; i < first + block && i < inputs; i++) {
            most = fmax(most, fabs(x[r * inputs + i]));
          }
        }
        sum += w * x[r * inputs + k];
        limit += fabs(w) * (most / 254 * (1 + 1e-4) + 1e-5);
      }
      if (!(fabs(sum - a[r * outputs + n]) <= limit)) fits = 0;
      if (!(fabs(sum - b[r * outputs + n]) <= limit)) fits = 0;
    }
  }
  free(weights), free(numbers), free(x), free(packed), free(a), free(b);
  return fits;
}

int main(int count, char **arguments) {
  (void)arguments;
  static const size_t shapes[][3] = {{16, 16, 1}, {80, 33, 32}, {300, 70, 64}, {256, 40, 128}};
  static const size_t rows[] = {1, 2, 3, 4, 5, 8, 9, 23};
  int cases = 0;
  for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
      for (int32_t bits = 2; bits <= 8; bits *= 2) {
        for (int32_t zeros = NP_NBITS_ZEROS_COMMON; zeros <= NP_NBITS_ZEROS_U8; zeros++) {
          const size_t block = shapes[s][2] == 1 ? 16 : shapes[s][2];
          if (!agree(rows[r], shapes[s][0], shapes[s][1], block, bits, zeros,
                     count > 1)) {
            printf("differ: %zu rows, %zu x %zu, %d bits\n", rows[r], shapes[s][0], shapes[s][1],
                   bits);
            return 1;
          }
          cases++;
        }
      }
    }
  }
  printf("%d cases\n", cases);
  return 0;
}
