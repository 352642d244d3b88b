/* How the weights of the fp32 kernels lie.
 *
 * The columns of a group are vectors of `lanes`, the last one filled with zeros; a panel has a few
 * of them: first the bias, then for each input a row of weights. All panels of a group have as many
 * vectors, or one less: the last ones, so that GEMV reads panels of one width, then of another. */
#include "gemm/fp32/panel.h"

#define BLOCK 64 /* inputs that are read at a time where the matrix lies the other way round */

size_t np_fp32_packed_size(size_t lanes, size_t groups, size_t outputs, size_t inputs) {
  return groups * ((outputs + lanes - 1) / lanes) * lanes * (1 + inputs) * sizeof(float);
}

size_t np_fp32_panels(size_t lanes, size_t outputs) {
  const size_t vectors = (outputs + lanes - 1) / lanes;
  if (lanes < 16) return (vectors + 1) / 2;
  /* Three vectors are as good as four; one, and two, are not. */
  return vectors % 3 == 0 ? vectors / 3 : (vectors + 3) / 4;
}

np_fp32_panel_extent np_fp32_panel_at(size_t lanes, size_t outputs, size_t inputs, size_t number) {
  const size_t vectors = (outputs + lanes - 1) / lanes, panels = np_fp32_panels(lanes, outputs);
  const size_t most = np_ceil_div(vectors, panels), narrow = panels * most - vectors;
  const size_t wide = panels - narrow;
  const size_t first = (number * most - (number > wide ? number - wide : 0)) * lanes;
  const size_t end = first + (most - (number >= wide)) * lanes;
  const size_t columns = (end < outputs ? end : outputs) - first;
  return (np_fp32_panel_extent){first, columns, end - first, first * (1 + inputs)};
}

static void pack_panel(size_t width, size_t columns, size_t inputs, const float *source,
                       size_t column_step, size_t input_step, const float *bias, float *to) {
  for (size_t n = 0; n < width; n++) to[n] = n < columns && bias != NULL ? bias[n] : 0.0f;
  to += width;
  for (size_t first = 0; first < inputs; first += BLOCK) {
    const size_t last = first + BLOCK < inputs ? first + BLOCK : inputs;
    for (size_t n = 0; n < width; n++) {
      const float *x = source + n * column_step;
      for (size_t k = first; k < last; k++) {
        to[k * width + n] = n < columns ? x[k * input_step] : 0.0f;
      }
    }
  }
}

void np_fp32_pack(size_t lanes, size_t groups, size_t outputs, size_t inputs, int32_t inputs_first,
                  const void *weights, const void *bias, void *packed) {
  const float *source = weights, *added = bias;
  float *to = packed;
  const size_t column_step = inputs_first ? 1 : inputs;
  const size_t input_step = inputs_first ? groups * outputs : 1;
  const size_t panels = np_fp32_panels(lanes, outputs);
  for (size_t group = 0; group < groups; group++) {
    for (size_t panel = 0; panel < panels; panel++) {
      const np_fp32_panel_extent at = np_fp32_panel_at(lanes, outputs, inputs, panel);
      const size_t column = group * outputs + at.first;
      pack_panel(at.width, at.columns, inputs, source + column * column_step, column_step,
                 input_step, added == NULL ? NULL : added + column, to);
      to += at.width * (1 + inputs);
    }
  }
}
