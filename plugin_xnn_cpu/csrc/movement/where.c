/* Choosing between two tensors, with broadcasting. */
#include "runtime/kernel.h"

/* out = condition ? x : y, each broadcast by strides of 0; out is dense. */
struct np_where_params {
  size_t rank;
  size_t sizes[8];
  ptrdiff_t strides[3][8];
  size_t element_size;
};

#define TILE 16384 /* elements of a row */

NP_INLINE void row4(const uint8_t *c, ptrdiff_t cs, const uint32_t *x, ptrdiff_t xs,
                    const uint32_t *y, ptrdiff_t ys, uint32_t *out, size_t count) {
  const uint32_t first_x = *x, first_y = *y; /* which writes to the output do not change */
  if (cs == 1 && xs == 1 && ys == 0) {
    for (size_t i = 0; i < count; i++) out[i] = c[i] ? x[i] : first_y;
  } else if (cs == 1 && xs == 0 && ys == 1) {
    for (size_t i = 0; i < count; i++) out[i] = c[i] ? first_x : y[i];
  } else {
    for (size_t i = 0; i < count; i++) {
      const ptrdiff_t at = (ptrdiff_t)i;
      out[i] = c[at * cs] ? x[at * xs] : y[at * ys];
    }
  }
}

NP_TILE(rows) {
  const struct np_where_params *p = job->params;
  const size_t last = p->rank - 1, all = p->sizes[last], tiles = np_ceil_div(all, TILE);
  const ptrdiff_t size = (ptrdiff_t)p->element_size;
  const ptrdiff_t *const strides[] = {p->strides[0], p->strides[1], p->strides[2]};
  const ptrdiff_t cs = strides[0][last], xs = strides[1][last], ys = strides[2][last];
  for (size_t tile = start; tile < start + count; tile++) {
    const size_t row = tile / tiles;
    const np_range range = np_range_of(tile % tiles, TILE, all);
    const size_t columns = range.count;
    ptrdiff_t at[3];
    np_offsets(row, last, p->sizes, 3, strides, at);
    for (int i = 0; i < 3; i++) at[i] += (ptrdiff_t)range.first * strides[i][last];
    const uint8_t *c = (const uint8_t *)job->inputs[0] + at[0];
    const char *x = (const char *)job->inputs[1] + at[1] * size;
    const char *y = (const char *)job->inputs[2] + at[2] * size;
    char *out = (char *)job->out + (row * all + range.first) * p->element_size;
    if (size == 4) {
      row4(c, cs, (const uint32_t *)x, xs, (const uint32_t *)y, ys, (uint32_t *)out, columns);
      continue;
    }
    for (size_t i = 0; i < columns; i++, c += cs, x += xs * size, y += ys * size, out += size) {
      memcpy(out, *c ? x : y, (size_t)size);
    }
  }
}

int np_where(np_job *job) {
  const struct np_where_params *p = job->params;
  const size_t outer = np_element_count(p->rank - 1, p->sizes), inner = p->sizes[p->rank - 1];
  if (outer * inner == 0) return 0;
  return np_for_tiles(job, rows, outer * np_ceil_div(inner, TILE), 1,
                      outer * inner * p->element_size, 0);
}
