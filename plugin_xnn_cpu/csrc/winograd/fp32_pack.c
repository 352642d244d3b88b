/* How the weights of Winograd's algorithm for float32 lie.
 *
 * Panels have as many columns as those of gemm/fp32/pack.c: first the bias, then for each element
 * of a transformed tile a row of weights for each channel. They are transformed in float64, and
 * rounded once. */
#include "winograd/fp32_tile.h"

#define MOST_SIZE 6 /* elements along an axis */

/* The matrix G of Cook-Toom for 3 weights: each row evaluates their polynomial at one point, divided
 * by the distances to the other points. */
typedef struct {
  size_t size;
  double rows[MOST_SIZE][3];
} transform;

static transform transform_of(size_t tile) {
  const double a = NP_WINOGRAD_NEAR, b = NP_WINOGRAD_FAR;
  const double points[2][MOST_SIZE - 1] = {{0, 1, -1}, {0, a, -a, b, -b}};
  const double *p = points[tile == 4];
  transform by = {.size = tile + 2};
  for (size_t i = 0; i + 1 < by.size; i++) {
    double distances = 1;
    for (size_t j = 0; j + 1 < by.size; j++) distances *= j == i ? 1 : p[i] - p[j];
    by.rows[i][0] = 1 / distances;
    by.rows[i][1] = p[i] / distances;
    by.rows[i][2] = p[i] * p[i] / distances;
  }
  by.rows[tile + 1][2] = 1; /* at infinity */
  return by;
}

/* The weight transform G g Gᵀ of one 3×3 kernel; elements of g and of the result are `step` and
 * `out_step` apart. */
static void transform_weights(const transform *by, const float *weights, size_t step, float *out,
                              size_t out_step) {
  double half[MOST_SIZE][3];
  for (size_t i = 0; i < by->size; i++) {
    const double *row = by->rows[i];
    for (size_t x = 0; x < 3; x++) {
      const double first = weights[x * step], second = weights[(3 + x) * step];
      half[i][x] = row[0] * first + row[1] * second + row[2] * weights[(6 + x) * step];
    }
  }
  for (size_t i = 0; i < by->size; i++) {
    for (size_t j = 0; j < by->size; j++, out += out_step) {
      const double *row = by->rows[j];
      *out = (float)(row[0] * half[i][0] + row[1] * half[i][1] + row[2] * half[i][2]);
    }
  }
}

size_t np_fp32_winograd_packed_size(size_t lanes, size_t tile, size_t outputs, size_t channels) {
  return np_fp32_packed_size(lanes, 1, outputs, (tile + 2) * (tile + 2) * channels);
}

void np_fp32_winograd_pack(size_t lanes, size_t tile, size_t outputs, size_t channels,
                           const void *weights, const void *bias, void *packed) {
  const transform by = transform_of(tile);
  const size_t elements = by.size * by.size;
  const float *source = weights, *added = bias;
  float *to = packed;
  for (size_t panel = 0; panel < np_fp32_panels(lanes, outputs); panel++) {
    const np_fp32_panel_extent at = np_fp32_panel_at(lanes, outputs, elements * channels, panel);
    for (size_t n = 0; n < at.width; n++) {
      to[n] = n < at.columns && added != NULL ? added[at.first + n] : 0.0f;
    }
    to += at.width;
    float row[NP_WINOGRAD_MOST_ELEMENTS][NP_FP32_MAX_NR] = {{0}};
    for (size_t channel = 0; channel < channels; channel++) {
      for (size_t n = 0; n < at.columns; n++) {
        const float *kernel = source + (at.first + n) * 9 * channels + channel;
        transform_weights(&by, kernel, channels, &row[0][n], NP_FP32_MAX_NR);
      }
      for (size_t i = 0; i < elements; i++) {
        memcpy(to + (i * channels + channel) * at.width, row[i], at.width * sizeof *to);
      }
    }
    to += elements * channels * at.width;
  }
}
