/* GEMV and skinny GEMM for one instruction set.
 *
 * One core reads memory in one stream with two thirds of the speed that it reaches with eight,
 * since what is fetched ahead ends with the page. So the panels of a thread are divided into as
 * many runs as there are accumulators, and a panel of each run is multiplied at the same time, with
 * what each run needs some thousand bytes later prefetched on the way: the next panel of a run lies
 * behind the one before. */
#include "gemv/job.h"
#include "simd/f32.h"

#define MOST_STREAMS 12
#define LEFT_STREAMS 4 /* where there are not panels for all of them any more */
/* Bytes of a stream that are prefetched: those of fewer panels of floats are longer. */
#define PREFETCH_BYTES(layout) ((layout) == NP_PANELS_F32 || (layout) == NP_TABLE_F32 ? 4096 : 2048)
#define LINE 64
/* Bytes of a stream between two looks at whether the run is stopped. */
#define POLL_BYTES ((size_t)1 << 17)

/* LANES elements of a panel as floats: of vectors of bytes the compiler would convert each for
 * itself. */
NP_INLINE vec upcast(const uint8_t *p, const int layout) {
#if LANES == 16
  if (layout == NP_PANELS_F16) return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
  if (layout == NP_PANELS_INT8) {
    return (vec)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p)));
  }
#else
  if (layout == NP_PANELS_F16) return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
  if (layout == NP_PANELS_INT8) {
    return (vec)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
  }
#endif
  return *(const vec *)p;
}

NP_INLINE size_t element(const int layout) {
  return layout == NP_PANELS_F16 ? 2 : layout == NP_PANELS_INT8 ? 1 : 4;
}

/* Of LANES columns from `column` on, those that the matrix has. */
NP_INLINE size_t columns_left(const struct np_gemv_params *p, size_t column) {
  return p->outputs - column < LANES ? p->outputs - column : LANES;
}

/* One vector of accumulators of a row. */
NP_INLINE void store_columns(const np_gemv_job *job, size_t row, size_t column, vec acc) {
  const struct np_gemv_params *p = job->params;
  if (row >= p->rows || column >= p->outputs) return;
  const vec x = clamp(acc, p->epilogue.low, p->epilogue.high);
  store_some(job->out + row * p->outputs + column, x, columns_left(p, column));
}

/* What the accumulators of a row start from. */
NP_INLINE vec load_residual(const np_gemv_job *job, size_t row, size_t column) {
  const struct np_gemv_params *p = job->params;
  if (row >= p->rows || column >= p->outputs) return zero();
  return load_some(job->before + row * p->outputs + column, columns_left(p, column));
}

typedef vec stream_acc[MOST_STREAMS][4];

NP_INLINE void accumulate(const uint8_t *weights, const float *const *x, size_t k,
                                 stream_acc *acc, const int stream, const int rows,
                                 const int vectors, const int layout) {
  UNROLL for (int v = 0; v < vectors; v++) {
    const vec w = upcast(weights + (size_t)v * LANES * element(layout), layout);
    UNROLL for (int r = 0; r < rows; r++) {
      /* Not left to the compiler: GEMM fuses, too, and a row has the same bits with either. */
      acc[r][stream][v] = multiply_add(broadcast(x[r][k]), w, acc[r][stream][v]);
    }
  }
}

/* A panel of `vectors` registers from each of `streams` runs, which are `apart` panels long. */
NP_INLINE void tile(const np_gemv_job *job, np_gemv_region region, size_t panel,
                    size_t run_stride, const int rows, const int streams, const int vectors,
                    const int layout) {
  const struct np_gemv_params *p = job->params;
  const size_t size = element(layout), step = (size_t)vectors * LANES * size;
  const size_t head = (size_t)vectors * LANES * (layout == NP_PANELS_F16 ? 2 : 4);
  const size_t channels = p->channels;
  const uint8_t *panels[MOST_STREAMS];
  const float *x[NP_GEMV_MAX_ROWS];
  stream_acc acc[NP_GEMV_MAX_ROWS];
  UNROLL for (int s = 0; s < streams; s++) {
    panels[s] = region.packed + (panel + (size_t)s * run_stride) * region.panel_bytes;
    UNROLL for (int v = 0; v < vectors; v++) {
      const uint8_t *from = panels[s] + (size_t)v * LANES * (layout == NP_PANELS_F16 ? 2 : 4);
      const vec bias = layout == NP_PANELS_F16 ? upcast(from, NP_PANELS_F16) : *(const vec *)from;
      const size_t column =
          region.column + ((panel + (size_t)s * run_stride) * (size_t)vectors + (size_t)v) * LANES;
      UNROLL for (int r = 0; r < rows; r++) {
        acc[r][s][v] = bias;
        if (job->before != NULL) acc[r][s][v] += load_residual(job, (size_t)r, column);
      }
    }
    panels[s] += head;
  }
  UNROLL for (int r = 0; r < rows; r++) {
    const size_t row = (size_t)r < p->rows ? (size_t)r : p->rows - 1;
    x[r] = job->rows + row * channels;
  }
  /* A line of each stream at a time. */
  const size_t many = step < LINE ? LINE / step : 1;
  size_t k = 0;
  for (; k + many <= channels; k += many) {
    UNROLL for (int s = 0; s < streams; s++) {
      const uint8_t *from = panels[s] + k * step;
      UNROLL for (size_t line = 0; line < many * step; line += LINE) {
        __builtin_prefetch(from + PREFETCH_BYTES(layout) + line, 0, 3);
      }
      UNROLL for (size_t j = 0; j < many; j++) {
        accumulate(from + j * step, x, k + j, acc, s, rows, vectors, layout);
      }
    }
  }
  for (; k < channels; k++) {
    UNROLL for (int s = 0; s < streams; s++) {
      accumulate(panels[s] + k * step, x, k, acc, s, rows, vectors, layout);
    }
  }
  UNROLL for (int s = 0; s < streams; s++) {
    const uint8_t *scales = panels[s] + channels * step;
    UNROLL for (int v = 0; v < vectors; v++) {
      const size_t column =
          region.column + ((panel + (size_t)s * run_stride) * (size_t)vectors + (size_t)v) * LANES;
      UNROLL for (int r = 0; r < rows; r++) {
        vec found = acc[r][s][v];
        if (layout == NP_PANELS_INT8) found *= *(const vec *)(scales + 4 * LANES * (size_t)v);
        store_columns(job, (size_t)r, column, found);
      }
    }
  }
}

/* As many streams as there are accumulators for; then fewer for the panels that are left. */
NP_INLINE void panels(const np_gemv_job *job, np_gemv_region region, size_t first, size_t last,
                      const int rows, const int vectors, const int layout) {
  const int most = ACCUMULATORS / (rows * vectors);
  const int streams = most > MOST_STREAMS ? MOST_STREAMS : most > 0 ? most : 1;
  const size_t run_stride = (last - first) / (size_t)streams, end = first + run_stride;
  const size_t every = POLL_BYTES / region.panel_bytes;
  for (size_t i = first, left = every; i < end; i++) {
    tile(job, region, i, run_stride, rows, streams, vectors, layout);
    if (left-- > 0) continue;
    if (np_cancel_check()) return;
    left = every;
  }
  first += (size_t)streams * run_stride;
  if (streams > LEFT_STREAMS) {
    const size_t some = (last - first) / LEFT_STREAMS;
    for (size_t i = 0; i < some; i++) {
      tile(job, region, first + i, some, rows, LEFT_STREAMS, vectors, layout);
    }
    first += LEFT_STREAMS * some;
  }
  if (streams > 3 && last - first == 3) {
    tile(job, region, first, 1, rows, 3, vectors, layout);
    return;
  }
  for (size_t i = first; i < last; i++) tile(job, region, i, 0, rows, 1, vectors, layout);
}

/* As many outputs at a time as there are streams: each is a row of the table. */
NP_INLINE void outputs(const np_gemv_job *job, size_t first, size_t run_stride,
                              const int rows, const int streams) {
  const struct np_gemv_params *p = job->params;
  const size_t channels = p->channels, whole = channels / REDUCED_LANES * REDUCED_LANES;
  const size_t rest = channels - whole;
  const float *table[MOST_STREAMS], *x[NP_GEMV_MAX_ROWS];
  vec acc[NP_GEMV_MAX_ROWS][MOST_STREAMS][SPANS];
  UNROLL for (int s = 0; s < streams; s++) {
    table[s] = (const float *)p->packed + (first + (size_t)s * run_stride) * channels;
    UNROLL for (int r = 0; r < rows; r++) {
      UNROLL for (int i = 0; i < SPANS; i++) acc[r][s][i] = zero();
    }
  }
  UNROLL for (int r = 0; r < rows; r++) {
    const size_t row = (size_t)r < p->rows ? (size_t)r : p->rows - 1;
    x[r] = job->rows + row * channels;
  }
  for (size_t k = 0; k < whole; k += REDUCED_LANES) {
    UNROLL for (int s = 0; s < streams; s++) {
      __builtin_prefetch((const uint8_t *)(table[s] + k) + PREFETCH_BYTES(NP_TABLE_F32), 0, 3);
      UNROLL for (int i = 0; i < SPANS; i++) {
        const size_t at = k + (size_t)i * LANES;
        const vec w = load(table[s] + at);
        UNROLL for (int r = 0; r < rows; r++) {
          acc[r][s][i] = multiply_add(load(x[r] + at), w, acc[r][s][i]);
        }
      }
    }
  }
  if (rest > 0) {
    UNROLL for (int s = 0; s < streams; s++) {
      UNROLL for (int i = 0; i < SPANS; i++) {
        const size_t at = whole + (size_t)i * LANES, some = lanes_of_span(rest, i);
        if (some == 0) break;
        const vec w = load_some(table[s] + at, some);
        UNROLL for (int r = 0; r < rows; r++) {
          acc[r][s][i] = multiply_add(load_some(x[r] + at, some), w, acc[r][s][i]);
        }
      }
    }
  }
  UNROLL for (int s = 0; s < streams; s++) {
    UNROLL for (int r = 0; r < rows; r++) {
      float sum = sum_of_spans(acc[r][s]);
      const size_t at = (size_t)r * p->outputs + first + (size_t)s * run_stride;
      if (job->before != NULL && (size_t)r < p->rows) sum += job->before[at];
      sum = sum < p->epilogue.low    ? p->epilogue.low
            : sum > p->epilogue.high ? p->epilogue.high
                                     : sum;
      if ((size_t)r < p->rows) job->out[at] = sum;
    }
  }
}

NP_INLINE void table(const np_gemv_job *job, size_t first, size_t last, const int rows) {
  const int most = ACCUMULATORS / (rows * SPANS);
  const int streams = most > MOST_STREAMS ? MOST_STREAMS : most;
  const size_t run_stride = (last - first) / (size_t)streams, end = first + run_stride;
  const size_t every = POLL_BYTES / sizeof(float) / np_max(1, job->params->channels);
  for (size_t i = first, left = every; i < end; i++) {
    outputs(job, i, run_stride, rows, streams);
    if (left-- > 0) continue;
    if (np_cancel_check()) return;
    left = every;
  }
  for (size_t i = first + (size_t)streams * run_stride; i < last; i++) outputs(job, i, 0, rows, 1);
}

/* Panels of one width: the code for one row, or for four of which some may be the last one again.
 * More of them take as long to compile as all other kernels together, and memory is what rows wait
 * for. */
NP_INLINE void rows_of(const np_gemv_job *job, np_gemv_region region, size_t first, size_t last,
                       const int vectors, const int layout) {
  if (job->params->rows == 1) {
    panels(job, region, first, last, 1, vectors, layout);
  } else {
    panels(job, region, first, last, NP_GEMV_MAX_ROWS, vectors, layout);
  }
}

/* As np_fp32_pack writes them: panels of `vectors`, then those of one less. */
NP_INLINE void panels_f32(const np_gemv_job *job, size_t first, size_t last, const int vectors) {
  const struct np_gemv_params *p = job->params;
  const size_t wide = p->panels - p->narrow;
  if (first < wide) {
    rows_of(job, np_gemv_wide(p), first, np_min(last, wide), vectors, NP_PANELS_F32);
  }
  if (last > wide) {
    rows_of(job, np_gemv_narrow(p), np_max(first, wide) - wide, last - wide, vectors - 1,
            NP_PANELS_F32);
  }
}

void NP_OF_ISA(np_gemv)(const np_gemv_job *job, size_t first, size_t last) {
  const struct np_gemv_params *p = job->params;
  const np_gemv_region all = np_gemv_wide(p);
  if (p->layout == NP_TABLE_F32) {
    if (p->rows == 1) {
      table(job, first, last, 1);
    } else {
      table(job, first, last, NP_GEMV_MAX_ROWS);
    }
  } else if (p->layout == NP_PANELS_F16) {
    rows_of(job, all, first, last, 2, NP_PANELS_F16);
  } else if (p->layout == NP_PANELS_INT8) {
    rows_of(job, all, first, last, 2, NP_PANELS_INT8);
  } else if (LANES == 16 && p->width == 48) {
    rows_of(job, all, first, last, 3, NP_PANELS_F32);
  } else {
    panels_f32(job, first, last, LANES == 16 ? 4 : 2);
  }
}
